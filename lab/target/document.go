package target

import (
	"encoding/xml"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/lodge-kvm/lodge/lab/image"
	"github.com/lodge-kvm/lodge/lab/machine"
	"github.com/lodge-kvm/lodge/lab/scenario"
)

// Port is the name of the agent's channel.
const Port = "lodge.lab.0"

// plan is what a guest's definition is made from.
type plan struct {
	name    string
	number  int
	spec    scenario.Guest
	cell    *Cell // to be bound to
	sources map[string]source
	console string // the file that the serial port writes to
}

// definition writes a guest. The same bytes go to every daemon.
func (s *Site) definition(p plan) (string, error) {
	var b strings.Builder
	g := p.spec
	kind := map[string]string{"kvm": "kvm", "tcg": "qemu"}[s.target.Accelerator]
	fmt.Fprintf(&b, "<domain type='%s'>\n  <name>%s</name>\n", kind, p.name)
	if g.MaxMemory > g.Memory {
		fmt.Fprintf(&b, "  <maxMemory slots='%d' unit='KiB'>%d</maxMemory>\n", memorySlots, g.MaxMemory/scenario.KiB)
	}
	fmt.Fprintf(&b, "  <memory unit='KiB'>%d</memory>\n", g.Memory/scenario.KiB)
	if g.Pages != "" {
		size, unit, _ := strings.Cut(map[string]string{"2MiB": "2 M", "1GiB": "1 G"}[g.Pages], " ")
		fmt.Fprintf(&b, "  <memoryBacking><hugepages><page size='%s' unit='%s'/></hugepages></memoryBacking>\n", size, unit)
	}
	b.WriteString(vcpus(p))
	if hasIOThread(g) {
		b.WriteString("  <iothreads>1</iothreads>\n")
	}
	if p.cell != nil {
		fmt.Fprintf(&b, "  <numatune><memory mode='strict' nodeset='%d'/></numatune>\n", p.cell.ID)
	}
	kernel, err := s.kernel(g)
	if err != nil {
		return "", err
	}
	fmt.Fprintf(&b, "  <os>\n    <type arch='x86_64' machine='%s'>hvm</type>\n    <kernel>%s</kernel>\n    <initrd>%s</initrd>\n    <cmdline>%s</cmdline>\n  </os>\n",
		machineFor(g), escape(kernel.Kernel), escape(kernel.Initrd), escape(s.commandLine(p)))
	b.WriteString("  <features><acpi/><apic/>")
	if kind == "qemu" {
		fmt.Fprintf(&b, "<tcg><tb-cache unit='MiB'>%d</tb-cache></tcg>", g.TBCache/scenario.MiB)
	}
	b.WriteString("</features>\n")
	b.WriteString(processor(g))
	devices, err := s.devices(p)
	fmt.Fprintf(&b, "  <clock offset='utc'/>\n  <on_reboot>destroy</on_reboot>\n  <devices>\n%s  </devices>\n</domain>\n", devices)
	return b.String(), err
}

// memorySlots is how many modules of memory a guest can get.
const memorySlots = 16

// processor is what the guest sees. One that memory is plugged into needs a node
// that the memory is of.
func processor(g scenario.Guest) string {
	mode := ""
	if g.CPU != "" {
		mode = fmt.Sprintf(" mode='%s'", g.CPU)
	}
	switch {
	case g.MaxMemory > g.Memory:
		return fmt.Sprintf("  <cpu%s><numa><cell id='0' cpus='0-%d' memory='%d' unit='KiB'/></numa></cpu>\n", mode, g.MaxVCPUs-1, g.Memory/scenario.KiB)
	case mode != "":
		return fmt.Sprintf("  <cpu%s/>\n", mode)
	}
	return ""
}

func vcpus(p plan) string {
	set, current := "", ""
	if p.cell != nil {
		set = fmt.Sprintf(" cpuset='%s'", p.cell.CPUs)
	}
	if p.spec.MaxVCPUs > p.spec.VCPUs {
		current = fmt.Sprintf(" current='%d'", p.spec.VCPUs)
	}
	return fmt.Sprintf("  <vcpu placement='static'%s%s>%d</vcpu>\n", set, current, p.spec.MaxVCPUs)
}

func hasIOThread(g scenario.Guest) bool {
	for _, d := range g.Disks {
		if d.IOThread {
			return true
		}
	}
	return false
}

// machineFor is the newer kind of PC, but for a guest with an IDE disk, which only
// the older has.
func machineFor(g scenario.Guest) string {
	for _, d := range g.Disks {
		if d.Bus == "ide" {
			return "pc"
		}
	}
	return "q35"
}

// kernel is the one that a guest boots: with a disk on SATA the generic one by itself,
// because Debian's for clouds has no driver for AHCI.
func (s *Site) kernel(g scenario.Guest) (image.Kernel, error) {
	sata := slices.ContainsFunc(g.Disks, func(d scenario.Disk) bool { return d.Bus == "sata" })
	switch {
	case g.Kernel == scenario.KernelCloud && sata:
		return image.Kernel{}, &Skipped{"Debian's kernel for clouds has no driver for AHCI, and so sees no SATA disk: leave kernel out, or make it generic"}
	case g.Kernel != scenario.KernelGeneric && !sata:
		return image.Kernel{Kernel: s.image.Kernel, Initrd: s.image.Initrd}, nil
	case s.image.Generic == image.Kernel{}:
		return image.Kernel{}, &Skipped{"the guests' image has no generic kernel, which this guest wants: make it anew with lodge lab image, or make lab-image"}
	}
	return s.image.Generic, nil
}

// devices are the private root, the shared /usr, the scenario's disks, and what
// every guest has.
func (s *Site) devices(p plan) (string, error) {
	var b strings.Builder
	root := scenario.Disk{Name: "root", Format: "qcow2", Cache: "writeback", IO: "threads", Bus: "virtio"}
	b.WriteString(disk(root, p.sources["root"], "vda", false))
	usr := scenario.Disk{Name: "usr", Format: "raw", Cache: "writeback", IO: "threads", Bus: "virtio"}
	b.WriteString(disk(usr, source{path: s.image.Usr}, "vdb", true))
	next, controller := map[string]int{"vd": 2}, false
	for _, d := range p.spec.Disks {
		prefix, err := bus(d)
		if err != nil {
			return "", err
		}
		b.WriteString(disk(d, p.sources[d.Name], prefix+string(rune('a'+next[prefix])), false))
		next[prefix]++
		controller = controller || d.Bus == "scsi"
	}
	if controller {
		b.WriteString("    <controller type='scsi' index='0' model='virtio-scsi'/>\n")
	}
	fmt.Fprintf(&b, `    <interface type='network'>
      <mac address='%s'/>
      <source network='%s'/>
      <model type='virtio'/>
    </interface>
    <serial type='file'>
      <source path='%s'/>
    </serial>
    <channel type='unix'>
      <target type='virtio' name='%s'/>
    </channel>
    <memballoon model='virtio'/>
    <rng model='virtio'><backend model='random'>/dev/urandom</backend></rng>
`, s.hardware(p.number), s.name, escape(p.console), Port)
	return b.String(), nil
}

// bus gives the letters that a bus's disks begin with, or why guests of the lab
// have none on it.
func bus(d scenario.Disk) (string, error) {
	switch d.Bus {
	case "virtio":
		return "vd", nil
	case "scsi", "sata":
		return "sd", nil
	case "ide":
		return "hd", nil
	}
	return "", &Skipped{"no bus " + d.Bus}
}

func disk(d scenario.Disk, from source, device string, shared bool) string {
	driver := fmt.Sprintf("name='qemu' type='%s' cache='%s' io='%s'", d.Format, d.Cache, d.IO)
	if d.IOThread {
		driver += " iothread='1'"
	}
	kind, attribute := "file", "file"
	if from.device {
		kind, attribute = "block", "dev"
	}
	text := fmt.Sprintf("    <disk type='%s' device='disk'>\n      <driver %s/>\n      <source %s='%s'/>\n      <target dev='%s' bus='%s'/>\n",
		kind, driver, attribute, escape(from.path), device, d.Bus)
	if shared {
		text += "      <readonly/>\n"
	}
	return text + fmt.Sprintf("      <serial>%s</serial>\n    </disk>\n", d.Name)
}

// tsc takes a moment to be told.
var tsc = sync.OnceValue(machine.TSC)

// ticks is the frequency of the counter that an emulated guest reads: its host's. It
// is 0 if that host does not tell.
func (t *Target) ticks() int {
	if t.Away() {
		return t.tsc
	}
	return tsc()
}

// netBits is how many of an address's are the net's.
const netBits = 16

// commandLine is what the guest's kernel and the agent in it are told. An emulated
// guest is spared a calibration of its clock, which a loaded host spoils.
func (s *Site) commandLine(p plan) string {
	boot := image.Boot{Name: p.name, Nets: []image.Net{{MAC: s.hardware(p.number), Address: netip.PrefixFrom(netip.MustParseAddr(s.address(p.number)), netBits)}}}
	if s.target.Accelerator != "kvm" {
		boot.TSC = s.target.ticks()
	}
	if s.target.Accelerator != "kvm" && boot.TSC == 0 {
		boot.Extra = append(boot.Extra, "tsc=unstable") // slower clocks are right
	}
	if p.spec.MaxMemory > p.spec.Memory {
		boot.Extra = append(boot.Extra, "swiotlb=512") // or 64 MiB are set aside for what can come above 4 GiB
	}
	return image.CommandLine(boot)
}

func escape(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text))
	return b.String()
}
