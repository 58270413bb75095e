package network

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"libvirt.org/go/libvirtxml"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// Parse parses a network's document. Elements of the format that are not supported are refused by path; with
// strict, so are unknown elements. The result is checked but not completed: UUID, bridge name and MAC may be
// empty.
func Parse(doc string, strict bool) (Definition, error) {
	submitted, err := xmltree.Parse(doc)
	if err != nil {
		return Definition{}, err
	}
	if submitted.Name != "network" {
		return Definition{}, fault.New(fault.Invalid, fault.XML, "the document describes a %q, not a network", submitted.Name)
	}
	var x libvirtxml.Network
	if err := submitted.Unmarshal(&x); err != nil {
		return Definition{}, err
	}
	d, err := fromLibvirtXML(&x)
	if err != nil {
		return Definition{}, err
	}
	d.copyTexts(submitted)
	if err := checkOptions(submitted); err != nil {
		return Definition{}, err
	}
	if err := d.refuseUnsupported(submitted, &x, strict); err != nil {
		return Definition{}, err
	}
	return d, d.check()
}

// copyTexts reads what libvirtxml has no fields for, or would not preserve.
func (d *Definition) copyTexts(submitted *xmltree.Element) {
	for _, e := range submitted.Elements("title", "description", "metadata") {
		switch e.Name {
		case "title":
			d.Title = e.Text()
		case "description":
			d.Description = e.Text()
		case "metadata":
			d.Metadata = xmltree.FormatInner(e)
		}
	}
}

// checkOptions refuses an option for dnsmasq without a value; an empty value is one.
func checkOptions(submitted *xmltree.Element) error {
	for _, options := range submitted.Elements("options") {
		for _, o := range options.Elements("option") {
			if !slices.ContainsFunc(o.Attrs, func(a xmltree.Attr) bool { return a.Name == "value" }) {
				return fault.New(fault.Invalid, fault.XML, "an <option> for dnsmasq has no value")
			}
		}
	}
	return nil
}

func (d *Definition) refuseUnsupported(submitted *xmltree.Element, x *libvirtxml.Network, strict bool) error {
	known, err := toTree(x)
	if err != nil {
		return err
	}
	understood, err := toTree(d.toLibvirtXML())
	if err != nil {
		return err
	}
	if lost := xmltree.Unbuilt(withoutEmpty(submitted), known, understood); len(lost) > 0 {
		return unsupportedError(d.Name, lost)
	}
	if !strict {
		return nil
	}
	for _, path := range xmltree.Unknown(submitted, known) {
		if path != "title" && path != "description" && path != "@connections" {
			return fault.New(fault.Invalid, fault.XML, "the network's document has an unknown element or attribute: %s", path)
		}
	}
	return nil
}

// alternatives names alternatives to unsupported elements, by the last element of the path in this map.
var alternatives = map[string]string{
	"bandwidth":           "limit each guest by interface/bandwidth, or with virsh domiftune",
	"virtualport":         "use a Linux bridge",
	"vlan":                "use a bridge that is tagged already",
	"trustGuestRxFilters": "leave it out",
}

// maxListed is how many elements one error names.
const maxListed = 10

// unsupportedError refuses elements that Lodge does not support, by path and with an alternative.
func unsupportedError(name string, lost []string) error {
	advice := "leave it out"
	for word := range strings.FieldsFuncSeq(lost[0], func(r rune) bool { return strings.ContainsRune("/@[]", r) }) {
		advice = cmp.Or(alternatives[word], advice)
	}
	more := ""
	if len(lost) > maxListed {
		lost, more = lost[:maxListed], " and others"
	}
	return fault.New(fault.Unsupported, fault.Config, "network %q uses elements that are not supported: network/%s%s; %s",
		name, strings.Join(lost, ", network/"), more, advice)
}

// withoutEmpty returns a document without elements that request nothing: some clients print every part of their own
// model.
func withoutEmpty(root *xmltree.Element) *xmltree.Element {
	out := *root
	out.Children = slices.DeleteFunc(slices.Clone(root.Children), func(n xmltree.Node) bool {
		e, ok := n.(*xmltree.Element)
		return ok && !requestsAnything(e)
	})
	return &out
}

// defaultAttrs are attributes with which an element requests only the default.
var defaultAttrs = map[string]xmltree.Attr{
	"forward": {Name: "mode", Value: string(forwardIsolated)},
	"mtu":     {Name: "size", Value: "0"},
}

// requestsAnything says whether an element at the top of a document requests anything. Elements that libvirt refuses
// when empty are kept.
func requestsAnything(e *xmltree.Element) bool {
	switch e.Name {
	case "vlan", "virtualport":
		return true
	case "forward", "mtu":
		return len(e.Elements()) > 0 || len(e.Attrs) > 1 || len(e.Attrs) == 1 && e.Attrs[0] != defaultAttrs[e.Name]
	}
	return e.Says()
}

func toTree(x *libvirtxml.Network) (*xmltree.Element, error) {
	text, err := xmltree.Format(x)
	if err != nil {
		return nil, err
	}
	return xmltree.Parse(text)
}

// XML returns a definition's document as libvirt prints it, with the number of connected NICs.
func (d *Definition) XML(connections int) (string, error) {
	root, err := toTree(d.toLibvirtXML())
	if err != nil {
		return "", err
	}
	orderElements(root)
	if connections > 0 {
		root.Attrs = append(root.Attrs, xmltree.Attr{Name: "connections", Value: strconv.Itoa(connections)})
	}
	var texts []xmltree.Node
	for _, t := range [][2]string{{"title", d.Title}, {"description", d.Description}} {
		if t[1] != "" {
			texts = append(texts, &xmltree.Element{Name: t[0], Children: []xmltree.Node{xmltree.Text(t[1])}})
		}
	}
	at := len(root.Elements("name", "uuid"))
	root.Children = append(root.Children[:at:at], append(texts, root.Children[at:]...)...)
	return xmltree.Format(root)
}

// storedXML is the XML for the next daemon. A definition that could not be parsed again is refused: its text may be
// longer than the submitted one.
func (d *Definition) storedXML() (string, error) {
	doc, err := d.XML(0)
	return doc, fault.Wrap(err, fault.Invalid, fault.Network, "the definition of network %q could not be parsed again", d.Name)
}

// MarshalText returns a definition as text for a record that the next daemon reads.
func (d *Definition) MarshalText() ([]byte, error) {
	doc, err := d.storedXML()
	return []byte(doc), err
}

// UnmarshalText reads it.
func (d *Definition) UnmarshalText(doc []byte) (err error) {
	*d, err = Parse(string(doc), false)
	return err
}

// libvirtOrder is libvirt's order of the attributes and children of some elements, where libvirtxml's differs.
var libvirtOrder = map[string][]string{
	"forward":   {"dev", "mode"},
	"ip":        {"family", "address", "netmask", "prefix", "localPtr", "tftp", "dhcp"},
	"dns":       {"enable", "forwardPlainNames", "forwarder", "txt", "srv", "host"},
	"srv":       {"service", "protocol", "domain", "target", "port", "priority", "weight"},
	"portgroup": {"name", "default"},
}

func orderElements(e *xmltree.Element) {
	if order, ok := libvirtOrder[e.Name]; ok {
		slices.SortStableFunc(e.Attrs, func(a, b xmltree.Attr) int {
			return slices.Index(order, a.Name) - slices.Index(order, b.Name)
		})
		slices.SortStableFunc(e.Children, func(a, b xmltree.Node) int { return elementPosition(order, a) - elementPosition(order, b) })
	}
	for _, c := range e.Elements() {
		if c.Name != "metadata" {
			orderElements(c)
		}
	}
}

func elementPosition(order []string, n xmltree.Node) int {
	if e, ok := n.(*xmltree.Element); ok {
		return slices.Index(order, e.Name)
	}
	return -1
}
