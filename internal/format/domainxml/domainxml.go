// Package domainxml turns libvirt's domain XML into a domain.Definition and
// back. Each element is described once, for both directions (codec.go), so
// that a written document reads back as the same definition.
//
// Reading ends in three ways. A document that is broken or contradicts itself
// is fault.Invalid about XML. A document with something that libvirt knows
// and Lodge has not built is fault.Unsupported, naming the element: no
// request is dropped silently. Everything else becomes a
// Definition, completed with the defaults that libvirt adds at definition time
// (complete.go). The model of libvirtxml decides which elements libvirt has.
//
// This package holds the form of domain documents and the defaults of
// definitions. Files, the host and QEMU are outside it.
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

// Options select how a document is read.
type Options struct {
	// Validate refuses elements and attributes that libvirt does not know, which
	// are ignored otherwise.
	Validate bool
	// Submitted applies libvirt's refusals. It is for documents that users send,
	// and not for stored ones.
	Submitted bool
	// Active keeps the values that only a running guest has: aliases, ports, paths of ptys.
	Active bool
	// Host completes the definition. Nil leaves it without defaults.
	Host *Host
}

// Style selects how a definition is written.
type Style struct {
	// Active writes the values that only a running guest has, and ID as its number.
	Active bool
	ID     int
	// Secure writes passwords.
	Secure bool
	// Settled says that the definition has no values that only a running guest
	// has, such as one that was parsed; it need not be copied then.
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
	visited, err := read(root, def, describeDomain, opts.Submitted)
	if err != nil {
		return nil, err
	}
	understood := written(def, "domain", describeDomain)
	if err := explainLoss(root, understood, throughModel[libvirtxml.Domain], opts.Validate, visited); err != nil {
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

// ParseDevice reads one device for a hot plug.
func ParseDevice(doc string, opts Options) (device.Device, error) {
	root, err := xmltree.Parse(doc)
	if err != nil {
		return nil, err
	}
	kind, ok := kinds[root.Name]
	if !ok {
		// libvirt's kind depends on whether it knows the element; both are refusals.
		return nil, fault.New(fault.Unsupported, fault.Config, "device <%s> is not supported", root.Name)
	}
	d := kind.make()
	visited, err := read(root, &d, kind.describe, opts.Submitted)
	if err != nil {
		return nil, err
	}
	understood := written(&d, root.Name, kind.describe)
	if err := explainLoss(root, understood, kind.through, opts.Validate, visited); err != nil {
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

// read returns the visited elements.
func read[T any](root *xmltree.Element, value *T, describe func(*node, *T), strict bool) ([]*xmltree.Element, error) {
	n := &node{pass: &pass{strict: strict}, e: root}
	describe(n, value)
	return n.visited, n.err
}

// written returns the tree of everything that was understood.
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

// through reads and writes a document with libvirtxml, which keeps everything that it knows.
type through func(*xmltree.Element) (*xmltree.Element, error)

// throughModel returns the part of a document that libvirtxml keeps when it reads it
// into its type L.
func throughModel[L any](root *xmltree.Element) (*xmltree.Element, error) {
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

// explainLoss finds the parts of a document that were not understood. It refuses them if
// libvirt would: because libvirt knows them, or because the user
// asked for validation.
func explainLoss(submitted, understood *xmltree.Element, through through, validate bool, visited []*xmltree.Element) error {
	isBuilt := func(e *xmltree.Element) bool { return slices.Contains(visited, e) }
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
		if validate { // an element that Lodge understands is known even if libvirtxml drops it
			unknown = append(unknown, rest.Unknown(known)...)
		}
	}
	if len(unknown) > 0 {
		return fault.New(fault.Invalid, fault.XML, "document failed to validate: unknown %s", strings.Join(unknown, ", "))
	}
	return nil
}

// mostLost bounds the elements that are explained at once.
const mostLost = 64
