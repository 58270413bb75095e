package provision

import (
	"fmt"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemucaps"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// A guest without a random number source makes its keys from the little entropy that a machine without
// users and disks has. So Lodge adds a source to a new machine if its document mentions none. It changes
// nothing else: not a document that a client returns, an export, an imported tree, or a saved image. An
// existing machine keeps its hardware.

// addedRNGAlias is the alias of a source that Lodge added. The alias shows in every document where the device
// came from. It moves with the definition and ends with the device, so nothing else must be stored.
const addedRNGAlias = "ua-lodge-rng"

// MarksNamespace is the namespace of the element in <metadata> for settings that libvirt cannot express.
// Package fleet reads most of it.
const MarksNamespace = "https://lodge-kvm.github.io/xmlns/guest/1.0"

// NewRNG returns the source that Lodge adds: /dev/urandom, which neither blocks nor runs dry.
func NewRNG() *device.RNG {
	return &device.RNG{Info: device.Info{Alias: addedRNGAlias}, Model: "virtio", Backend: "random", Path: "/dev/urandom"}
}

// LacksRNG reports whether a definition, as its document says it, is that of a new machine without any
// decision about random numbers. Documents written by libvirt or Lodge have a PCI root and addresses: such
// a machine existed before.
func LacksRNG(d *domain.Definition) bool {
	if len(d.Devices.RNGs) > 0 || declinesRNG(d.Metadata) {
		return false
	}
	for _, dev := range d.Devices.All() {
		if _, placed := dev.Common().Address.(device.PCI); placed {
			return false
		}
		if c, ok := dev.(*device.Controller); ok && c.Type == "pci" && c.Index == 0 {
			return false
		}
	}
	return true
}

// declinesRNG reports whether a guest's marks have rng="no". Marks that cannot be parsed count as absent
// here: the code that reads all of them reports the error.
func declinesRNG(metadata string) bool {
	if !strings.Contains(metadata, MarksNamespace) {
		return false
	}
	doc, found, err := xmltree.MetadataElement(metadata, MarksNamespace)
	if err != nil || !found {
		return false
	}
	marks, err := xmltree.Parse(doc)
	return err == nil && marks.Attr("rng") == "no"
}

// WithRNG returns a copy of a complete definition with a random number source in a free slot, so that no
// other device moves. It returns nil if there is no such slot: the machine has no PCI, or QEMU lacks the
// device.
func WithRNG(d *domain.Definition, caps *qemucaps.Capabilities) *domain.Definition {
	if !caps.HasDevice("virtio-rng-pci") || !caps.HasObject("rng-random") || d.Devices.ByAlias(addedRNGAlias) != nil {
		return nil
	}
	with, rng := d.Clone(), NewRNG()
	if with.Add(rng) != nil || qemu.PlaceAdded(with) != nil {
		return nil
	}
	if _, placed := rng.Address.(device.PCI); !placed {
		return nil
	}
	return with
}

// ParsedDefinition is a parsed document: Plain as it is, and WithRNG with the added random number source.
// WithRNG is nil if none is added.
type ParsedDefinition struct{ Plain, WithRNG *domain.Definition }

// Choose chooses by the guest's previous definition; nil: the guest is new. A guest without a source stays
// without. A guest that Lodge gave one keeps it when its user defines the same document again.
func (u ParsedDefinition) Choose(before *domain.Definition) *domain.Definition {
	if u.WithRNG != nil && (before == nil || before.Devices.ByAlias(addedRNGAlias) != nil) {
		return u.WithRNG
	}
	return u.Plain
}

// CurrentDefinition returns the guest's present definition, for the loop. Nil: there is none yet.
func CurrentDefinition(g *machine.Guest) *domain.Definition {
	if g.Inactive == nil && g.Instance != nil {
		return g.Instance.Definition
	}
	return g.Inactive
}

// Decision is a setting that Lodge chose for a guest without being asked: the setting, the reason, and how to
// undo it.
type Decision struct{ What, Why, Undo string }

func (d Decision) String() string { return fmt.Sprintf("%s: %s; undo: %s", d.What, d.Why, d.Undo) }

// ReportDecisions logs the settings that Lodge chose for a new guest.
func ReportDecisions(g *machine.Guest) {
	for _, d := range Decisions(g.View()) {
		g.Log.Info("device added to a guest whose definition has none", "what", d.What, "why", d.Why, "undo", d.Undo)
	}
}

// Decisions returns the settings that Lodge chose for the guest without being asked.
func Decisions(v *machine.View) []Decision {
	d := v.Current()
	if d == nil || d.Devices.ByAlias(addedRNGAlias) == nil {
		return nil
	}
	undo := fmt.Sprintf("virsh detach-device-alias %s %s --config", fault.Word(v.Name), addedRNGAlias)
	if !v.Persistent {
		undo = `a document with rng="no" among its marks`
	}
	return []Decision{{
		What: "a virtio-rng with the host's /dev/urandom",
		Why:  fmt.Sprintf("its first definition, of a new %s, named no <rng>", d.OS.Machine),
		Undo: undo,
	}}
}
