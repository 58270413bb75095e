package domainxml

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// Every small change to a golden document is either refused, or understood so
// that the written document reads back as the same definition.
func TestParse_SmallMutations(t *testing.T) {
	inputs, err := filepath.Glob("testdata/define/*.xml")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{} // most of a document stands in others, too
	for _, input := range inputs {
		t.Run(filepath.Base(input), func(t *testing.T) {
			doc, err := os.ReadFile(input)
			if err != nil {
				t.Fatal(err)
			}
			root, err := xmltree.Parse(string(doc))
			if err != nil {
				t.Fatal(err)
			}
			changes(root, "", func(what, where string) {
				if seen[what+where] {
					return
				}
				seen[what+where] = true
				text, err := xmltree.Format(root)
				if err != nil {
					t.Fatal(err)
				}
				checkChange(t, what, text)
			})
		})
	}
}

func checkChange(t *testing.T, what, text string) {
	t.Helper()
	for _, opts := range []Options{{Active: true}, {Host: testHost()}} {
		def, err := Parse(text, opts)
		if err != nil {
			if k := fault.Of(err); k != fault.Invalid && k != fault.Unsupported {
				t.Fatalf("%s: %v: %v", what, k, err)
			}
			continue
		}
		roundTrip(t, def, opts.Active)
		if t.Failed() {
			t.Fatalf("after %s of\n%s", what, text)
		}
	}
}

// values are put in place of every attribute.
var values = []string{"0", "-1", "off", "4294967295"}

// changes makes one change after the other below an element, each undone
// before the next.
func changes(e *xmltree.Element, up string, check func(what, where string)) {
	attrs, children := e.Attrs, e.Children
	where := " in " + e.Name + " " + e.Attr("type") + e.Attr("model") + up
	for i, a := range attrs {
		if a.Prefix == "xmlns" {
			continue
		}
		e.Attrs = slices.Delete(slices.Clone(attrs), i, i+1)
		check("removing @"+a.Name, where)
		for _, value := range values {
			e.Attrs = slices.Clone(attrs)
			e.Attrs[i].Value = value
			check("setting @"+a.Name+" to "+value, where)
		}
		e.Attrs = attrs
	}
	for i, n := range children {
		c, ok := n.(*xmltree.Element)
		if !ok {
			for _, value := range values {
				e.Children = slices.Clone(children)
				e.Children[i] = xmltree.Text(value)
				check("setting the text to "+value, where)
			}
			e.Children = children
			continue
		}
		e.Children = slices.Delete(slices.Clone(children), i, i+1)
		check("removing "+c.Name, where)
		e.Children = slices.Insert(slices.Clone(children), i, n)
		check("doubling "+c.Name, where)
		e.Children = children
		changes(c, where, check)
	}
}
