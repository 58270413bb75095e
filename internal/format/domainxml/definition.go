package domainxml

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/topology"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

func describeDomain(n *node, d *domain.Definition) {
	n.need("type", &d.Virt, "kvm", "qemu")
	n.ignore("id")
	if n.writing && n.style.Active && n.style.ID > 0 {
		n.set("id", fmt.Sprint(n.style.ID))
	}
	n.leaf("name", &d.Name)
	n.leaf("uuid", &d.UUID)
	if id, err := uuid.Parse(d.UUID); err == nil && n.reading() {
		d.UUID = id.String() // there are more spellings of one
	}
	n.genID(d)
	n.once("numatune", "vcpu", "cputune", "os", "features", "cpu", "clock", "devices")
	n.leaf("title", &d.Title)
	n.leaf("description", &d.Description)
	n.metadata(&d.Metadata)
	n.maxMemory(d)
	n.leafBytes("memory", &d.Memory)
	n.leafBytes("currentMemory", &d.CurrentMemory)
	n.in("blkiotune", func(n *node) { leafNum(n, "weight", &d.Blkio.Weight) })
	n.in("memtune", func(n *node) {
		n.limit("hard_limit", &d.MemTune.HardLimit)
		n.limit("soft_limit", &d.MemTune.SoftLimit)
		n.limit("min_guarantee", &d.MemTune.MinGuarantee)
		n.limit("swap_hard_limit", &d.MemTune.SwapHardLimit)
	})
	n.in("memoryBacking", func(n *node) { describeBacking(n, &d.Backing) })
	n.in("vcpu", func(n *node) { describeVCPUs(n, &d.VCPUs) })
	n.ioThreads(&d.IOThreads)
	n.in("cputune", func(n *node) { describeCPUTune(n, &d.Tune) })
	n.in("numatune", func(n *node) { describeNUMATune(n, &d.NUMA) })
	n.in("resource", func(n *node) {
		if n.leaf("partition", &d.Partition); n.strict && d.Partition == "" && n.e.Child("fibrechannel") == nil {
			n.invalid("", "it names no <partition>; leave it out")
		}
	})
	describeSysInfo(n, &d.SysInfo)
	n.in("os", func(n *node) { describeOS(n, &d.OS) })
	n.in("features", func(n *node) { describeFeatures(n, &d.Features) })
	n.in("cpu", func(n *node) { describeCPU(n, &d.CPU) })
	n.in("clock", func(n *node) { describeClock(n, &d.Clock) })
	n.leaf("on_poweroff", &d.OnPoweroff, "destroy", "restart", "preserve", "rename-restart")
	n.leaf("on_reboot", &d.OnReboot, "destroy", "restart", "preserve", "rename-restart")
	n.leaf("on_crash", &d.OnCrash, "destroy", "restart", "preserve", "rename-restart", "coredump-destroy", "coredump-restart")
	n.lockFailure(&d.OnLockFailure)
	n.checkLaunchSecurity()
	n.in("pm", func(n *node) {
		n.in("suspend-to-mem", func(n *node) { n.yes("enabled", &d.SuspendToMem) })
		n.in("suspend-to-disk", func(n *node) { n.yes("enabled", &d.SuspendToDisk) })
	})
	present := true
	n.inIf("devices", &present, func(n *node) { describeDevices(n, &d.Devices) })
	each(n, "seclabel", &d.SecLabels, describeSecLabel)
	describeQEMU(n, d)
}

// lockFailure describes the action after a disk's lock is lost. Lodge never loses one; the value is only kept.
func (n *node) lockFailure(p *string) {
	kept := []string{"poweroff", "restart", "pause", "ignore"}
	n.in("on_lockfailure", func(n *node) {
		if n.strict {
			n.text(p, append(kept, "default")...)
		} else {
			n.text(p)
		}
	})
	if n.reading() && !slices.Contains(kept, *p) {
		*p = "" // libvirt's default, or a value that an earlier Lodge accepted
	}
}

// checkLaunchSecurity refuses one without a type, which libvirt does not know. The others are not built.
func (n *node) checkLaunchSecurity() {
	if e := n.e.Child("launchSecurity"); e != nil && n.strict {
		c := &node{n.pass, e, n}
		c.present("type")
		c.oneOf("type", e.Attr("type"), []string{"sev", "s390-pv"})
	}
}

// genID describes a bare <genid/> as "auto".
func (n *node) genID(d *domain.Definition) {
	present := d.GenID != ""
	n.inIf("genid", &present, func(n *node) {
		if n.writing && d.GenID == "auto" {
			return
		}
		if n.text(&d.GenID); d.GenID == "" {
			d.GenID = "auto"
		}
	})
}

// MaxMemory is the most memory that a definition can have, in bytes: a larger number of KiB cannot be read back.
// libvirt also writes it as the value of a limit that is not set.
const MaxMemory = 9007199254740991 << 10

// limit describes an amount of memory; libvirt's largest value means "no limit".
func (n *node) limit(name string, p *uint64) {
	if n.leafBytes(name, p); n.reading() && (*p == 0 || *p >= MaxMemory) {
		*p = 0
		if c := n.child(name); c != nil {
			c.ignore("")
		}
	}
}

// metadata is kept as text: it belongs to other programs.
func (n *node) metadata(p *string) {
	if n.reading() {
		if c := n.child("metadata"); c != nil {
			if *p = xmltree.FormatInner(c.e); *p == "" {
				c.ignore("")
			}
		}
		return
	}
	if *p == "" {
		return
	}
	e, err := xmltree.Parse("<metadata>" + *p + "</metadata>")
	if err != nil {
		n.fail(err)
		return
	}
	n.e.Children = append(n.e.Children, e)
}

// ioThreads describes the count. A document may list the ids, if they are those of
// the count: 1, 2 and so on.
func (n *node) ioThreads(count *uint) {
	leafNum(n, "iothreads", count)
	if n.writing {
		return
	}
	c := n.child("iothreadids")
	if c == nil {
		return
	}
	ids := c.e.Elements("iothread")
	seen := map[string]bool{}
	for _, e := range ids {
		switch id := e.Attr("id"); {
		case !n.strict:
		case id == "0":
			c.invalid("", "an iothread has an id from 1")
		case seen[id]:
			c.invalid("", "two iothreads have the id %s", id)
		default:
			seen[id] = true
		}
	}
	*count = max(*count, uint(len(ids)))
	for _, e := range ids {
		var id uint
		num(&node{n.pass, e, c}, "id", &id)
		if id == 0 || id > *count || len(e.Attrs) != 1 || len(e.Children) > 0 {
			return // left for explainLoss
		}
	}
	c.ignore("")
}

func describeBacking(n *node, b *domain.MemoryBacking) {
	n.inIf("hugepages", &b.HasHugePages, func(n *node) {
		each(n, "page", &b.HugePages, func(n *node, h *domain.HugePages) {
			n.bytes("size", &h.Size)
			n.cpus("nodeset", &h.Nodes)
		})
	})
	n.flag("nosharepages", &b.NoSharePages)
	n.flag("locked", &b.Locked)
	n.in("source", func(n *node) { n.str("type", &b.Source, "anonymous", "file", "memfd") })
	n.in("access", func(n *node) { n.str("mode", &b.Access, "shared", "private") })
	n.in("allocation", func(n *node) {
		n.str("mode", &b.Allocation, "immediate", "ondemand")
		num(n, "threads", &b.AllocThreads)
	})
	n.flag("discard", &b.Discard)
}

func describeVCPUs(n *node, v *domain.VCPUs) {
	n.str("placement", &v.Placement, "static", "auto")
	n.cpus("cpuset", &v.CPUs)
	if n.reading() || v.Current != v.Max {
		num(n, "current", &v.Current)
	}
	textNum(n, &v.Max)
	if n.writing {
		return
	}
	if v.Max == 0 {
		n.invalid("", "a guest has at least one vcpu")
	}
	setDefault(&v.Current, v.Max)
}

func describeCPUTune(n *node, t *domain.CPUTune) {
	n.once("emulatorpin")
	leafNum(n, "shares", &t.Shares)
	leafNum(n, "period", &t.Period)
	leafNum(n, "quota", &t.Quota)
	leafNum(n, "global_period", &t.GlobalPeriod)
	leafNum(n, "global_quota", &t.GlobalQuota)
	leafNum(n, "emulator_period", &t.EmulatorPeriod)
	leafNum(n, "emulator_quota", &t.EmulatorQuota)
	leafNum(n, "iothread_period", &t.IOThreadPeriod)
	leafNum(n, "iothread_quota", &t.IOThreadQuota)
	pins(n, "vcpupin", "vcpu", &t.VCPUPins)
	n.in("emulatorpin", func(n *node) {
		n.present("cpuset")
		n.cpus("cpuset", &t.EmulatorPin)
	})
	pins(n, "iothreadpin", "iothread", &t.IOThreadPins)
}

// pins describes which thread is bound to which processors.
func pins(n *node, name, thread string, m *map[uint]topology.CPUSet) {
	type pin struct {
		id   uint
		cpus topology.CPUSet
	}
	var list []pin
	for _, id := range slices.Sorted(maps.Keys(*m)) {
		list = append(list, pin{id, (*m)[id]})
	}
	each(n, name, &list, func(n *node, p *pin) {
		n.present(thread)
		always(n, thread, &p.id)
		n.cpus("cpuset", &p.cpus)
	})
	if n.writing || len(list) == 0 {
		return
	}
	*m = map[uint]topology.CPUSet{}
	for _, p := range list {
		if _, twice := (*m)[p.id]; twice && n.strict {
			n.invalid("", "%s %d is bound twice; leave one %s out", thread, p.id, name)
		}
		(*m)[p.id] = p.cpus
	}
}

func describeNUMATune(n *node, t *domain.NUMATune) {
	modes := []string{"strict", "preferred", "interleave", "restrictive"}
	n.in("memory", func(n *node) {
		n.str("mode", &t.Mode, modes...)
		if n.reading() || t.Placement != "static" {
			n.str("placement", &t.Placement, "static", "auto")
		}
		n.cpus("nodeset", &t.Nodes)
	})
	each(n, "memnode", &t.Cells, func(n *node, c *domain.CellTune) {
		always(n, "cellid", &c.Cell)
		n.str("mode", &c.Mode, modes...)
		n.cpus("nodeset", &c.Nodes)
	})
}

func describeSecLabel(n *node, l *domain.SecLabel) {
	n.str("type", &l.Type, "none", "static", "dynamic")
	n.str("model", &l.Model)
	n.yes("relabel", &l.Relabel)
	if l.Type == "none" {
		return
	}
	n.leaf("label", &l.Label)
	if l.Model != "dac" {
		n.leaf("imagelabel", &l.ImageLabel)
		n.leaf("baselabel", &l.BaseLabel)
		return
	}
	// Files are not given to a guest's user. Such a label in a dump of another guest was for one run only.
	if c := n.child("imagelabel"); c != nil && n.reading() && l.Type != "static" {
		c.ignore("")
	}
}

const qemuSpace = "http://libvirt.org/schemas/domain/qemu/1.0"

func describeQEMU(n *node, d *domain.Definition) {
	describe := func(n *node) {
		each(n, "arg", &d.QEMUArgs, func(n *node, arg *string) { n.said("value", arg) })
		each(n, "env", &d.QEMUEnv, func(n *node, v *domain.EnvVar) {
			n.str("name", &v.Name)
			n.str("value", &v.Value)
		})
	}
	if n.writing {
		c := n.add("commandline")
		c.e.Space = qemuSpace
		if describe(c); !c.empty() {
			n.append(c)
		}
		return
	}
	for _, e := range n.e.Elements(ofQEMU...) {
		switch c := (&node{n.pass, e, n}); {
		case e.Space != qemuSpace:
		case isBare(e):
			c.ignore("")
		case e.Name == "commandline":
			describe(c)
		}
	}
}

// isBare reports that an element has nothing but its namespace.
func isBare(e *xmltree.Element) bool {
	spaces := func(a xmltree.Attr) bool { return a.Prefix == "xmlns" || a.Prefix == "" && a.Name == "xmlns" }
	return (&xmltree.Element{Attrs: slices.DeleteFunc(slices.Clone(e.Attrs), spaces), Children: e.Children}).IsEmpty()
}

// said is str for an attribute that is written even when it is empty.
func (n *node) said(attr string, p *string) {
	if n.writing {
		n.set(attr, *p)
		return
	}
	n.str(attr, p)
}

func describeOS(n *node, o *domain.OS) {
	n.str("firmware", &o.Firmware, "efi", "bios")
	n.in("type", func(n *node) {
		n.str("arch", &o.Arch, "x86_64", "i686")
		n.str("machine", &o.Machine)
		kind := "hvm"
		n.text(&kind, "hvm")
		if kind != "hvm" {
			n.invalid("", "a type is missing; it is hvm")
		}
	})
	describeFirmware(n, o)
	n.leaf("kernel", &o.Kernel)
	n.leaf("initrd", &o.Initrd)
	n.leaf("cmdline", &o.Cmdline)
	n.leaf("dtb", &o.DTB)
	each(n, "boot", &o.BootDevices, func(n *node, dev *string) { n.need("dev", dev, "hd", "cdrom", "network", "fd") })
	n.in("bootmenu", func(n *node) {
		n.yes("enable", &o.BootMenu)
		num(n, "timeout", &o.BootMenuTimeout)
	})
	n.in("bios", func(n *node) {
		n.yes("useserial", &o.BIOSSerial)
		optional(n, "rebootTimeout", &o.RebootTimeout)
	})
	n.in("smbios", func(n *node) { n.str("mode", &o.SMBIOSMode, "emulate", "host", "sysinfo") })
}

func describeSysInfo(n *node, p **domain.SysInfo) {
	if n.writing {
		if *p != nil {
			writeSysInfo(n, *p)
		}
		return
	}
	for _, e := range n.e.Elements("sysinfo") {
		if *p == nil {
			*p = new(domain.SysInfo)
		}
		c := &node{n.pass, e, n}
		switch kind := e.Attr("type"); kind {
		case "smbios":
			describeSMBIOS(c, *p)
		case "fwcfg":
			describeFWCfg(c, *p)
		default:
			c.oneOf("type", kind, []string{"smbios", "fwcfg"})
		}
	}
}

func writeSysInfo(n *node, s *domain.SysInfo) {
	smbios, fwcfg := n.add("sysinfo"), n.add("sysinfo")
	if describeSMBIOS(smbios, s); !smbios.empty() {
		smbios.set("type", "smbios")
		n.append(smbios)
	}
	if describeFWCfg(fwcfg, s); !fwcfg.empty() {
		fwcfg.set("type", "fwcfg")
		n.append(fwcfg)
	}
}

func describeSMBIOS(n *node, s *domain.SysInfo) {
	entries := func(n *node, list *[]domain.SysInfoEntry) {
		each(n, "entry", list, func(n *node, e *domain.SysInfoEntry) {
			n.need("name", &e.Name)
			n.text(&e.Value)
		})
	}
	n.in("bios", func(n *node) { entries(n, &s.BIOS) })
	n.in("system", func(n *node) { entries(n, &s.System) })
	each(n, "baseBoard", &s.BaseBoards, entries)
	n.in("chassis", func(n *node) { entries(n, &s.Chassis) })
	n.in("oemStrings", func(n *node) {
		each(n, "entry", &s.OEMStrings, func(n *node, value *string) { n.text(value) })
	})
}

func describeFWCfg(n *node, s *domain.SysInfo) {
	each(n, "entry", &s.FWCfg, func(n *node, e *domain.FWCfgEntry) {
		n.need("name", &e.Name)
		n.str("file", &e.File)
		n.text(&e.Value)
		if n.strict && !strings.HasPrefix(e.Name, "opt/") {
			n.refuse("name", "%q does not begin with opt/", e.Name)
		}
	})
}

func describeClock(n *node, c *domain.Clock) {
	n.str("offset", &c.Offset, "utc", "localtime", "timezone", "variable", "absolute")
	n.str("adjustment", &c.Adjustment)
	n.str("basis", &c.Basis, "utc", "localtime")
	n.str("timezone", &c.Timezone)
	num(n, "start", &c.Start)
	each(n, "timer", &c.Timers, func(n *node, t *domain.Timer) {
		n.need("name", &t.Name, "rtc", "pit", "hpet", "kvmclock", "hypervclock", "tsc", "platform")
		n.yes("present", &t.Present)
		n.str("tickpolicy", &t.TickPolicy, "delay", "catchup", "merge", "discard")
		n.str("track", &t.Track, "boot", "guest", "wall", "realtime")
		num(n, "frequency", &t.Frequency)
		n.str("mode", &t.Mode, "auto", "native", "emulate", "paravirt", "smpsafe")
		object(n, "catchup", &t.CatchUp, func(n *node, c *domain.CatchUp) {
			num(n, "threshold", &c.Threshold)
			num(n, "slew", &c.Slew)
			num(n, "limit", &c.Limit)
		})
	})
}

func describeFeatures(n *node, f *domain.Features) {
	n.known("acpi", "apic", "pae", "hap", "viridian", "privnet", "hyperv", "kvm", "pvspinlock", "capabilities", "pmu",
		"vmport", "gic", "smm", "ioapic", "hpt", "vmcoreinfo", "htm", "nested-hv", "msrs", "ccf-assist", "xen", "cfpc",
		"sbbc", "ibs", "tcg")
	n.flag("acpi", &f.ACPI)
	n.inIf("apic", &f.APIC, func(n *node) { n.on("eoi", &f.APICEOI) })
	n.flag("pae", &f.PAE)
	n.state("hap", &f.HAP)
	n.flag("viridian", &f.ViridianSet)
	n.flag("privnet", &f.PrivNet)
	object(n, "hyperv", &f.HyperV, describeHyperV)
	n.inIf("kvm", &f.KVMSet, func(n *node) {
		n.known("hidden", "hint-dedicated", "poll-control", "pv-ipi", "dirty-ring")
		n.state("hidden", &f.KVMHidden)
		n.state("hint-dedicated", &f.KVMHintDedicated)
		n.state("poll-control", &f.KVMPollControl)
	})
	n.state("pvspinlock", &f.PVSpinlock)
	n.state("pmu", &f.PMU)
	n.state("vmport", &f.VMPort)
	n.state("smm", &f.SMM)
	n.in("ioapic", func(n *node) { n.str("driver", &f.IOAPIC, "qemu", "kvm") })
	n.state("vmcoreinfo", &f.VMCoreInfo)
	n.in("tcg", func(n *node) { n.leafBytes("tb-cache", &f.TCGTBCache) })
}

// known refuses a child that is no feature in libvirt. Stored definitions are not checked.
func (n *node) known(features ...string) {
	if !n.strict {
		return
	}
	for _, e := range n.e.Elements() {
		if !slices.Contains(features, e.Name) {
			n.refuse("", "there is no feature %q; leave it out", e.Name)
			return
		}
	}
}

func describeHyperV(n *node, h *domain.HyperV) {
	n.known("relaxed", "vapic", "spinlocks", "vpindex", "runtime", "synic", "stimer", "reset", "vendor_id",
		"frequencies", "reenlightenment", "tlbflush", "ipi", "evmcs", "avic")
	n.str("mode", &h.Mode, "custom", "passthrough")
	n.state("relaxed", &h.Relaxed)
	n.state("vapic", &h.VAPIC)
	n.stateOf("spinlocks", &h.Spinlocks, func(n *node) { num(n, "retries", &h.SpinlockRetries) })
	n.state("vpindex", &h.VPIndex)
	n.state("runtime", &h.Runtime)
	n.state("synic", &h.SynIC)
	n.stateOf("stimer", &h.STimer, func(n *node) { n.state("direct", &h.STimerDirect) })
	n.state("reset", &h.Reset)
	n.stateOf("vendor_id", &h.VendorID, func(n *node) { n.str("value", &h.VendorIDValue) })
	n.state("frequencies", &h.Frequencies)
	n.state("reenlightenment", &h.Reenlightenment)
	n.state("tlbflush", &h.TLBFlush)
	n.state("ipi", &h.IPI)
	n.state("evmcs", &h.EVMCS)
	n.state("avic", &h.AVIC)
}

func describeCPU(n *node, c *domain.CPU) {
	n.str("mode", &c.Mode, "host-model", "host-passthrough", "maximum", "custom")
	n.str("match", &c.Match, "exact", "minimum", "strict")
	n.str("check", &c.Check, "none", "partial", "full")
	n.on("migratable", &c.Migratable)
	n.in("model", func(n *node) {
		n.str("fallback", &c.Fallback, "allow", "forbid")
		n.str("vendor_id", &c.VendorID)
		n.text(&c.Model)
		if n.reading() && c.Model == "" && c.Fallback == "allow" {
			c.Fallback = "" // says something about a model, and there is none
			n.ignore("fallback")
			if n.empty() {
				n.ignore("")
			}
		}
	})
	n.leaf("vendor", &c.Vendor)
	object(n, "topology", &c.Topology, func(n *node, t *domain.CPUTopology) {
		num(n, "sockets", &t.Sockets)
		num(n, "dies", &t.Dies)
		num(n, "clusters", &t.Clusters)
		num(n, "cores", &t.Cores)
		num(n, "threads", &t.Threads)
	})
	object(n, "cache", &c.Cache, describeCache)
	n.in("maxphysaddr", func(n *node) {
		n.str("mode", &c.MaxPhysMode, "emulate", "passthrough")
		num(n, "bits", &c.MaxPhysBits)
	})
	each(n, "feature", &c.Features, func(n *node, f *domain.CPUFeature) {
		n.str("policy", &f.Policy, "force", "require", "optional", "disable", "forbid")
		n.need("name", &f.Name)
	})
	n.in("numa", func(n *node) {
		if describeCells(n, &c.Cells); n.strict && len(c.Cells) == 0 {
			n.invalid("", "it has no <cell>")
		}
	})
}

func describeCache(n *node, c *domain.CPUCache) {
	var level *int
	if n.writing && c.Level >= 0 {
		level = &c.Level
	}
	if optional(n, "level", &level); n.reading() {
		if c.Level = -1; level != nil {
			c.Level = *level
		}
	}
	n.str("mode", &c.Mode, "emulate", "passthrough", "disable")
}

// describeCells numbers cells without ids by their order.
func describeCells(n *node, cells *[]domain.Cell) {
	next := uint(0)
	each(n, "cell", cells, func(n *node, c *domain.Cell) {
		if n.reading() {
			c.ID = next
			next++
		}
		always(n, "id", &c.ID)
		n.cpus("cpus", &c.CPUs)
		n.bytes("memory", &c.Memory)
		n.str("memAccess", &c.MemAccess, "shared", "private")
		n.yes("discard", &c.Discard)
		n.in("distances", func(n *node) {
			if n.strict && n.child("sibling") == nil {
				n.invalid("", "it has no <sibling>")
			}
			each(n, "sibling", &c.Distances, func(n *node, d *domain.Distance) {
				n.present("id", "value")
				always(n, "id", &d.Cell)
				num(n, "value", &d.Value)
			})
		})
	})
}

func describeDevices(n *node, s *device.Set) {
	n.once("memballoon", "vsock")
	n.leaf("emulator", &s.Emulator)
	objects(n, "disk", &s.Disks, describeDisk)
	objects(n, "controller", &s.Controllers, describeController)
	objects(n, "interface", &s.NICs, describeNIC)
	objects(n, "serial", &s.Serials, describeChar)
	objects(n, "parallel", &s.Parallels, describeChar)
	objects(n, "console", &s.Consoles, describeChar)
	objects(n, "channel", &s.Channels, describeChar)
	objects(n, "input", &s.Inputs, describeInput)
	objects(n, "tpm", &s.TPMs, describeTPM)
	objects(n, "graphics", &s.Graphics, describeGraphics)
	objects(n, "sound", &s.Sounds, describeSound)
	objects(n, "audio", &s.Audios, describeAudio)
	objects(n, "video", &s.Videos, describeVideo)
	objects(n, "hostdev", &s.HostDevices, describeHostDevice)
	objects(n, "redirdev", &s.Redirs, describeRedir)
	objects(n, "hub", &s.Hubs, describeHub)
	objects(n, "watchdog", &s.Watchdogs, describeWatchdog)
	object(n, "memballoon", &s.Balloon, describeBalloon)
	objects(n, "rng", &s.RNGs, describeRNG)
	objects(n, "panic", &s.Panics, describePanic)
	objects(n, "memory", &s.Memories, describeMemory)
	object(n, "vsock", &s.VSock, describeVSock)
}
