package domainxml

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// Host holds the facts about the host's QEMU that Complete needs.
type Host struct {
	// Canonical returns the versioned name of a machine that is an alias ("q35");
	// nil leaves names as they are.
	Canonical func(machine string) string
	// Emulator is the QEMU binary of a guest that names none.
	Emulator string
	// CPUModel is the model that QEMU gives a guest without a <cpu>; empty: none is
	// filled in.
	CPUModel string
	// Random is the source of UUIDs and MAC addresses; nil is the system's source.
	Random io.Reader
}

// Complete adds the defaults that libvirt adds when a guest is defined: identity, amounts
// that follow from others, the devices that every guest of its machine has and
// the controllers that its devices need. It changes no given value, except
// that memory becomes the sum of the NUMA cells and of the modules if there are any.
func Complete(d *domain.Definition, h *Host) error {
	c := &completion{d: d, host: h, chipset: i440fx}
	for _, step := range []func() error{
		c.identity, c.memory, c.processors, c.boot, c.firmware, c.policies, c.devices,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

type completion struct {
	d       *domain.Definition
	host    *Host
	chipset chipset
	// there are the controllers that exist.
	there map[controllerPlace]bool
}

// chipset holds the properties of a machine type that decide about its devices.
type chipset int

const (
	i440fx chipset = iota
	q35
	microvm // no PCI, no PS/2
	isapc
)

func chipsetOf(machine string) chipset {
	switch {
	case machine == "q35" || strings.HasPrefix(machine, "pc-q35"):
		return q35
	case strings.HasPrefix(machine, "microvm"):
		return microvm
	case machine == "isapc":
		return isapc
	}
	return i440fx
}

func invalid(format string, args ...any) error {
	return fault.New(fault.Invalid, fault.XML, format, args...)
}

func (c *completion) random(n int) ([]byte, error) {
	source := c.host.Random
	if source == nil {
		source = rand.Reader
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(source, b); err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot read random bytes")
	}
	return b, nil
}

// uuid makes a random UUID, by RFC 4122.
func (c *completion) uuid() (string, error) {
	b, err := c.random(16)
	if err != nil {
		return "", err
	}
	id := uuid.UUID(b)
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	return id.String(), nil
}

// CheckName refuses names, titles and identifiers of a domain that are not valid.
func CheckName(d *domain.Definition) error {
	switch {
	case d.Name == "":
		return invalid("the domain has no name")
	case strings.ContainsAny(d.Name, "/\n"):
		return invalid("name %q contains a slash or a line end", d.Name)
	case strings.Contains(d.Title, "\n"):
		return invalid("the title is more than one line")
	}
	return nil
}

func (c *completion) identity() error {
	d := c.d
	if err := CheckName(d); err != nil {
		return err
	}
	if _, err := uuid.Parse(d.GenID); d.GenID != "" && d.GenID != "auto" && err != nil {
		return invalid("genid %q is not a UUID", d.GenID)
	}
	if d.GenID == "auto" { // kept for good: a guest that is only restarted is no copy
		var err error
		if d.GenID, err = c.uuid(); err != nil {
			return err
		}
	}
	if d.UUID == "" {
		d.UUID = saidInSysInfo(d)
	}
	if d.UUID == "" {
		var err error
		d.UUID, err = c.uuid()
		return err
	}
	id, err := uuid.Parse(d.UUID)
	if err != nil {
		return invalid("%q is not a UUID", d.UUID)
	}
	d.UUID = id.String()
	return nil
}

// saidInSysInfo returns the UUID in the definition's SMBIOS data, or "".
func saidInSysInfo(d *domain.Definition) string {
	if d.SysInfo != nil {
		for _, e := range d.SysInfo.System {
			if e.Name == "uuid" {
				return e.Value
			}
		}
	}
	return ""
}

func (c *completion) memory() error {
	d := c.d
	if len(d.CPU.Cells) > MaxCells {
		return invalid("%d NUMA cells are more than the %d that a guest can have", len(d.CPU.Cells), MaxCells)
	}
	if len(d.CPU.Cells) > 0 {
		d.Memory = 0
		for _, cell := range d.CPU.Cells {
			if d.Memory += cell.Memory; d.Memory > 1<<62 {
				return invalid("the cells have too much memory")
			}
		}
		for _, m := range d.Devices.Memories {
			m.Size = m.WholeSize()
			if d.Memory += m.Size; d.Memory > 1<<62 {
				return invalid("the memory devices have too much memory")
			}
		}
	}
	if d.Memory == 0 {
		d.Memory = d.CurrentMemory
	}
	if d.Memory == 0 {
		return invalid("the domain has no memory")
	}
	if d.CurrentMemory == 0 || d.CurrentMemory > d.Memory {
		d.CurrentMemory = d.Memory
	}
	return nil
}

// Bounds on one guest, at or above what any machine takes.
const (
	MaxVCPUs     = 4096
	MaxCells     = 128
	MaxDevices   = 4096
	MaxIOThreads = 4096
	MaxQueues    = 256 // of an interface, as the kernel has it
)

func (c *completion) processors() error {
	d := c.d
	v := &d.VCPUs
	if v.Max == 0 {
		v.Max = 1
	}
	if v.Current == 0 {
		v.Current = v.Max
	}
	switch {
	case v.Max > MaxVCPUs:
		return invalid("%d vcpus are more than the %d that a guest can have", v.Max, MaxVCPUs)
	case v.Current > v.Max:
		return fault.New(fault.Unsupported, fault.Config, "%d current vcpus are more than the maximum of %d", v.Current, v.Max)
	case d.IOThreads > MaxIOThreads:
		return invalid("%d iothreads are more than the %d that a guest can have", d.IOThreads, MaxIOThreads)
	}
	if d.NUMA.Placement == "auto" && v.CPUs.IsEmpty() {
		v.Placement = "auto"
	}
	setDefault(&v.Placement, "static")
	if v.Placement == "auto" && d.NUMA.Nodes.IsEmpty() {
		setDefault(&d.NUMA.Mode, "strict")
		setDefault(&d.NUMA.Placement, "auto")
	}
	slices.SortStableFunc(d.CPU.Cells, func(a, b domain.Cell) int { return cmp.Compare(a.ID, b.ID) })
	if err := d.CheckDistances(); err != nil {
		return err
	}
	completeDistances(d.CPU.Cells)
	return c.cpu()
}

// completeDistances fills the table of distances if the definition has a part of it: a
// distance is the same both ways, 10 to the cell itself, and 20 by default.
func completeDistances(cells []domain.Cell) {
	said := map[[2]uint]uint{}
	for _, from := range cells {
		for _, to := range from.Distances {
			said[[2]uint{from.ID, to.Cell}] = to.Value
		}
	}
	if len(said) == 0 {
		return
	}
	for i := range cells {
		from := &cells[i]
		from.Distances = nil
		for _, to := range cells {
			value := cmp.Or(said[[2]uint{from.ID, to.ID}], said[[2]uint{to.ID, from.ID}])
			if setDefault(&value, 20); to.ID == from.ID {
				value = 10
			}
			from.Distances = append(from.Distances, domain.Distance{Cell: to.ID, Value: value})
		}
	}
}

func (c *completion) cpu() error {
	cpu := &c.d.CPU
	if err := cpu.CheckModel(); err != nil {
		return err
	}
	if cpu.Mode == "" && cpu.Model != "" {
		cpu.Mode = "custom"
	}
	switch {
	case cpu.Model == "" && (cpu.Mode == "" || cpu.Mode == "custom"):
		if c.host.CPUModel != "" {
			cpu.Mode, cpu.Match, cpu.Check = "custom", "exact", "none"
			cpu.Model, cpu.Fallback = c.host.CPUModel, "forbid"
		}
	case cpu.Mode == "custom":
		setDefault(&cpu.Match, "exact")
		if c.d.Virt == "qemu" {
			setDefault(&cpu.Check, "none") // emulation can do what the host cannot
		}
		setDefault(&cpu.Check, "partial")
		setDefault(&cpu.Fallback, "allow")
	case cpu.Mode == "host-model":
		setDefault(&cpu.Check, "partial")
	case cpu.Mode == "host-passthrough" || cpu.Mode == "maximum":
		setDefault(&cpu.Check, "none")
		if cpu.Migratable == device.Unset {
			cpu.Migratable = device.On
		}
	}
	t := cpu.Topology
	if t == nil {
		return nil
	}
	setDefault(&t.Dies, 1)
	clusters := max(t.Clusters, 1)
	for _, n := range []uint{t.Sockets, t.Dies, t.Cores, t.Threads, clusters} {
		if n == 0 || n > MaxVCPUs {
			return invalid("the CPU topology needs sockets, cores and threads, each from 1 to %d", MaxVCPUs)
		}
	}
	if product := t.Sockets * t.Dies * clusters * t.Cores * t.Threads; product != c.d.VCPUs.Max {
		return fault.New(fault.Unsupported, fault.Config,
			"the CPU topology has %d vcpus and the domain %d", product, c.d.VCPUs.Max)
	}
	return nil
}

func setDefault[T comparable](p *T, value T) {
	var zero T
	if *p == zero {
		*p = value
	}
}

func (c *completion) boot() error {
	o := &c.d.OS
	setDefault(&o.Arch, "x86_64")
	setDefault(&o.Machine, "pc")
	if c.host.Canonical != nil {
		o.Machine = c.host.Canonical(o.Machine)
	}
	c.chipset = chipsetOf(o.Machine)
	if o.Loader.Path != "" {
		setDefault(&o.Loader.Type, "rom")
	}
	ordered, err := CheckBoot(c.d)
	if err == nil && !ordered && len(o.BootDevices) == 0 {
		o.BootDevices = []string{"hd"}
	}
	return err
}

// CheckBoot refuses a boot order in both <os> and the devices, and reports whether devices have one.
func CheckBoot(d *domain.Definition) (ordered bool, err error) {
	taken := map[uint]bool{}
	for _, dev := range d.Devices.All() {
		order := dev.Common().BootOrder
		if order == 0 {
			continue
		}
		if taken[order] {
			return true, fault.New(fault.Unsupported, fault.Config, "boot order %d is given to two devices", order)
		}
		taken[order] = true
	}
	if len(taken) > 0 && len(d.OS.BootDevices) > 0 {
		return true, fault.New(fault.Unsupported, fault.Config,
			"boot order of devices cannot be used together with boot elements in os")
	}
	return len(taken) > 0, nil
}

func (c *completion) policies() error {
	d := c.d
	setDefault(&d.OnPoweroff, "destroy")
	setDefault(&d.OnReboot, "restart")
	setDefault(&d.OnCrash, "destroy")
	setDefault(&d.Clock.Offset, "utc")
	if d.Features.HyperV != nil {
		setDefault(&d.Features.HyperV.Mode, "custom")
	}
	if d.Clock.Offset == "variable" {
		setDefault(&d.Clock.Adjustment, "0")
		setDefault(&d.Clock.Basis, "utc")
	}
	return nil
}

func (c *completion) macAddress() (string, error) {
	b, err := c.random(3)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("52:54:00:%02x:%02x:%02x", b[0], b[1], b[2]), nil
}
