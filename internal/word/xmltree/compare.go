package xmltree

import (
	"fmt"
	"strings"
)

// Unbuilt returns the paths of the parts of a document that libvirt's format has
// and Lodge does not support: elements, attributes and text that are in submitted
// and in known (submitted after a round trip through libvirtxml), but not in
// understood (submitted after a round trip through Lodge's own model). Only
// presence counts, not values. Paths start below the root: devices/disk[2]/mirror,
// devices/interface[1]/driver/@rss. A path has a position if there are siblings
// of the same name.
//
// Siblings of one name are matched by position, so both round trips must keep
// their order.
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

// Unknown returns the paths of the parts of a document that libvirt's format does
// not have: those in submitted and not in known. White space, comments, empty
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
	// names holds the path names of elements whose siblings are not in the tree.
	names map[*Element]string
}

// pathName returns an element's position among its siblings of one name, and its
// name in a path, which has a number if there are several. position counts the
// siblings before.
func (e *Element) pathName(siblings map[sibling][]*Element, position map[sibling]int) (key sibling, n int, name string) {
	key, name = sibling{e.Space, e.Name}, e.Name
	n = position[key]
	position[key]++
	if len(siblings[key]) > 1 {
		name = fmt.Sprintf("%s[%d]", name, n+1)
	}
	return key, n, name
}

// compare walks the submitted tree, and reports for each part whether the other two
// trees have it. It enters an element only if all three have it, or if the element
// is built and a part of its content may not be.
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
		key, n, name := c.pathName(inSubmitted, position)
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

// maxPairwise is the number of children up to which covers searches them anew for each child. More children are
// grouped by name first, so that the time stays linear.
const maxPairwise = 16

// covers is a cheap check that known has every part of submitted, as nearly all
// documents do. If it returns false, parts may be missing; compare finds them.
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
	if len(submitted.Children) > maxPairwise || len(known.Children) > maxPairwise {
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

// coversMany is covers for the children of an element with many of them.
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

// sibling is the name under which elements are counted together.
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
