package qemu

import (
	"slices"

	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

// memoryDevices makes the memory devices, in addition to the memory of the cells.
func (b *builder) memoryDevices() error {
	for _, m := range b.Definition.Devices.Memories {
		if err := b.memoryDevice(m); err != nil {
			return err
		}
	}
	return nil
}

// memoryDevice makes one memory device: its backend, and the slot that it occupies. The guest
// learns of it through ACPI.
func (b *builder) memoryDevice(m *device.Memory) error {
	d := b.Definition
	if !d.Features.ACPI {
		err := b.unlessDryRun(unsupported("a memory device needs ACPI, by which the guest is told of it: add <features><acpi/></features>"))
		if err != nil {
			return err
		}
	}
	at, ok := m.Address.(device.DIMM)
	if !ok {
		return invalid("memory device %s has no slot", m.Alias)
	}
	cell := slices.IndexFunc(d.CPU.Cells, func(c domain.Cell) bool { return c.ID == m.Cell })
	if cell < 0 {
		return invalid("memory device %s belongs to no cell", m.Alias)
	}
	from := b.ramOf(&d.CPU.Cells[cell])
	if m.Access != "" {
		from.shared = m.Access == "shared"
	}
	if m.PageSize > 0 {
		from.huge, from.pages = m.PageSize > topology.BasePage, m.PageSize
	}
	if !m.Nodes.IsEmpty() {
		from.nodes = m.Nodes
	}
	if err := b.memoryBackend("mem"+m.Alias, m.Size, from); err != nil {
		return err
	}
	props := properties{{"node", m.Cell}, {"memdev", "mem" + m.Alias}, {"id", m.Alias}, {"slot", at.Slot}}
	if at.Base > 0 {
		props.add("addr", at.Base)
	}
	return b.addDevice("pc-dimm", props)
}
