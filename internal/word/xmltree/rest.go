package xmltree

// Rest is a part of a document that a second tree lacks, with the elements around it. Parts that both have are left
// out, so that a small loss in a long document costs little to examine.
type Rest struct {
	Submitted  *Element
	understood *Element
	// names are the path names of elements, by their positions in the whole document.
	names map[*Element]string
	count int
}

// Rests returns the parts of submitted that may be missing in understood, each with at most that many elements.
// The result is empty if nothing is missing.
func Rests(submitted, understood *Element, most int) []*Rest {
	if covers(understood, submitted) {
		return nil
	}
	d := division{most: most}
	d.walk(submitted, understood, "")
	return d.rests
}

// Unbuilt is the function Unbuilt for this part; known is the part after a round trip through libvirtxml. Some
// elements are supported, and were lost because no part of them was understood: for these it returns the parts.
func (r *Rest) Unbuilt(known *Element, built func(*Element) bool) []string {
	var lost []string
	c := comparison{names: r.names, built: built, report: func(path string, known, understood bool) {
		if known && !understood {
			lost = append(lost, path)
		}
	}}
	c.compare(r.Submitted, known, r.understood, "")
	return lost
}

// Unknown returns the paths that are neither in known nor understood.
func (r *Rest) Unknown(known *Element) []string {
	ours := map[string]bool{}
	for _, path := range r.missing(r.understood) {
		ours[path] = true
	}
	var lost []string
	for _, path := range r.missing(known) {
		if ours[path] {
			lost = append(lost, path)
		}
	}
	return lost
}

// IsUnderstood reports that nothing is missing after all.
func (r *Rest) IsUnderstood() bool { return len(r.missing(r.understood)) == 0 }

func (r *Rest) missing(in *Element) []string {
	var lost []string
	c := comparison{names: r.names, report: func(path string, known, _ bool) {
		if !known {
			lost = append(lost, path)
		}
	}}
	c.compare(r.Submitted, in, in, "")
	return lost
}

// division divides a document into rests.
type division struct {
	most  int
	rests []*Rest
	open  []level
}

// level is an element with many children that is gone through, and its copies in the rest that is being
// filled: they have those children only that belong there.
type level struct {
	submitted, understood *Element
	name                  string
	rest                  *Rest // of the copies; another: they have yet to be made
	copied, twin          *Element
}

func (d *division) walk(submitted, understood *Element, name string) {
	d.open = append(d.open, level{submitted: submitted, understood: understood, name: name})
	own := Element{Attrs: submitted.Attrs, Children: texts(submitted)}
	if !covers(&Element{Attrs: understood.Attrs, Children: texts(understood)}, &own) {
		d.around()
	}
	inSubmitted, twins := submitted.siblings(), understood.siblings()
	position := map[sibling]int{}
	for _, c := range submitted.Elements() {
		key, n, name := c.pathName(inSubmitted, position)
		var twin *Element
		if n < len(twins[key]) {
			twin = twins[key][n]
		}
		switch {
		case twin != nil && covers(twin, c):
		case twin != nil && len(c.Children) > maxPairwise && !c.isMetadata():
			d.walk(c, twin, name)
		default:
			d.keep(c, twin, name)
		}
	}
	d.open = d.open[:len(d.open)-1]
}

// keep adds an element to a part, and its understood twin.
func (d *division) keep(c, twin *Element, name string) {
	in := d.around()
	in.copied.Children = append(in.copied.Children, c)
	if twin != nil {
		in.twin.Children = append(in.twin.Children, twin)
	}
	in.rest.names[c] = name
	in.rest.count++
}

// around returns the innermost open level, with copies of it and of those around it in a rest that has room.
func (d *division) around() *level {
	if len(d.rests) == 0 || d.rests[len(d.rests)-1].count >= d.most {
		d.rests = append(d.rests, &Rest{names: map[*Element]string{}})
	}
	rest := d.rests[len(d.rests)-1]
	for i := range d.open {
		l := &d.open[i]
		if l.rest == rest {
			continue
		}
		l.rest, l.copied, l.twin = rest, bare(l.submitted), bare(l.understood)
		if i == 0 {
			rest.Submitted, rest.understood = l.copied, l.twin
			continue
		}
		above := &d.open[i-1]
		above.copied.Children = append(above.copied.Children, l.copied)
		above.twin.Children = append(above.twin.Children, l.twin)
		rest.names[l.copied] = l.name
	}
	return &d.open[len(d.open)-1]
}

// bare copies an element without the elements in it.
func bare(e *Element) *Element {
	c := *e
	c.Children = texts(e)
	return &c
}

func texts(e *Element) []Node {
	var all []Node
	for _, n := range e.Children {
		if t, ok := n.(Text); ok {
			all = append(all, t)
		}
	}
	return all
}
