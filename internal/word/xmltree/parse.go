package xmltree

import (
	"encoding/xml"
	"errors"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Bounds of a document. The longest real definitions stay below them. MaxSize, in
// bytes, is libvirt's limit of a string on the wire.
const (
	MaxSize  = 4 << 20
	MaxDepth = 256 // a chain of 200 images, each within the one above, and the elements around them
	MaxNodes = 200_000
	MaxAttrs = 200_000
)

// Element is one XML element with its attributes and children.
type Element struct {
	Space    string // the namespace's URI, empty for none
	Prefix   string // as written, empty for none
	Name     string
	Attrs    []Attr // in document order, namespace declarations included
	Children []Node // in document order
}

// Attr is one attribute. A namespace declaration has the prefix xmlns, or
// the name xmlns and no prefix.
type Attr struct {
	Space  string
	Prefix string
	Name   string
	Value  string
}

// Node is a child of an element: *Element, Text or Comment.
type Node interface{ node() }

// Text is character data, unescaped.
type Text string

// Comment is the text of a comment.
type Comment string

func (*Element) node() {}
func (Text) node()     {}
func (Comment) node()  {}

// Attr returns an attribute's value by its name without namespace, or "". Attr,
// Child and Text may be called on a nil element, so that paths can be walked
// without a check at each step.
func (e *Element) Attr(name string) string {
	if e == nil {
		return ""
	}
	for _, a := range e.Attrs {
		if a.Name == name && a.Prefix == "" {
			return a.Value
		}
	}
	return ""
}

// Elements returns the child elements, or those with one of the names given.
func (e *Element) Elements(names ...string) []*Element {
	var out []*Element
	for _, n := range e.Children {
		c, ok := n.(*Element)
		if ok && (len(names) == 0 || slices.Contains(names, c.Name)) {
			out = append(out, c)
		}
	}
	return out
}

// IsEmpty reports whether an element has neither attributes nor elements, nor text but white space.
func (e *Element) IsEmpty() bool {
	for _, n := range e.Children {
		if _, ok := n.(*Element); ok {
			return false
		}
	}
	return len(e.Attrs) == 0 && e.isBlank()
}

// Child returns the first child element of a name, or nil.
func (e *Element) Child(name string) *Element {
	if e == nil {
		return nil
	}
	for _, n := range e.Children {
		if c, ok := n.(*Element); ok && c.Name == name {
			return c
		}
	}
	return nil
}

// Text returns the element's own character data, without that of its children.
func (e *Element) Text() string {
	if e == nil {
		return ""
	}
	var b strings.Builder
	for _, n := range e.Children {
		if t, ok := n.(Text); ok {
			b.WriteString(string(t))
		}
	}
	return b.String()
}

func (a Attr) isDeclaration() bool {
	return a.Prefix == "xmlns" || a.Prefix == "" && a.Name == "xmlns"
}

// Parse reads one document. White space between elements is dropped; white
// space inside text, and text that is only white space in an element without
// children, is kept. Every error is of kind Invalid about XML.
func Parse(doc string) (*Element, error) {
	return parse(doc, MaxSize)
}

// leadingBlanks are the characters that may come before the first tag of a document.
const leadingBlanks = "\ufeff \t\r\n"

// StartsLikeXML says whether a text begins like a document. Parse accepts no other text, so a caller that searches
// the arguments of a call for documents finds all of them.
func StartsLikeXML(text string) bool {
	return strings.HasPrefix(strings.TrimLeft(text, leadingBlanks), "<") || byteOrder(text) != nil
}

func parse(doc string, maxSize int) (*Element, error) {
	if len(doc) > maxSize {
		return nil, invalid("document has %d bytes, more than the %d allowed", len(doc), maxSize)
	}
	doc, err := fromUTF16(doc)
	if err != nil {
		return nil, err
	}
	if err := checkLength(doc, maxSize); err != nil {
		return nil, err
	}
	if !StartsLikeXML(doc) && strings.TrimLeft(doc, leadingBlanks) != "" {
		return nil, invalid("line 1: text outside the root element")
	}
	r := &reader{dec: xml.NewDecoder(strings.NewReader(doc)), spaces: map[string][]string{}}
	var unread error // why the encoding cannot be read
	r.dec.CharsetReader = func(name string, rest io.Reader) (text io.Reader, err error) {
		text, unread = charset(doc, name, rest)
		return text, unread
	}
	for {
		// Raw tokens keep the prefixes; nesting and namespaces are checked here.
		token, err := r.dec.RawToken()
		if errors.Is(err, io.EOF) {
			return r.finish()
		}
		if unread != nil {
			return nil, unread
		}
		if err != nil {
			return nil, invalid("cannot parse document: %s", strings.TrimPrefix(err.Error(), "xml: "))
		}
		if err := r.take(token); err != nil {
			return nil, err
		}
	}
}

// checkLength bounds the size, and the nodes and attributes by counting '<' and '=',
// before anything is allocated for them.
func checkLength(doc string, maxSize int) error {
	switch {
	case len(doc) > maxSize:
		return invalid("document has %d bytes, more than the %d allowed", len(doc), maxSize)
	case strings.Count(doc, "<") > 2*MaxNodes:
		return invalid("document has more than %d nodes", MaxNodes)
	case strings.Count(doc, "=") > MaxAttrs:
		return invalid("document has more than %d attributes", MaxAttrs)
	}
	return nil
}

func invalid(format string, args ...any) error {
	return fault.New(fault.Invalid, fault.XML, format, args...)
}

// reader builds the tree. Open elements are a stack.
type reader struct {
	dec   *xml.Decoder
	root  *Element
	open  []*Element
	nodes int
	// scopes are the prefixes that open elements declare, inner ones later. spaces are
	// the namespaces of each prefix; the last one is in force. A map, because a hostile
	// document may have as many prefixes as elements that use them.
	scopes []scope
	spaces map[string][]string
}

type scope struct {
	depth  int
	prefix string
}

func (r *reader) take(token xml.Token) error {
	line, _ := r.dec.InputPos()
	switch t := token.(type) {
	case xml.StartElement:
		return r.start(t, line)
	case xml.EndElement:
		return r.end(t, line)
	case xml.CharData:
		if len(r.open) == 0 {
			if strings.TrimSpace(strings.TrimPrefix(string(t), "\ufeff")) != "" {
				return invalid("line %d: text outside the root element", line)
			}
			return nil
		}
		if len(t) == 0 { // an empty CDATA is nothing
			return nil
		}
		return r.add(Text(t), line)
	case xml.Comment:
		if len(r.open) > 0 {
			return r.add(Comment(strings.Map(replaceInvalid, string(t))), line)
		}
	case xml.Directive:
		return invalid("line %d: document types and entity definitions are not supported", line)
	}
	return nil
}

// replaceInvalid replaces a character that no document can contain by U+FFFD. Go's parser
// accepts such characters in comments, and the document could not be written again.
func replaceInvalid(r rune) rune {
	if isForbidden(r) {
		return utf8.RuneError
	}
	return r
}

func (r *reader) add(n Node, line int) error {
	if r.nodes++; r.nodes > MaxNodes {
		return invalid("line %d: document has more than %d nodes", line, MaxNodes)
	}
	if len(r.open) > 0 {
		top := r.open[len(r.open)-1]
		top.Children = append(top.Children, n)
	}
	return nil
}

func (r *reader) start(t xml.StartElement, line int) error {
	switch {
	case len(r.open) == 0 && r.root != nil:
		return invalid("line %d: second root element <%s>", line, t.Name.Local)
	case len(r.open) == MaxDepth:
		return invalid("line %d: elements are nested deeper than %d", line, MaxDepth)
	}
	e := &Element{Prefix: t.Name.Space, Name: t.Name.Local}
	if err := r.add(e, line); err != nil {
		return err
	}
	if r.root == nil {
		r.root = e
	}
	r.open = append(r.open, e)
	if len(t.Attr) > 0 {
		e.Attrs = make([]Attr, 0, len(t.Attr))
	}
	for _, a := range t.Attr {
		attr := Attr{Prefix: a.Name.Space, Name: a.Name.Local, Value: a.Value}
		e.Attrs = append(e.Attrs, attr)
		switch {
		case attr.Prefix == "xmlns":
			r.declare(attr.Name, attr.Value)
		case attr.isDeclaration():
			r.declare("", attr.Value)
		}
	}
	return r.resolve(e, line)
}

// resolve finds the namespaces of an element and its attributes, and refuses
// an attribute that comes twice.
func (r *reader) resolve(e *Element, line int) error {
	var ok bool
	if e.Space, ok = r.lookup(e.Prefix); !ok {
		return invalid("line %d: prefix of <%s:%s> is not declared", line, e.Prefix, e.Name)
	}
	var seen attrNames
	for i := range e.Attrs {
		a := &e.Attrs[i]
		if a.Prefix != "" && a.Prefix != "xmlns" {
			if a.Space, ok = r.lookup(a.Prefix); !ok {
				return invalid("line %d: prefix of attribute %s:%s is not declared", line, a.Prefix, a.Name)
			}
		}
		if seen.has(e.Attrs[:i], a) {
			return invalid("line %d: attribute %s of <%s> is given twice", line, a.Name, e.Name)
		}
	}
	return nil
}

// attrNames are the names of an element's attributes, if there are many.
type attrNames map[[2]string]bool

// fewAttrs is the number of attributes up to which they are compared one by one.
const fewAttrs = 16

// has reports whether an attribute is among those before it. It must be called for each attribute in order.
func (s *attrNames) has(before []Attr, a *Attr) bool {
	if len(before) < fewAttrs {
		return slices.ContainsFunc(before, func(b Attr) bool { return b.Name == a.Name && b.Prefix == a.Prefix })
	}
	if len(before) == fewAttrs {
		*s = attrNames{}
		for _, b := range before {
			(*s)[[2]string{b.Prefix, b.Name}] = true
		}
	}
	key := [2]string{a.Prefix, a.Name}
	twice := (*s)[key]
	(*s)[key] = true
	return twice
}

func (r *reader) lookup(prefix string) (string, bool) {
	if prefix == "xml" {
		return "http://www.w3.org/XML/1998/namespace", true
	}
	uris := r.spaces[prefix]
	if len(uris) == 0 {
		return "", prefix == ""
	}
	uri := uris[len(uris)-1]
	return uri, prefix == "" || uri != ""
}

// declare binds a prefix to a namespace in the element that was opened last, and below it.
func (r *reader) declare(prefix, uri string) {
	r.scopes = append(r.scopes, scope{len(r.open), prefix})
	r.spaces[prefix] = append(r.spaces[prefix], uri)
}

// leave removes the declarations of the element that was opened last.
func (r *reader) leave() {
	for len(r.scopes) > 0 && r.scopes[len(r.scopes)-1].depth == len(r.open) {
		prefix := r.scopes[len(r.scopes)-1].prefix
		r.scopes = r.scopes[:len(r.scopes)-1]
		r.spaces[prefix] = r.spaces[prefix][:len(r.spaces[prefix])-1]
	}
}

func (r *reader) end(t xml.EndElement, line int) error {
	if len(r.open) == 0 {
		return invalid("line %d: </%s> closes nothing", line, t.Name.Local)
	}
	top := r.open[len(r.open)-1]
	if top.Prefix != t.Name.Space || top.Name != t.Name.Local {
		return invalid("line %d: <%s> is closed by </%s>", line, top.Name, t.Name.Local)
	}
	top.dropBlanks()
	r.leave()
	r.open = r.open[:len(r.open)-1]
	return nil
}

// dropBlanks removes the white space of the layout: text between elements or
// comments, if the element has no other text.
func (e *Element) dropBlanks() {
	others := false
	for _, n := range e.Children {
		t, isText := n.(Text)
		if isText && strings.TrimSpace(string(t)) != "" {
			return
		}
		others = others || !isText
	}
	if !others {
		return
	}
	kept := e.Children[:0]
	for _, n := range e.Children {
		if _, isText := n.(Text); !isText {
			kept = append(kept, n)
		}
	}
	e.Children = kept
}

func (r *reader) finish() (*Element, error) {
	switch {
	case r.root == nil:
		return nil, invalid("document has no root element")
	case len(r.open) > 0:
		return nil, invalid("document ends before </%s>", r.open[len(r.open)-1].Name)
	}
	return r.root, nil
}
