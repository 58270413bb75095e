package xmltree

import (
	"strings"
	"unicode"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// MetadataElement returns the element of a namespace in the content of a
// <metadata>, given as text. It is printed without the namespace, as the client
// set it. False: there is none.
func MetadataElement(inner, uri string) (string, bool, error) {
	root, err := parseInner(inner)
	if err != nil {
		return "", false, err
	}
	for _, e := range root.Elements() {
		if e.Space == uri {
			e.rename(uri, "", "")
			return FormatInner(&Element{Children: []Node{e}}), true, nil
		}
	}
	return "", false, nil
}

// SetMetadataElement sets the element of a namespace in the content of a
// <metadata> to a document, and returns the new content. It replaces the present
// element of that namespace; an empty document removes it.
func SetMetadataElement(inner, uri, prefix, doc string) (string, error) {
	if uri == "" {
		return "", fault.New(fault.Invalid, fault.Metadata, "a metadata element needs a namespace URI")
	}
	root, err := parseInner(inner)
	if err != nil {
		return "", err
	}
	kept := root.Children[:0]
	for _, n := range root.Children {
		if e, ok := n.(*Element); !ok || e.Space != uri {
			kept = append(kept, n)
		}
	}
	if doc != "" {
		e, err := Parse(doc)
		if err != nil {
			return "", err
		}
		if !isPrefix(prefix) {
			return "", fault.New(fault.Invalid, fault.Metadata, "a metadata element needs a prefix for its namespace, of letters, digits and . _ - unlike %q", prefix)
		}
		if e.Space != "" && e.Space != uri { // it could not be found again
			return "", fault.New(fault.Invalid, fault.Metadata, "the element is in namespace %q and cannot be set in %q", e.Space, uri)
		}
		e.rename("", prefix, uri)
		kept = append(kept, e)
	}
	root.Children = kept
	text := FormatInner(root)
	if _, there, err := MetadataElement(text, uri); err != nil || there != (doc != "") {
		return "", fault.New(fault.Invalid, fault.Metadata, "no document can contain an element of namespace %q", uri)
	}
	return text, nil
}

// isPrefix says whether a text may be the prefix of a namespace. Prefixes that begin with xml are reserved.
func isPrefix(text string) bool {
	for i, r := range text {
		switch {
		case r == '_', unicode.IsLetter(r):
		case i > 0 && (r == '-' || r == '.' || unicode.IsDigit(r)):
		default:
			return false
		}
	}
	return text != "" && !strings.HasPrefix(strings.ToLower(text), "xml")
}

func parseInner(inner string) (*Element, error) {
	if inner == "" {
		return &Element{Name: "metadata"}, nil
	}
	return Parse("<metadata>" + inner + "</metadata>")
}

// rename moves an element and all elements below it from one namespace to another.
func (e *Element) rename(from, prefix, to string) {
	if e.Space == from {
		e.Space, e.Prefix = to, prefix
	}
	kept := e.Attrs[:0]
	for _, a := range e.Attrs {
		if !a.isDeclaration() || a.Value != from {
			kept = append(kept, a)
		}
	}
	e.Attrs = kept
	for _, c := range e.Elements() {
		c.rename(from, prefix, to)
	}
}
