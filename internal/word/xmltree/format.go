package xmltree

import (
	"cmp"
	"encoding/xml"
	"strings"
	"unicode/utf8"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// namespaces are those of libvirt's own extensions, with the prefixes that its
// documents use. They are declared once, on the root.
var namespaces = map[string]string{
	"http://libvirt.org/schemas/domain/qemu/1.0":     "qemu",
	"http://libvirt.org/schemas/domain/lxc/1.0":      "lxc",
	"http://libvirt.org/schemas/domain/xen/1.0":      "xen",
	"http://libvirt.org/schemas/domain/bhyve/1.0":    "bhyve",
	"http://libvirt.org/schemas/network/dnsmasq/1.0": "dnsmasq",
	"http://libvirt.org/schemas/storagepool/fs/1.0":  "fs",
	"http://libvirt.org/schemas/storagepool/rbd/1.0": "rbd",
}

// Format prints a tree, or a value of libvirtxml through its own marshalling,
// in the layout of libvirt's documents: attributes in single quotes, <x/> for
// empty elements, two spaces a level, text on the element's line, a line end at
// the end and no XML header. The content of <metadata> belongs to other programs,
// and keeps double quotes, prefixes and comments. Format refuses a document that
// Parse would refuse for its bounds or characters: all output can be read again.
func Format(v any) (string, error) {
	root, ok := v.(*Element)
	if !ok {
		raw, err := xml.Marshal(v)
		if err != nil {
			return "", fault.Wrap(err, fault.Internal, fault.XML, "cannot marshal %T", v)
		}
		// Escapes make our own documents longer than the submitted ones.
		if root, err = parse(string(raw), 8*MaxSize); err != nil {
			return "", fault.Wrap(err, fault.Internal, fault.XML, "cannot read back marshalled %T", v)
		}
	}
	p := newPrinter()
	p.root(root)
	text := p.out.String()
	unread := cmp.Or(p.checkBounds(), checkLength(text, MaxSize), CheckText(text))
	return text, fault.Wrap(unread, fault.Invalid, fault.XML, "the document could not be read again")
}

// CheckText refuses text that no XML document can contain: bytes that are not UTF-8,
// and characters outside XML's range. No parser accepts a document with such text.
func CheckText(text string) error {
	if !utf8.ValidString(text) {
		return fault.New(fault.Invalid, fault.XML, "a document must be UTF-8")
	}
	if at := strings.IndexFunc(text, isForbidden); at >= 0 {
		r, _ := utf8.DecodeRuneInString(text[at:])
		return fault.New(fault.Invalid, fault.XML, "no document can contain the character %U", r)
	}
	return nil
}

func isForbidden(r rune) bool {
	return r < ' ' && r != '\t' && r != '\n' && r != '\r' || r == '\uFFFE' || r == '\uFFFF'
}

// FormatInner prints the content of an element in the layout for <metadata>. It
// adds the declarations of namespaces that elements above have, so that the text
// can be parsed alone.
func FormatInner(e *Element) string {
	p := newPrinter()
	p.foreign = true
	depth := 0
	if e.hasText() {
		depth = inline // where a line's end would be one more text
	}
	for _, n := range e.Children {
		p.node(n, depth)
	}
	return p.out.String()
}

type printer struct {
	out strings.Builder
	// nodes and depth are those that Parse will count; nodes include the white space of the layout.
	nodes, open, depth int

	foreign bool     // below metadata
	scopes  []string // prefixes declared by the elements that are open
	// inScope counts them by prefix, which saves a search for each element.
	inScope map[string]int
}

// checkBounds refuses a document that is over the bounds of Parse.
func (p *printer) checkBounds() error {
	switch {
	case p.depth > MaxDepth:
		return invalid("the document would be nested deeper than %d", MaxDepth)
	case p.nodes > MaxNodes:
		return invalid("the document would have more than %d nodes", MaxNodes)
	}
	return nil
}

func newPrinter() *printer { return &printer{inScope: map[string]int{}} }

func (p *printer) root(e *Element) {
	used := map[string]bool{}
	collectSpaces(e, used)
	copied := *e
	copied.Attrs = nil
	for _, a := range e.Attrs {
		if !a.isDeclaration() || namespaces[a.Value] == "" {
			copied.Attrs = append(copied.Attrs, a)
		}
	}
	for _, prefix := range []string{"qemu", "lxc", "xen", "bhyve", "dnsmasq", "fs", "rbd"} {
		for uri, p := range namespaces {
			if p == prefix && used[uri] {
				copied.Attrs = append(copied.Attrs, Attr{Prefix: "xmlns", Name: prefix, Value: uri})
			}
		}
	}
	p.element(&copied, 0)
}

// collectSpaces collects the namespaces of an element and of all elements below it.
// A declaration of a known namespace that nothing uses is then left out.
func collectSpaces(e *Element, used map[string]bool) {
	if e.Space != "" {
		used[e.Space] = true
	}
	for _, a := range e.Attrs {
		if a.Space != "" {
			used[a.Space] = true
		}
	}
	if e.isMetadata() {
		return
	}
	for _, n := range e.Children {
		if c, ok := n.(*Element); ok {
			collectSpaces(c, used)
		}
	}
}

func (e *Element) isMetadata() bool { return e.Name == "metadata" && e.Space == "" }

func (p *printer) node(n Node, depth int) {
	switch n := n.(type) {
	case *Element:
		p.element(n, depth)
	case Comment:
		p.nodes++
		p.indent(depth)
		p.out.WriteString("<!--" + string(n) + "-->")
		p.newline(depth)
	case Text:
		p.nodes++
		p.text(string(n))
	}
}

// inline is the depth inside mixed content, where no layout may be added.
const inline = -1

func (p *printer) indent(depth int) {
	if p.open > 0 && depth != inline {
		p.nodes++ // a reader sees the text with the line end before it as one node
	}
	for range depth {
		p.out.WriteString("  ")
	}
}

func (p *printer) newline(depth int) {
	if depth != inline {
		p.out.WriteByte('\n')
	}
}

func (p *printer) element(e *Element, depth int) {
	p.indent(depth)
	p.nodes++
	p.open++
	p.depth = max(p.depth, p.open)
	defer func() { p.open-- }()
	name := e.Name
	if prefix := p.prefix(e.Space, e.Prefix); prefix != "" {
		name = prefix + ":" + name
	}
	p.out.WriteByte('<')
	p.out.WriteString(name)
	declared := len(p.scopes)
	p.attributes(e, depth == 0 && !p.foreign)
	defer p.leave(declared)
	if len(e.Children) == 0 {
		p.out.WriteString("/>")
		p.newline(depth)
		return
	}
	p.out.WriteByte('>')
	entered := e.isMetadata() && !p.foreign
	if entered {
		p.foreign = true
	}
	inner := depth + 1
	if depth == inline || e.hasText() {
		inner = inline
	}
	if inner != inline {
		p.out.WriteByte('\n')
	}
	for _, n := range e.Children {
		p.node(n, inner)
	}
	if entered {
		p.foreign = false
	}
	if inner != inline {
		p.indent(depth)
	}
	p.out.WriteString("</")
	p.out.WriteString(name)
	p.out.WriteByte('>')
	p.newline(depth)
}

func (e *Element) hasText() bool {
	for _, n := range e.Children {
		if _, ok := n.(Text); ok {
			return true
		}
	}
	return false
}

// prefix returns the prefix to print for a namespace: libvirt's usual one, or for
// an unknown namespace the one that the client wrote.
func (p *printer) prefix(space, written string) string {
	if space == "" {
		return written
	}
	if known := namespaces[space]; known != "" && !p.foreign {
		return known
	}
	return written
}

// attributes prints an element's attributes. Declarations of known namespaces are
// printed on the root only.
func (p *printer) attributes(e *Element, root bool) {
	for _, a := range e.Attrs {
		if a.isDeclaration() {
			if !p.foreign && !root && namespaces[a.Value] != "" {
				continue
			}
			p.declared(a)
		}
		name := a.Name
		if prefix := p.prefix(a.Space, a.Prefix); prefix != "" {
			name = prefix + ":" + name
		}
		p.attribute(name, a.Value)
	}
	if !p.foreign {
		return
	}
	p.declare(e.Prefix, e.Space)
	for _, a := range e.Attrs {
		if a.Space != "" {
			p.declare(a.Prefix, a.Space)
		}
	}
}

func (p *printer) declared(a Attr) {
	if a.Prefix == "xmlns" {
		p.enter(a.Name)
		return
	}
	p.enter("")
}

// enter records that an open element declares a prefix.
func (p *printer) enter(prefix string) {
	p.scopes = append(p.scopes, prefix)
	p.inScope[prefix]++
}

// leave removes the declarations of an element that is closed: all after the first declared ones.
func (p *printer) leave(declared int) {
	for _, prefix := range p.scopes[declared:] {
		p.inScope[prefix]--
	}
	p.scopes = p.scopes[:declared]
}

// declare prints the declaration of a prefix that only an element above the printed
// part declares.
func (p *printer) declare(prefix, uri string) {
	if uri == "" || prefix == "xml" {
		return
	}
	if p.inScope[prefix] > 0 {
		return
	}
	p.enter(prefix)
	if prefix == "" {
		p.attribute("xmlns", uri)
		return
	}
	p.attribute("xmlns:"+prefix, uri)
}

// The escapes of libvirt's own printer and, below metadata, of libxml2's.
// Line ends and tabs in attributes are escaped in both, because a reader would
// turn them into spaces.
var (
	ownText     = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "'", "&apos;", `"`, "&quot;", "\r", "&#13;")
	ownAttr     = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "'", "&apos;", `"`, "&quot;", "\r", "&#13;", "\n", "&#10;", "\t", "&#9;")
	foreignText = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "\r", "&#13;")
	foreignAttr = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;", "\r", "&#13;", "\n", "&#10;", "\t", "&#9;")
)

func (p *printer) attribute(name, value string) {
	quote, escape := byte('\''), ownAttr
	if p.foreign {
		quote, escape = '"', foreignAttr
	}
	p.out.WriteByte(' ')
	p.out.WriteString(name)
	p.out.WriteByte('=')
	p.out.WriteByte(quote)
	p.out.WriteString(escape.Replace(value))
	p.out.WriteByte(quote)
}

func (p *printer) text(s string) {
	if p.foreign {
		p.out.WriteString(foreignText.Replace(s))
		return
	}
	p.out.WriteString(ownText.Replace(s))
}
