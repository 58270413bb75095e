package domainxml

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/topology"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// pass is one walk over a document and its values, in either direction. Each element is described once, by a function that names its
// attributes and children beside the fields they belong to; reading fills the
// fields, writing fills the document, in the order of the description.
type pass struct {
	writing bool
	style   Style
	err     error // the first one; later ones are dropped
	// strict reads a document of a user: it refuses what libvirt refuses. A stored document
	// is read without these rules, so that a rule added later loses no guest.
	strict bool
	// visited are the elements that a description has visited.
	visited []*xmltree.Element
	// spare is an empty child, kept for the next one: most children stay empty.
	spare *node
	// attrs is a block of attributes. owner has the first of them; the rest is for the
	// elements that follow.
	attrs []xmltree.Attr
	owner *xmltree.Element
}

// node is an element during a pass.
type node struct {
	*pass
	e      *xmltree.Element
	parent *node
}

func (p *pass) reading() bool { return !p.writing }

// path names the element for messages, as in devices/disk[2]/driver.
func (n *node) path() string {
	if n.parent == nil {
		return base(n.e)
	}
	name := n.e.Name
	if same := n.parent.e.Elements(n.e.Name); len(same) > 1 {
		name = fmt.Sprintf("%s[%d]", name, slices.Index(same, n.e)+1)
	}
	if up := n.parent.path(); up != "" {
		return up + "/" + name
	}
	return name
}

// base is the path of the document's root: a single device has its name
// there, and a domain has an empty path.
func base(root *xmltree.Element) string {
	if root.Name == "domain" {
		return ""
	}
	return root.Name
}

func (n *node) at(attr string) string {
	if attr == "" {
		return cmp.Or(n.path(), n.e.Name) // the root has no path
	}
	return strings.TrimPrefix(n.path()+"/@"+attr, "/")
}

// invalid says that a value is wrong; attr "" is the element itself.
func (n *node) invalid(attr, format string, args ...any) {
	if n.err != nil {
		return // to name an element costs a search among its siblings
	}
	n.fail(fault.New(fault.Invalid, fault.XML, "%s: %s", n.at(attr), fmt.Sprintf(format, args...)))
}

// refuse rejects a value that is not supported.
func (n *node) refuse(attr, format string, args ...any) {
	if n.err != nil {
		return
	}
	n.fail(fault.New(fault.Unsupported, fault.Config, "%s: %s", n.at(attr), fmt.Sprintf(format, args...)))
}

func (n *node) fail(err error) {
	if n.err == nil {
		n.err = err
	}
}

// add makes a child while writing; the caller appends it when it has content.
func (n *node) add(name string) *node {
	c := n.spare
	if n.spare = nil; c == nil {
		both := new(struct {
			node    node
			element xmltree.Element
		})
		c, both.node.e = &both.node, &both.element
	}
	c.pass, c.parent = n.pass, n
	c.e.Space, c.e.Prefix, c.e.Name = n.e.Space, n.e.Prefix, name
	return c
}

func (n *node) append(c *node) { n.e.Children = append(n.e.Children, c.e) }

func (n *node) empty() bool { return len(n.e.Attrs) == 0 && len(n.e.Children) == 0 }

// child returns a child element while reading, or nil.
func (n *node) child(name string) *node {
	if e := n.e.Child(name); e != nil {
		n.look(e)
		return &node{n.pass, e, n}
	}
	return nil
}

// look notes that the description visits an element.
func (p *pass) look(e *xmltree.Element) { p.visited = append(p.visited, e) }

// attrChunk is how many attributes are made at once.
const attrChunk = 64

func (n *node) set(attr, value string) {
	if n.e.Attrs == nil {
		n.own(n.e)
	}
	n.e.Attrs = append(n.e.Attrs, xmltree.Attr{Name: attr, Value: value})
}

// own gives an element the unused rest of the last block of attributes.
func (p *pass) own(e *xmltree.Element) {
	if p.owner != nil {
		used := len(p.owner.Attrs)
		p.owner.Attrs = p.owner.Attrs[:used:used]
		p.attrs = p.attrs[min(used, len(p.attrs)):]
	}
	if len(p.attrs) == 0 {
		p.attrs = make([]xmltree.Attr, attrChunk)
	}
	e.Attrs, p.owner = p.attrs[:0], e
}

// implied sets an attribute to libvirt's default if the document has none.
func (n *node) implied(attr, value string) {
	if n.reading() && !slices.ContainsFunc(n.e.Attrs, func(a xmltree.Attr) bool { return a.Name == attr }) {
		n.e.Attrs = append(n.e.Attrs, xmltree.Attr{Name: attr, Value: value})
	}
}

// ignore removes an attribute or, with attr "", the whole element from a document
// that is read: it is known, and has no effect on a definition.
func (n *node) ignore(attr string) {
	if n.writing {
		return
	}
	if attr != "" {
		n.e.Attrs = slices.DeleteFunc(slices.Clone(n.e.Attrs), func(a xmltree.Attr) bool { return a.Name == attr })
		return
	}
	up := n.parent.e
	up.Children = slices.DeleteFunc(slices.Clone(up.Children), func(c xmltree.Node) bool { return c == xmltree.Node(n.e) })
}

// in describes a child that is written only if it has content.
func (n *node) in(name string, describe func(*node)) {
	if n.reading() {
		if c := n.child(name); c != nil {
			if describe(c); c.e.IsEmpty() {
				c.ignore("")
			}
		}
		return
	}
	c := n.add(name)
	if describe(c); !c.empty() {
		n.append(c)
		return
	}
	n.spare = c
}

// inIf describes a child whose mere presence has a meaning.
func (n *node) inIf(name string, present *bool, describe func(*node)) {
	if n.reading() {
		c := n.child(name)
		if *present = c != nil; c != nil {
			describe(c)
		}
		return
	}
	if *present {
		c := n.add(name)
		describe(c)
		n.append(c)
	}
}

// once refuses a second child of the same name, because only the first would count.
func (n *node) once(names ...string) {
	if !n.strict {
		return
	}
	for _, name := range names {
		if len(n.e.Elements(name)) > 1 {
			n.invalid("", "there can be only one <%s>; leave the others out", name)
		}
	}
}

// present refuses an element that lacks attributes.
func (n *node) present(attrs ...string) {
	if !n.strict {
		return
	}
	for _, attr := range attrs {
		if n.e.Attr(attr) == "" {
			n.invalid("", "attribute %s is missing", attr)
		}
	}
}

// positive is num for a number that must not be 0 if it is given.
func positive[T number](n *node, attr string, p *T) {
	text := n.e.Attr(attr)
	if num(n, attr, p); n.strict && text != "" && *p == 0 {
		n.invalid(attr, "%q is not a number from 1", text)
	}
}

// object describes a child that has a separate value.
func object[T any](n *node, name string, p **T, describe func(*node, *T)) {
	present := *p != nil
	n.inIf(name, &present, func(c *node) {
		if n.reading() {
			*p = new(T)
		}
		describe(c, *p)
	})
}

// each describes the children of a name, one value each.
func each[T any](n *node, name string, list *[]T, describe func(*node, *T)) {
	if n.reading() {
		for _, e := range n.e.Elements(name) {
			n.look(e)
			var value T
			describe(&node{n.pass, e, n}, &value)
			*list = append(*list, value)
		}
		return
	}
	for i := range *list {
		c := n.add(name)
		describe(c, &(*list)[i])
		n.append(c)
	}
}

// objects is each for values that are held by pointer.
func objects[T any](n *node, name string, list *[]*T, describe func(*node, *T)) {
	each(n, name, list, func(c *node, p **T) {
		if n.reading() {
			*p = new(T)
		}
		describe(c, *p)
	})
}

// flag describes an empty child that means yes.
func (n *node) flag(name string, p *bool) { n.inIf(name, p, func(*node) {}) }

// str describes an attribute; if words are given its value must be one of them.
func (n *node) str(attr string, p *string, words ...string) {
	if n.writing {
		if *p != "" {
			n.set(attr, *p)
		}
		return
	}
	*p = n.e.Attr(attr)
	n.oneOf(attr, *p, words)
}

// choice is str with words that stored definitions need not use.
func (n *node) choice(attr string, p *string, words ...string) {
	if !n.strict {
		words = nil
	}
	n.str(attr, p, words...)
}

// need is str for a mandatory attribute.
func (n *node) need(attr string, p *string, words ...string) {
	if n.str(attr, p, words...); n.reading() && *p == "" {
		n.invalid("", "attribute %s is missing", attr)
	}
}

// text describes the character data of an element.
func (n *node) text(p *string, words ...string) {
	if n.writing {
		if *p != "" {
			n.e.Children = append(n.e.Children, xmltree.Text(*p))
		}
		return
	}
	*p = n.e.Text()
	n.oneOf("", *p, words)
}

// leaf describes a child that is only text.
func (n *node) leaf(name string, p *string, words ...string) {
	n.in(name, func(c *node) { c.text(p, words...) })
}

// yes describes an attribute with the values yes and no, on one with on and off.
func (n *node) yes(attr string, p *device.Switch) { n.position(attr, p, "yes", "no") }
func (n *node) on(attr string, p *device.Switch)  { n.position(attr, p, "on", "off") }

func (n *node) position(attr string, p *device.Switch, on, off string) {
	if n.writing {
		switch *p {
		case device.On:
			n.set(attr, on)
		case device.Off:
			n.set(attr, off)
		case device.Unset:
		}
		return
	}
	switch value := n.e.Attr(attr); value {
	case "":
		*p = device.Unset
	case on:
		*p = device.On
	case off:
		*p = device.Off
	default:
		n.invalid(attr, "%q is neither %q nor %q", value, on, off)
	}
}

// state describes a child whose state attribute is on or off; libvirt reads a
// bare element as on.
func (n *node) state(name string, p *device.Switch) {
	n.stateOf(name, p, func(*node) {})
}

func (n *node) stateOf(name string, p *device.Switch, describe func(*node)) {
	present := *p != device.Unset
	n.inIf(name, &present, func(c *node) {
		if c.on("state", p); c.reading() && *p == device.Unset {
			*p = device.On
		}
		describe(c)
	})
}

type number interface {
	~int | ~int64 | ~uint | ~uint64
}

// num describes a numeric attribute; 0 means that it is absent.
func num[T number](n *node, attr string, p *T) {
	if n.writing {
		if *p != 0 {
			n.set(attr, fmt.Sprint(*p))
		}
		return
	}
	if value := n.e.Attr(attr); value != "" {
		if parse(n, attr, value, p); *p == 0 {
			n.ignore(attr)
		}
	}
}

// always is num for a number that is written even when it is 0.
func always[T number](n *node, attr string, p *T) {
	if n.writing {
		n.set(attr, fmt.Sprint(*p))
		return
	}
	num(n, attr, p)
}

// optional is num for a number where 0 is an ordinary value.
func optional[T number](n *node, attr string, p **T) {
	if n.writing {
		if *p != nil {
			n.set(attr, fmt.Sprint(**p))
		}
		return
	}
	if value := n.e.Attr(attr); value != "" {
		*p = new(T)
		parse(n, attr, value, *p)
	}
}

// hex is always in hexadecimal, padded to a width.
func (n *node) hex(attr string, p *uint, width int) {
	if n.writing {
		n.set(attr, fmt.Sprintf("0x%0*x", width, *p))
		return
	}
	num(n, attr, p)
}

// leafNum describes a child that is only a number, absent when 0.
func leafNum[T number](n *node, name string, p *T) {
	n.in(name, func(c *node) { textNum(c, p) })
}

// textNum describes a number between the tags, nothing when 0.
func textNum[T number](n *node, p *T) {
	if n.writing {
		if *p != 0 {
			text := fmt.Sprint(*p)
			n.text(&text)
		}
		return
	}
	if parse(n, "", strings.TrimSpace(n.e.Text()), p); *p == 0 {
		n.e.Children = nil // leaves an element without attributes empty
	}
}

// parse reads a decimal or 0x number that fits into T.
func parse[T number](n *node, attr, text string, p *T) {
	digits, base := text, 10
	if rest, ok := strings.CutPrefix(strings.ToLower(text), "0x"); ok {
		digits, base = rest, 16
	}
	if signed := T(0) - 1; signed < 0 {
		v, err := strconv.ParseInt(digits, base, 64)
		if err != nil {
			n.invalid(attr, "%q is not a number", text)
		}
		*p = T(v)
		return
	}
	v, err := strconv.ParseUint(digits, base, 64)
	if err != nil {
		n.invalid(attr, "%q is not a positive number", text)
	}
	*p = T(v)
}

// cpus describes an attribute that lists processors or cells.
func (n *node) cpus(attr string, p *topology.CPUSet) {
	if n.writing {
		if !p.IsEmpty() {
			n.set(attr, p.String())
		}
		return
	}
	value := n.e.Attr(attr)
	if value == "" {
		return
	}
	set, err := topology.ParseCPUSet(value)
	if err != nil {
		n.invalid(attr, "%v", err)
	}
	*p = set
}

// units are libvirt's names for amounts of memory.
var units = map[string]uint64{
	"b": 1, "bytes": 1, "byte": 1,
	"KB": 1e3, "k": 1 << 10, "KiB": 1 << 10, "kib": 1 << 10, "K": 1 << 10,
	"MB": 1e6, "M": 1 << 20, "m": 1 << 20, "MiB": 1 << 20,
	"GB": 1e9, "G": 1 << 30, "g": 1 << 30, "GiB": 1 << 30,
	"TB": 1e12, "T": 1 << 40, "t": 1 << 40, "TiB": 1 << 40,
	"PB": 1e15, "P": 1 << 50, "p": 1 << 50, "PiB": 1 << 50,
	"EB": 1e18, "E": 1 << 60, "e": 1 << 60, "EiB": 1 << 60,
}

// bytes describes an amount of memory that is written in KiB: between the tags
// when attr is "", or else in that attribute. Amounts are rounded up to KiB.
func (n *node) bytes(attr string, p *uint64) {
	if n.writing {
		if attr != "" {
			n.set(attr, fmt.Sprint(*p>>10))
			n.set("unit", "KiB")
			return
		}
		n.set("unit", "KiB")
		n.e.Children = append(n.e.Children, xmltree.Text(fmt.Sprint(*p>>10)))
		return
	}
	text := strings.TrimSpace(n.e.Text())
	if attr != "" {
		text = n.e.Attr(attr)
	}
	var count uint64
	parse(n, attr, text, &count)
	*p = n.inUnit(attr, count, 1<<10)
	if *p > MaxMemory {
		n.invalid(attr, "%s is too much memory", text)
		*p = 0
	}
	*p = (*p + 1023) &^ 1023
}

// inUnit multiplies a count by the element's unit.
func (n *node) inUnit(attr string, count, unit uint64) uint64 {
	if name := n.e.Attr("unit"); name != "" {
		var ok bool
		if unit, ok = units[name]; !ok {
			n.invalid("unit", "%q is not a unit of memory", name)
			return 0
		}
	}
	if count > math.MaxUint64/unit {
		n.invalid(attr, "%d is too much", count)
		return 0
	}
	return count * unit
}

// leafBytes describes a child that is an amount of memory, absent when 0.
func (n *node) leafBytes(name string, p *uint64) {
	if n.writing && *p == 0 {
		return
	}
	n.in(name, func(c *node) {
		if c.bytes("", p); *p == 0 {
			c.ignore("")
		}
	})
}
