// Package domainxml turns libvirt's domain XML into a domain.Definition and
// back. Each element is described once, for both directions (codec.go), so
// that what is written is what would be read.
//
// Reading ends in three ways. A document that is broken or says something
// impossible is fault.Invalid about XML. One that says something libvirt knows
// and Lodge has not built is fault.Unsupported, naming the element: nothing
// that a user asked for is dropped in silence. Everything else becomes a
// Definition, completed with what libvirt would have added at definition time
// (complete.go). What libvirt knows is decided by libvirtxml's model of it.
//
// What belongs here: the shape of domain documents and the defaults of
// definitions. What does not: files, the host, QEMU.
package domainxml

import (
	"slices"
	"strings"

	"libvirt.org/go/libvirtxml"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// Options say how a document is to be read.
type Options struct {
	// Validate refuses elements and attributes that libvirt does not know, which
	// are ignored otherwise.
	Validate bool
	// Submitted holds a document to what libvirt refuses. It is for what users send,
	// and not for what Lodge has stored.
	Submitted bool
	// Active keeps what only a running guest has: aliases, ports, paths of ptys.
	Active bool
	// Host completes the definition. Nil leaves it as it was said.
	Host *Host
}

// Style says how a definition is to be written.
type Style struct {
	// Active writes what only a running guest has, and ID as its number.
	Active bool
	ID     int
	// Secure writes passwords.
	Secure bool
	// Settled says that the definition has nothing in it that only a running guest
	// has, as one that was parsed; it need not be copied then.
	Settled bool
}

// Parse reads the definition of a guest.
func Parse(doc string, opts Options) (*domain.Definition, error) {
	root, err := xmltree.Parse(doc)
	if err != nil {
		return nil, err
	}
	if root.Name != "domain" {
		return nil, fault.New(fault.Invalid, fault.XML, "expected a <domain> element, not <%s>", root.Name)
	}
	def := new(domain.Definition)
	looked, err := read(root, def, describeDomain, opts.Submitted)
	if err != nil {
		return nil, err
	}
	understood := written(def, "domain", describeDomain)
	if err := explainLoss(root, understood, throughLibvirt[libvirtxml.Domain], opts.Validate, looked); err != nil {
		return nil, err
	}
	if !opts.Active {
		Settle(def)
	}
	if opts.Host != nil {
		return def, Complete(def, opts.Host)
	}
	return def, nil
}

// Format writes a definition as virsh dumpxml of libvirt 9.0 shows it.
func Format(def *domain.Definition, style Style) (string, error) {
	if !style.Active && !style.Settled {
		def = def.Clone()
		Settle(def)
	}
	return render(def, "domain", describeDomain, style)
}

// ParseDevice reads one device, as it is given to be plugged in.
func ParseDevice(doc string, opts Options) (device.Device, error) {
	root, err := xmltree.Parse(doc)
	if err != nil {
		return nil, err
	}
	kind, ok := kinds[root.Name]
	if !ok {
		// Which is right depends on whether libvirt knows it; both are refusals.
		return nil, fault.New(fault.Unsupported, fault.Config, "device <%s> is not supported", root.Name)
	}
	d := kind.make()
	looked, err := read(root, &d, kind.describe, opts.Submitted)
	if err != nil {
		return nil, err
	}
	understood := written(&d, root.Name, kind.describe)
	if err := explainLoss(root, understood, kind.through, opts.Validate, looked); err != nil {
		return nil, err
	}
	if !opts.Active {
		settleDevice(d)
	}
	return d, nil
}

// FormatDevice writes one device.
func FormatDevice(d device.Device, style Style) (string, error) {
	return render(&d, d.Kind(), kinds[d.Kind()].describe, style)
}

// read gives the elements that are built.
func read[T any](root *xmltree.Element, value *T, describe func(*node, *T), strict bool) ([]*xmltree.Element, error) {
	n := &node{pass: &pass{strict: strict}, e: root}
	describe(n, value)
	return n.looked, n.err
}

// written is the tree of everything that was understood.
func written[T any](value *T, name string, describe func(*node, *T)) *xmltree.Element {
	n := &node{
		pass: &pass{writing: true, style: Style{Active: true, Secure: true}},
		e:    &xmltree.Element{Name: name},
	}
	describe(n, value)
	return n.e
}

func render[T any](value *T, name string, describe func(*node, *T), style Style) (string, error) {
	n := &node{pass: &pass{writing: true, style: style}, e: &xmltree.Element{Name: name}}
	describe(n, value)
	if n.err != nil {
		return "", n.err
	}
	return xmltree.Format(n.e)
}

// through reads and writes a document with libvirtxml, which keeps what it knows.
type through func(*xmltree.Element) (*xmltree.Element, error)

// throughLibvirt gives what is left of a document once libvirtxml has read it
// into its type L.
func throughLibvirt[L any](root *xmltree.Element) (*xmltree.Element, error) {
	// Metadata may use prefixes that libvirtxml does not keep.
	bare := *root
	bare.Children = slices.DeleteFunc(slices.Clone(root.Children), func(n xmltree.Node) bool {
		e, ok := n.(*xmltree.Element)
		return ok && e.Name == "metadata"
	})
	known := new(L)
	if err := bare.Unmarshal(known); err != nil {
		return nil, err
	}
	text, err := xmltree.Format(known)
	if err != nil {
		return nil, err
	}
	return xmltree.Parse(text)
}

// explainLoss finds what of a document was not understood, and refuses it when
// libvirt would have: because it is known there, or because the user
// wants to hear of anything unknown.
func explainLoss(submitted, understood *xmltree.Element, through through, validate bool, looked []*xmltree.Element) error {
	isBuilt := func(e *xmltree.Element) bool { return slices.Contains(looked, e) }
	var unknown []string
	for _, rest := range xmltree.Rests(submitted, understood, mostLost) {
		if rest.IsUnderstood() {
			continue
		}
		known, err := through(rest.Submitted)
		if err != nil {
			return err
		}
		if lost := rest.Unbuilt(known, isBuilt); len(lost) > 0 {
			return errUnbuilt(base(submitted), lost)
		}
		if validate { // what libvirtxml drops and Lodge understands is known all the same
			unknown = append(unknown, rest.Unknown(known)...)
		}
	}
	if len(unknown) > 0 {
		return fault.New(fault.Invalid, fault.XML, "document failed to validate: unknown %s", strings.Join(unknown, ", "))
	}
	return nil
}

// mostLost is how many elements that were not understood are looked up and named at once.
const mostLost = 64
