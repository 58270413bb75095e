package guest

import (
	"fmt"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemucaps"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// A guest without a source of random numbers makes its keys from what little a
// machine without users and disks of its own has to offer. So Lodge gives one to a
// machine that is new and says nothing of it. Everything else stays as it is: what
// a client gives back that it was given, an export, an imported tree, a saved
// image. A machine that exists already keeps its hardware.

// givenRNG is the alias of a source that Lodge gave. It tells whose idea the device
// was in every document that shows it, goes where the definition goes, and ends
// with the device, so that nothing need be kept beside.
const givenRNG = "ua-lodge-rng"

// MarksNamespace is that of the element in <metadata> by which users tell Lodge
// what libvirt has no words for. Room fleet reads the most of it.
const MarksNamespace = "https://lodge-kvm.github.io/xmlns/guest/1.0"

// NewRNG is the source that Lodge gives: one that neither waits nor runs dry.
func NewRNG() *device.RNG {
	return &device.RNG{Info: device.Info{Alias: givenRNG}, Model: "virtio", Backend: "random", Path: "/dev/urandom"}
}

// lacksRNG says whether a definition, as its document says it, is that of a new
// machine for which nobody has decided about random numbers. What libvirt and Lodge
// write has its PCI root and addresses in it: such a machine has been before.
func lacksRNG(d *domain.Definition) bool {
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

// declinesRNG says whether a guest's marks have rng="no". Marks that cannot be read
// say nothing; whoever reads all of them says what is wrong.
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

// withRNG gives a complete definition with a source besides, in the place that is
// left for it: no other device moves. It gives nil where there is no such place (the
// machine has no PCI, or QEMU no such device).
func withRNG(d *domain.Definition, caps *qemucaps.Capabilities) *domain.Definition {
	if !caps.HasDevice("virtio-rng-pci") || !caps.HasObject("rng-random") || d.Devices.ByAlias(givenRNG) != nil {
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

// understood is a document, understood: as it is, and with the source of random
// numbers that a new machine gets; nil: it gets none.
type understood struct{ plain, given *domain.Definition }

// after chooses by what the guest has been till now; nil: it is new. One without a
// source stays without, and one that was given one keeps it when its user gives the
// same words again.
func (u understood) after(before *domain.Definition) *domain.Definition {
	if u.given != nil && (before == nil || before.Devices.ByAlias(givenRNG) != nil) {
		return u.given
	}
	return u.plain
}

// current is what the guest is now, for the loop; nil: nothing yet.
func (g *Guest) current() *domain.Definition {
	if g.inactive == nil && g.run != nil {
		return g.run.def
	}
	return g.inactive
}

// Decision is something that Lodge chose for a guest by itself.
type Decision struct{ What, Why, Undo string }

func (d Decision) String() string { return fmt.Sprintf("%s: %s; undo: %s", d.What, d.Why, d.Undo) }

// tellDecisions notes in the log what was chosen for a guest that is new.
func (g *Guest) tellDecisions() {
	for _, d := range g.View().Decisions() {
		g.log.Info("a guest was given what its definition does not say", "what", d.What, "why", d.Why, "undo", d.Undo)
	}
}

// Decisions tells what Lodge chose for the guest by itself.
func (v *View) Decisions() []Decision {
	d := v.Current()
	if d == nil || d.Devices.ByAlias(givenRNG) == nil {
		return nil
	}
	undo := fmt.Sprintf("virsh detach-device-alias %s %s --config", fault.Word(v.Name), givenRNG)
	if !v.Persistent {
		undo = `a document with rng="no" among its marks`
	}
	return []Decision{{
		What: "a virtio-rng with the host's /dev/urandom",
		Why:  fmt.Sprintf("its first definition, of a new %s, named no <rng>", d.OS.Machine),
		Undo: undo,
	}}
}
