package xmltree

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// The lost parts of a long document have the same names as in the whole, in however many parts it is compared.
func TestRests_SameAsWholeDocument(t *testing.T) {
	var submitted, known, understood strings.Builder
	for i := range 300 {
		inner, theirs, ours := "<a/>", "<a/>", "<a/>"
		switch i % 50 {
		case 7:
			inner, theirs = `<a/><b x='1'/>`, `<a/><b x='1'/>`
		case 9:
			inner = `<a/><c/>`
		case 11:
			inner, theirs = `<a y='1'>text</a>`, `<a y='1'/>`
		}
		fmt.Fprintf(&submitted, "<d n='%d'>%s</d>", i, inner)
		fmt.Fprintf(&known, "<d n='%d'>%s</d>", i, theirs)
		fmt.Fprintf(&understood, "<d n='%d'>%s</d>", i, ours)
	}
	parse := func(devices, more string) *Element {
		e, err := Parse("<domain" + more + "<name>x</name><devices>" + devices + "</devices></domain>")
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	s := parse(submitted.String()+"<e/><e/>", " z='1'><f/>")
	k := parse(known.String()+"<e/><e/>", " z='1'>")
	u := parse(understood.String()+"<e/>", ">")
	wantLost, wantUnknown := Unbuilt(s, k, u), []string{}
	for _, path := range Unknown(s, k) {
		if slices.Contains(Unknown(s, u), path) {
			wantUnknown = append(wantUnknown, path)
		}
	}
	if len(wantLost) < 10 || len(wantUnknown) < 6 {
		t.Fatalf("little is lost: %q, %q", wantLost, wantUnknown)
	}
	for _, most := range []int{1, 4, 1000} {
		lost, unknown := map[string]bool{}, map[string]bool{}
		for _, rest := range Rests(s, u, most) {
			if devices := rest.Submitted.Child("devices"); devices != nil && len(devices.Children) > most {
				t.Errorf("a part has %d devices, more than %d", len(devices.Children), most)
			}
			knownOfRest := knownOf(rest.Submitted, s, k)
			for _, path := range rest.Unbuilt(knownOfRest, func(*Element) bool { return false }) {
				lost[path] = true
			}
			for _, path := range rest.Unknown(knownOfRest) {
				unknown[path] = true
			}
		}
		for _, c := range []struct {
			got  map[string]bool
			want []string
		}{{lost, wantLost}, {unknown, wantUnknown}} {
			for _, path := range c.want {
				if !c.got[path] {
					t.Errorf("in parts of %d, %s is not told", most, path)
				}
			}
			if len(c.got) != len(c.want) {
				t.Errorf("in parts of %d, %d paths are told, not %d", most, len(c.got), len(c.want))
			}
		}
	}
	if rests := Rests(s, s, 10); rests != nil {
		t.Errorf("%d parts of a document that is understood", len(rests))
	}
}

// knownOf repeats the comparison for a part: it removes from each element everything that k lacks.
func knownOf(part, s, k *Element) *Element {
	c := *part
	c.Attrs, c.Children = k.Attrs, nil
	for _, n := range part.Children {
		e, ok := n.(*Element)
		if !ok {
			continue
		}
		whole, theirs := s.siblings()[sibling{"", e.Name}], k.siblings()[sibling{"", e.Name}]
		at := max(slices.Index(whole, e), 0) // of a copy: there is one of its name
		switch {
		case at >= len(theirs):
		case e == whole[at]:
			c.Children = append(c.Children, theirs[at])
		default:
			c.Children = append(c.Children, knownOf(e, whole[at], theirs[at]))
		}
	}
	return &c
}
