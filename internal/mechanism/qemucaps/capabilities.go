package qemucaps

import (
	"cmp"
	"regexp"
	"slices"
)

// Format is raised when Capabilities, or the way to find them, changes.
// Capabilities that were stored in another format do not count.
const Format = 3

// Capabilities is all that Lodge knows about one QEMU binary on this host: plain
// data, found once by qemuprobe.Probe, stored, and used by value from then on.
// All lists of names are sorted.
type Capabilities struct {
	Format int
	Binary Identity
	Host   Host

	Arch         string // as QEMU names it, such as x86_64 or i386
	Version      Version
	Machines     []Machine
	Accelerators []Accelerator // best first

	Devices    []string            // types for -device
	Objects    []string            // types for -object
	Properties map[string][]string // of the types that qemuprobe asks about, and of machines with an alias
	Options    map[string][]string // command line options and their parameters

	Netdevs     []string
	Chardevs    []string
	Displays    []string
	TPMModels   []string
	TPMBackends []string

	Commands []string // QMP
	Facts    []Fact   // those of Facts that hold
}

// Version is QEMU's own version and that of the package it came in.
type Version struct {
	Major, Minor, Micro int
	Package             string
}

// Machine is a machine type.
type Machine struct {
	Name           string
	Alias          string // "" when there is none
	Default        bool
	Deprecated     bool
	MaxCPUs        int
	HotplugCPUs    bool
	NUMAMemory     bool   // takes -numa node,mem=
	DefaultCPUType string // type name of the CPU model, such as qemu64-x86_64-cpu
	DefaultRAMID   string // id of the memory backend that QEMU would make if it is given none
}

// Accelerator is a way to run guest code. The CPU models hold under this accelerator, and are known only
// if it is usable.
type Accelerator struct {
	Name    string // as in -accel
	Present bool   // built into the binary
	Usable  bool   // a trial guest ran; tcg of a foreign architecture: it is present
	Reason  string // why not, or the trial that was made

	HostCPU       bool   // -cpu host works
	HostCPUReason string // why not

	Models    []CPUModel
	Features  []string // names of all features; a guest may have those of HostModel
	HostModel HostModel
}

// CPUModel is a named processor model.
type CPUModel struct {
	Name       string
	TypeName   string
	AliasOf    string // "" when it is no alias
	Usable     bool
	Missing    []string  // features that the accelerator lacks, by QEMU's names
	Features   []string  // all, by QEMU's names; of models without a version in the name
	Signature  Signature // also only of models without a version in the name
	Deprecated bool
	Static     bool // never changes with QEMU's version or the machine type
	Migratable bool
}

// HostModel is the best that the accelerator can give a guest (the host's
// processor under kvm, all that is emulated under tcg), and the named model
// that comes closest to it, for a definition that says host-model.
type HostModel struct {
	Vendor    string
	Signature Signature
	Features  []string // all, by QEMU's names

	Base    string   // named model, "" when none fits
	Added   []string // features to enable beyond Base
	Removed []string // features of Base to disable
}

// Fact is a path that exists in QEMU's schema, such as FactIOUring.
type Fact string

// The facts that arguments and callers branch on: differences between builds of
// QEMU, and features that are newer than 7.2, the oldest version that Lodge drives.
const (
	FactIOUring       Fact = "blockdev-add/file/aio/io_uring"
	FactNativeAIO     Fact = "blockdev-add/file/aio/native"
	FactVhostVDPA     Fact = "netdev_add/vhost-vdpa"
	FactPNGScreendump Fact = "screendump/format/png"
	FactReconnectMS   Fact = "chardev-add/backend/socket/data/reconnect-ms"
	FactZeroCopySend  Fact = "migrate-set-capabilities/capabilities/capability/zero-copy-send"
	FactSwitchoverAck Fact = "migrate-set-capabilities/capabilities/capability/switchover-ack"
	FactMappedRAM     Fact = "migrate-set-capabilities/capabilities/capability/mapped-ram"
)

// Facts lists all facts that the probe looks for.
func Facts() []Fact {
	return []Fact{
		FactIOUring, FactNativeAIO, FactVhostVDPA, FactPNGScreendump,
		FactReconnectMS, FactZeroCopySend, FactSwitchoverAck, FactMappedRAM,
	}
}

// Machine finds a machine type by its name or alias.
func (c *Capabilities) Machine(name string) (Machine, bool) {
	i := slices.IndexFunc(c.Machines, func(m Machine) bool { return m.Name == name || m.Alias != "" && m.Alias == name })
	if i < 0 {
		return Machine{}, false
	}
	return c.Machines[i], true
}

// Accelerator finds an accelerator by name; one that is not known is neither
// present nor usable.
func (c *Capabilities) Accelerator(name string) Accelerator {
	i := slices.IndexFunc(c.Accelerators, func(a Accelerator) bool { return a.Name == name })
	if i < 0 {
		return Accelerator{Name: name, Reason: "this QEMU does not have it"}
	}
	return c.Accelerators[i]
}

// BestAccelerator is the best usable accelerator.
func (c *Capabilities) BestAccelerator() (Accelerator, bool) {
	i := slices.IndexFunc(c.Accelerators, func(a Accelerator) bool { return a.Usable })
	if i < 0 {
		return Accelerator{}, false
	}
	return c.Accelerators[i], true
}

// HasDevice reports whether -device takes this type.
func (c *Capabilities) HasDevice(typ string) bool { return has(c.Devices, typ) }

// HasObject reports whether -object takes this type.
func (c *Capabilities) HasObject(typ string) bool { return has(c.Objects, typ) }

// HasProperty reports whether a device, object or machine type has a property.
// The probe asks only about some types (propertyTypes of qemuprobe), and machines with an alias.
func (c *Capabilities) HasProperty(typ, property string) bool {
	return has(c.Properties[typ], property)
}

// HasOption reports whether the command line has an option with this parameter,
// or at all when parameter is "".
func (c *Capabilities) HasOption(option, parameter string) bool {
	parameters, ok := c.Options[option]
	return ok && (parameter == "" || has(parameters, parameter))
}

// HasCommand reports whether the monitor has a command.
func (c *Capabilities) HasCommand(command string) bool { return has(c.Commands, command) }

// Has reports whether a fact holds.
func (c *Capabilities) Has(f Fact) bool { return has(c.Facts, f) }

// Model finds a CPU model by name.
func (a Accelerator) Model(name string) (CPUModel, bool) {
	i := slices.IndexFunc(a.Models, func(m CPUModel) bool { return m.Name == name })
	if i < 0 {
		return CPUModel{}, false
	}
	return a.Models[i], true
}

// BestModel names the CPU model that gives a guest all that the accelerator can.
func (a Accelerator) BestModel() string {
	if a.Name == "kvm" {
		return "host"
	}
	return "max"
}

var versioned = regexp.MustCompile(`-v[0-9]+$`)

// HasStableName reports whether a model describes a processor under a name that stays
// the same from one version of QEMU to the next.
func (m CPUModel) HasStableName() bool {
	return !versioned.MatchString(m.Name) && !slices.Contains([]string{"base", "host", "max"}, m.Name)
}

func has[S ~string](sorted []S, name S) bool {
	_, found := slices.BinarySearchFunc(sorted, name, func(a, b S) int { return cmp.Compare(a, b) })
	return found
}

// GuestArch is the architecture of the binary's guests as definitions name it.
func (c *Capabilities) GuestArch() string {
	if c.Arch == "i386" {
		return "i686"
	}
	return c.Arch
}

// Runs reports whether the binary runs guests of an architecture. x86_64 processors run i686 guests too.
func (c *Capabilities) Runs(arch string) bool {
	return arch == c.GuestArch() || arch == "i686" && c.Arch == "x86_64"
}

// AdoptFailures marks accelerators as unusable that do not work for another binary on this host. The trial
// guest for i386 ends early, and a KVM that runs it may fail with more.
func (c *Capabilities) AdoptFailures(other *Capabilities) {
	for i := range c.Accelerators {
		acc := &c.Accelerators[i]
		if judged := other.Accelerator(acc.Name); acc.Usable && !judged.Usable {
			acc.Usable, acc.Reason, acc.HostCPU, acc.HostCPUReason = false, judged.Reason, false, judged.Reason
		}
	}
}

// Canonical returns the full name of a machine type that is named by its alias,
// such as pc-q35-7.2 for q35; other names stay as they are.
func (c *Capabilities) Canonical(machine string) string {
	if m, ok := c.Machine(machine); ok {
		return m.Name
	}
	return machine
}
