package qemu

import (
	"slices"
	"strconv"
	"strings"

	"github.com/lodge-kvm/lodge/internal/mechanism/qemucaps"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// cpu adds the CPU model that the guest sees, and the number of CPUs.
func (b *builder) cpu() error {
	model, err := b.cpuModel()
	if err != nil {
		return err
	}
	if model != nil {
		b.addOption("cpu", model)
	}
	return b.smp()
}

// cpuModel is the model with the changes to it; nil leaves the choice to
// the machine.
func (b *builder) cpuModel() (optionList, error) {
	base, err := b.baseModel()
	if err != nil {
		return nil, err
	}
	extras, err := b.cpuExtras()
	if err != nil {
		return nil, err
	}
	cpu := b.Definition.CPU
	switch {
	case base != nil:
	case len(extras) == 0 && len(cpu.Features) == 0:
		return nil, nil
	default:
		base = optionList{"qemu64"}
	}
	features, err := b.cpuFeatures()
	if err != nil {
		return nil, err
	}
	return slices.Concat(base, features, extras), nil
}

func (b *builder) baseModel() (optionList, error) {
	cpu, acc := b.Definition.CPU, b.accelerator()
	switch cpu.Mode {
	case "":
		return nil, nil
	case "host-passthrough":
		if acc.Name != "kvm" {
			return optionList{"max"}, b.unlessDryRun(unsupported("CPU mode host-passthrough needs domain type kvm; an emulated guest can have maximum"))
		}
		if !acc.HostCPU {
			return nil, unsupported("CPU mode host-passthrough cannot be used on this host: %s", acc.HostCPUReason)
		}
		return migratable(optionList{"host"}, cpu.Migratable), nil
	case "maximum":
		return migratable(optionList{"max"}, cpu.Migratable), nil
	case "host-model":
		return hostModel(acc), nil
	case "custom":
		return b.namedModel(acc)
	}
	return nil, unsupported("CPU mode %q is not built", cpu.Mode)
}

func migratable(model optionList, s device.Switch) optionList {
	model.onOff("migratable", s)
	return model
}

// hostModel is the named model that is closest to the accelerator's features, with
// the differences.
func hostModel(acc qemucaps.Accelerator) optionList {
	h := acc.HostModel
	if h.Base == "" {
		return optionList{acc.BestModel()}
	}
	model := optionList{h.Base}
	for _, name := range h.Added {
		model.raw(name + "=on")
	}
	for _, name := range h.Removed {
		model.raw(name + "=off")
	}
	return model
}

// vendors are the vendor strings of processors, by libvirt's names of the vendors.
var vendors = map[string]string{"Intel": "GenuineIntel", "AMD": "AuthenticAMD", "Hygon": "HygonGenuine"}

func (b *builder) namedModel(acc qemucaps.Accelerator) (optionList, error) {
	cpu := b.Definition.CPU
	model, ok := acc.Model(cpu.Model)
	if !ok {
		return nil, unsupported("this QEMU has no CPU model %q", cpu.Model)
	}
	if want, ok := vendors[cpu.Vendor]; cpu.Vendor != "" && acc.Name == "kvm" && (!ok || want != acc.HostModel.Vendor) {
		return nil, unsupported("the domain needs a CPU of vendor %s and the host's is %s", cpu.Vendor, acc.HostModel.Vendor)
	}
	if cpu.Match == "minimum" || cpu.Match == "strict" {
		return nil, unsupported("CPU match %q is not built; use exact", cpu.Match)
	}
	missing := slices.DeleteFunc(slices.Clone(model.Missing), func(name string) bool { return b.isDisabled(name) })
	if cpu.Check != "none" && cpu.Check != "" && len(missing) > 0 {
		return nil, unsupported("CPU model %s needs features that this host cannot give a %s guest: %s",
			cpu.Model, acc.Name, strings.Join(missing, ", "))
	}
	words := optionList{model.Name}
	if cpu.Check == "full" {
		words.raw("enforce=on")
	}
	return words, nil
}

func (b *builder) isDisabled(feature string) bool {
	return slices.ContainsFunc(b.Definition.CPU.Features, func(f domain.CPUFeature) bool {
		return (f.Policy == "disable" || f.Policy == "forbid") && featureName(f.Name) == feature
	})
}

// notInQEMU are features that libvirt knows and QEMU does not: QEMU turns each on or off
// together with others.
var notInQEMU = []string{"cmt", "mbm-total", "mbm-local", "osxsave", "ospke", "pconfig"}

// featureName returns QEMU's name for a feature with this libvirt name.
func featureName(name string) string {
	switch name = strings.ReplaceAll(name, "_", "-"); name {
	case "pclmuldq":
		return "pclmulqdq"
	case "sse4-1":
		return "sse4.1"
	case "sse4-2":
		return "sse4.2"
	}
	return name
}

func (b *builder) cpuFeatures() (optionList, error) {
	words := optionList{}
	host := b.accelerator().HostModel.Features
	for _, f := range b.Definition.CPU.Features {
		name := featureName(f.Name)
		if !isWord(name) {
			return nil, invalid("%q is not a CPU feature", f.Name)
		}
		if slices.Contains(notInQEMU, name) {
			continue
		}
		switch f.Policy {
		case "", "require", "force":
			words.raw(name + "=on")
		case "optional":
			if slices.Contains(host, name) {
				words.raw(name + "=on")
			}
		case "disable", "forbid":
			words.raw(name + "=off")
		default:
			return nil, invalid("CPU feature %s has the unknown policy %q", f.Name, f.Policy)
		}
	}
	return words, nil
}

// isWord reports whether QEMU can read text only as one word of an option.
func isWord(text string) bool {
	return text != "" && strings.IndexFunc(text, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-_.", r)
	}) < 0
}

// cpuExtras are the properties of the processor that other elements of a
// definition set.
func (b *builder) cpuExtras() (optionList, error) {
	cpu, f := b.Definition.CPU, b.Definition.Features
	words := optionList{}
	if cpu.VendorID != "" {
		if len(cpu.VendorID) != vendorLength || !isVendor(cpu.VendorID) {
			return nil, invalid("CPU vendor_id %q is not of %d characters without commas", cpu.VendorID, vendorLength)
		}
		words.raw("vendor=" + cpu.VendorID)
	}
	if f.KVMHidden == device.On {
		words.raw("kvm=off")
	}
	words.onOff("kvm-hint-dedicated", onlyIfOn(f.KVMHintDedicated))
	words.onOff("kvm-poll-control", onlyIfOn(f.KVMPollControl))
	words.onOff("kvm-pv-unhalt", f.PVSpinlock)
	words.onOff("kvm-pv-eoi", f.APICEOI)
	words.onOff("pmu", f.PMU)
	words.onOff("kvmclock", b.timer("kvmclock").Present)
	words.onOff("hv-time", b.timer("hypervclock").Present)
	if t := b.timer("tsc"); t.Frequency > 0 {
		words.add("tsc-frequency", strconv.FormatUint(t.Frequency, 10))
	}
	for _, p := range b.Definition.Devices.Panics {
		if p.Model == "hyperv" {
			words.raw("hv-crash=on")
		}
	}
	switch cpu.MaxPhysMode {
	case "passthrough":
		words.raw("host-phys-bits=on")
	case "emulate":
		words.add("phys-bits", strconv.FormatUint(uint64(cpu.MaxPhysBits), 10))
	}
	if err := cacheWords(&words, &cpu); err != nil {
		return nil, err
	}
	return words, b.hyperV(&words)
}

// onlyIfOn keeps a switch that is on: QEMU's default is off.
func onlyIfOn(s device.Switch) device.Switch {
	if s == device.On {
		return s
	}
	return device.Unset
}

// cacheWords select the cache that the guest sees. Only host-passthrough and maximum can
// use the host's cache, and only their model has the option for it.
func cacheWords(words *optionList, cpu *domain.CPU) error {
	c := cpu.Cache
	if c == nil {
		return nil
	}
	hosts := cpu.Mode == "host-passthrough" || cpu.Mode == "maximum"
	switch {
	case c.Mode == "emulate" && c.Level == 3:
		words.raw("l3-cache=on")
	case c.Mode == "passthrough" && c.Level < 0:
		words.raw("host-cache-info=on", "l3-cache=off")
		return nil
	case c.Mode == "disable" && c.Level < 0:
		words.raw("l3-cache=off")
	default:
		return unsupported("CPU cache mode %q with level %d is not built", c.Mode, c.Level)
	}
	if hosts {
		words.raw("host-cache-info=off")
	}
	return nil
}

// vendorLength is the length of a processor's vendor string. QEMU splits
// these options at every comma, doubled or not.
const vendorLength = 12

func isVendor(text string) bool {
	return len(text) <= vendorLength && !strings.ContainsFunc(text, func(r rune) bool { return r == ',' || r < ' ' || r > '~' })
}

func (b *builder) hyperV(words *optionList) error {
	h := b.Definition.Features.HyperV
	if h == nil {
		return nil
	}
	if h.Mode == "passthrough" {
		words.raw("hv-passthrough=on")
		return nil
	}
	for _, e := range []struct {
		name string
		s    device.Switch
	}{
		{"hv-relaxed", h.Relaxed},
		{"hv-vapic", h.VAPIC},
		{"hv-vpindex", h.VPIndex},
		{"hv-runtime", h.Runtime},
		{"hv-synic", h.SynIC},
		{"hv-stimer", h.STimer},
		{"hv-stimer-direct", h.STimerDirect},
		{"hv-reset", h.Reset},
		{"hv-frequencies", h.Frequencies},
		{"hv-reenlightenment", h.Reenlightenment},
		{"hv-tlbflush", h.TLBFlush},
		{"hv-ipi", h.IPI},
		{"hv-evmcs", h.EVMCS},
		{"hv-avic", h.AVIC},
	} {
		words.onOff(e.name, onlyIfOn(e.s))
	}
	if h.Spinlocks == device.On {
		words.add("hv-spinlocks", "0x"+strconv.FormatUint(uint64(h.SpinlockRetries), 16))
	}
	if h.VendorID == device.On {
		if !isVendor(h.VendorIDValue) {
			return invalid("hyperv vendor_id %q is not of at most %d characters without commas", h.VendorIDValue, vendorLength)
		}
		words.raw("hv-vendor-id=" + h.VendorIDValue)
	}
	return nil
}

// smp adds the number of processors, the maximum, and their topology.
func (b *builder) smp() error {
	d := b.Definition
	m, _ := b.Capabilities.Machine(d.OS.Machine)
	most := d.VCPUs.Max
	if int(most) > m.MaxCPUs {
		return unsupported("machine type %s takes %d vcpus, not %d", m.Name, m.MaxCPUs, most)
	}
	if d.VCPUs.Current < most && !m.HotplugCPUs {
		return unsupported("machine type %s cannot have vcpus plugged in: the current number must be the maximum", m.Name)
	}
	smp := optionList{number(d.VCPUs.Current)}
	if d.VCPUs.Current != most {
		smp.add("maxcpus", number(most))
	}
	t := domain.CPUTopology{Sockets: most, Cores: 1, Threads: 1}
	if d.CPU.Topology != nil {
		t = *d.CPU.Topology
	}
	if t.Clusters > 1 {
		return unsupported("machine type %s has no CPU clusters", m.Name)
	}
	smp.add("sockets", number(t.Sockets))
	if t.Dies > 0 {
		smp.add("dies", number(t.Dies))
	}
	smp.add("cores", number(t.Cores))
	smp.add("threads", number(t.Threads))
	b.addOption("smp", smp)
	return nil
}

func number(n uint) string { return strconv.FormatUint(uint64(n), 10) }
