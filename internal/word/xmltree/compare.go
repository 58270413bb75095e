package xmltree

import (
	"fmt"
	"strings"
)

// Unbuilt returns the paths of the parts of a document that its format knows, and
// that were not understood: elements, attributes and text that are in submitted
// and in known (submitted after a round trip through libvirtxml) and not in
// understood (submitted after a round trip through Lodge's own model). Only
// presence counts, not values. Paths start below the root: devices/disk[2]/mirror,
// devices/interface[1]/driver/@rss; a position is given where there are siblings
// of the same name.
//
// Siblings of one name are matched by position, so both round trips have to
// keep their order.
func Unbuilt(submitted, known, understood *Element) []string {
	var lost []string
	c := comparison{report: func(path string, known, understood bool) {
		if known && !understood {
			lost = append(lost, path)
		}
	}}
	c.compare(submitted, known, understood, "")
	return lost
}

// Unknown returns the paths of the parts of a document that its format does not
// know: those in submitted and not in known. White space, comments, empty
// attributes and everything below <metadata> do not count.
func Unknown(submitted, known *Element) []string {
	if covers(known, submitted) {
		return nil
	}
	var lost []string
	c := comparison{report: func(path string, known, _ bool) {
		if !known {
			lost = append(lost, path)
		}
	}}
	c.compare(submitted, known, known, "")
	return lost
}

// comparison is a walk over three trees.
type comparison struct {
	report func(path string, known, understood bool)
	built  func(*Element) bool // nil: no element
	// names holds the names of elements with missing siblings.
	names map[*Element]string
}

// place returns an element's position among its siblings of one name, and how a path
// names it: by its number, too, where there are several. It counts in position.
func (e *Element) place(siblings map[sibling][]*Element, position map[sibling]int) (key sibling, n int, name string) {
	key, name = sibling{e.Space, e.Name}, e.Name
	n = position[key]
	position[key]++
	if len(siblings[key]) > 1 {
		name = fmt.Sprintf("%s[%d]", name, n+1)
	}
	return key, n, name
}

// compare walks the submitted tree and reports everything in it with whether
// the other two have it. It goes below an element only where all three do, or
// where the element is built and something below it may not be.
func (w comparison) compare(submitted, known, understood *Element, path string) {
	report := w.report
	for _, a := range submitted.Attrs {
		if !a.isDeclaration() && a.Value != "" {
			report(path+"@"+a.Name, known.has(a), understood.has(a))
		}
	}
	if strings.TrimSpace(submitted.Text()) != "" {
		report(path+"text()", strings.TrimSpace(known.Text()) != "", strings.TrimSpace(understood.Text()) != "")
	}
	if submitted.isMetadata() {
		return
	}
	inSubmitted, inKnown, inUnderstood := submitted.siblings(), known.siblings(), understood.siblings()
	position := map[sibling]int{}
	for _, c := range submitted.Elements() {
		key, n, name := c.place(inSubmitted, position)
		if told := w.names[c]; told != "" {
			name = told
		}
		isKnown, isUnderstood := n < len(inKnown[key]), n < len(inUnderstood[key])
		switch {
		case isKnown && isUnderstood:
			w.compare(c, inKnown[key][n], inUnderstood[key][n], path+name+"/")
			fallthrough
		default:
			report(path+name, isKnown, isUnderstood)
		case isKnown && w.built != nil && w.built(c) && !c.isBare():
			w.compare(c, inKnown[key][n], &Element{}, path+name+"/")
		}
	}
}

// mostCovered bounds the children of an element that covers looks through for each of them. Where there are
// more, they are gathered by their names before.
const mostCovered = 16

// covers is a cheap check that no part of a document is missing in another,
// which holds for nearly all documents. False means nothing: compare finds the missing parts.
func covers(known, submitted *Element) bool {
	for _, a := range submitted.Attrs {
		if !a.isDeclaration() && a.Value != "" && !known.has(a) {
			return false
		}
	}
	if !submitted.isBlank() && known.isBlank() {
		return false
	}
	if submitted.isMetadata() {
		return true
	}
	if len(submitted.Children) > mostCovered || len(known.Children) > mostCovered {
		return coversMany(known, submitted)
	}
	for i, n := range submitted.Children {
		c, ok := n.(*Element)
		if !ok {
			continue
		}
		twin := c.nth(known.Children, c.count(submitted.Children[:i]))
		if twin == nil || !covers(twin, c) {
			return false
		}
	}
	return true
}

// coversMany compares the children of an element that has many.
func coversMany(known, submitted *Element) bool {
	twins := known.siblings()
	for _, n := range submitted.Children {
		c, ok := n.(*Element)
		if !ok {
			continue
		}
		key := sibling{c.Space, c.Name}
		same := twins[key]
		if len(same) == 0 || !covers(same[0], c) {
			return false
		}
		twins[key] = same[1:]
	}
	return true
}

// isBlank reports whether an element has no text but white space.
func (e *Element) isBlank() bool {
	for _, n := range e.Children {
		if t, ok := n.(Text); ok && strings.TrimSpace(string(t)) != "" {
			return false
		}
	}
	return true
}

// count returns the number of nodes that are elements of the same name.
func (e *Element) count(nodes []Node) int {
	count := 0
	for _, n := range nodes {
		if other, ok := n.(*Element); ok && other.Name == e.Name && other.Space == e.Space {
			count++
		}
	}
	return count
}

// nth returns the element of the same name with that many of them before it, or nil.
func (e *Element) nth(nodes []Node, before int) *Element {
	for _, n := range nodes {
		other, ok := n.(*Element)
		if !ok || other.Name != e.Name || other.Space != e.Space {
			continue
		}
		if before == 0 {
			return other
		}
		before--
	}
	return nil
}

// isBare reports whether an element has no content of its own that could be missing.
func (e *Element) isBare() bool { return len(e.Attrs) == 0 && len(e.Elements()) == 0 }

// sibling names the elements that are counted together.
type sibling struct{ space, name string }

func (e *Element) siblings() map[sibling][]*Element {
	out := map[sibling][]*Element{}
	for _, c := range e.Elements() {
		key := sibling{c.Space, c.Name}
		out[key] = append(out[key], c)
	}
	return out
}

func (e *Element) has(want Attr) bool {
	for _, a := range e.Attrs {
		if a.Name == want.Name && a.Space == want.Space && !a.isDeclaration() {
			return true
		}
	}
	return false
}
