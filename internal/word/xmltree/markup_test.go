package xmltree

import (
	"encoding/xml"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"libvirt.org/go/libvirtxml"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Promise: X3
func TestParse_HostileDocuments(t *testing.T) {
	for name, doc := range map[string]string{
		"empty":                 "",
		"only space":            " \n ",
		"too large":             "<a>" + strings.Repeat("x", MaxSize) + "</a>",
		"too deep":              strings.Repeat("<a>", MaxDepth+1) + strings.Repeat("</a>", MaxDepth+1),
		"too many nodes":        "<a>" + strings.Repeat("<b/>", MaxNodes+1) + "</a>",
		"too many attributes":   "<a " + strings.Repeat("=", MaxAttrs+1) + "/>",
		"document type":         `<!DOCTYPE a [<!ENTITY x "y">]><a>&x;</a>`,
		"unknown entity":        "<a>&lol;</a>",
		"two roots":             "<a/><b/>",
		"text before":           "x<a/>",
		"other blanks before":   "\u00a0<a/>",
		"coded blanks before":   "&#32;<a/>",
		"text after":            "<a/>x",
		"not closed":            "<a><b></b>",
		"crossed":               "<a><b></a></b>",
		"closes nothing":        "</a>",
		"closed by other space": `<q:a xmlns:q="u" xmlns:r="u"></r:a>`,
		"undeclared prefix":     "<q:a/>",
		"undeclared attribute":  "<a q:b='1'/>",
		"out of scope prefix":   `<a><b xmlns:q="u"/><q:c/></a>`,
		"attribute twice":       "<a b='1' b='2'/>",
		"control character":     "<a>\x01</a>",
		"not UTF-8":             "<a>\xff</a>",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse(doc)
			if err == nil {
				t.Fatal("accepted")
			}
			if fault.Of(err) != fault.Invalid || fault.About(err) != fault.XML {
				t.Fatalf("%v is %v about %v", err, fault.Of(err), fault.About(err))
			}
		})
	}
}

func TestFormat_PrefixesAndSpaces(t *testing.T) {
	root, err := Parse(`<?xml version="1.0" encoding="UTF-8"?>
		<domain xmlns:q="uri:q" type="kvm"><!-- why --><q:env q:name="a" name="b"/><name> x&amp;y </name></domain>`)
	if err != nil {
		t.Fatal(err)
	}
	env := root.Elements()[0]
	if env.Space != "uri:q" || env.Prefix != "q" || env.Attrs[0].Space != "uri:q" || env.Attr("name") != "b" {
		t.Errorf("namespace of %+v", env)
	}
	if got := root.Child("name").Text(); got != " x&y " {
		t.Errorf("text %q", got)
	}
	if root.Child("no").Child("where").Text() != "" || len(root.Children) != 3 {
		t.Errorf("children %v", root.Children)
	}
}

// Golden files: testdata/format/NAME.xml is what Format makes of NAME.in.
func TestFormat_Tree(t *testing.T) {
	inputs, err := filepath.Glob("testdata/format/*.in")
	if err != nil || len(inputs) == 0 {
		t.Fatal("no inputs", err)
	}
	for _, input := range inputs {
		t.Run(filepath.Base(input), func(t *testing.T) {
			doc, err := os.ReadFile(input)
			if err != nil {
				t.Fatal(err)
			}
			root, err := Parse(string(doc))
			if err != nil {
				t.Fatal(err)
			}
			got, err := Format(root)
			if err != nil {
				t.Fatal(err)
			}
			golden := strings.TrimSuffix(input, ".in") + ".xml"
			if os.Getenv("UPDATE") != "" {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			again, err := Parse(got)
			if err != nil {
				t.Fatal(err)
			}
			if twice, _ := Format(again); twice != got {
				t.Errorf("printing again gives\n%s", twice)
			}
		})
	}
}

func TestFormat_LibvirtxmlValue(t *testing.T) {
	got, err := Format(&libvirtxml.Domain{
		Type: "kvm", Name: "a'b<c",
		Metadata: &libvirtxml.DomainMetadata{XML: `<x:note xmlns:x="uri:x"><!--kept--><x:a b="1"/></x:note>`},
		QEMUCommandline: &libvirtxml.DomainQEMUCommandline{
			Args: []libvirtxml.DomainQEMUCommandlineArg{{Value: `a"b`}},
			Envs: []libvirtxml.DomainQEMUCommandlineEnv{{Name: "N", Value: "v"}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := `<domain type='kvm' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
  <name>a&apos;b&lt;c</name>
  <metadata>
    <x:note xmlns:x="uri:x">
      <!--kept-->
      <x:a b="1"/>
    </x:note>
  </metadata>
  <qemu:commandline>
    <qemu:arg value='a&quot;b'/>
    <qemu:env name='N' value='v'/>
  </qemu:commandline>
</domain>
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestFormat_InnerText(t *testing.T) {
	root, err := Parse(`<domain xmlns:o="uri:o" xmlns="uri:d"><metadata><o:a o:b="1"><o:c/></o:a><d/></metadata></domain>`)
	if err != nil {
		t.Fatal(err)
	}
	got := FormatInner(root.Child("metadata"))
	want := "<o:a o:b=\"1\" xmlns:o=\"uri:o\">\n  <o:c/>\n</o:a>\n<d xmlns=\"uri:d\"/>\n"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func mustParse(t *testing.T, doc string) *Element {
	t.Helper()
	root, err := Parse(doc)
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// TestUnknown_CoversAndCompare takes one thing after the other away from a document: the
// quick look must miss it where the thorough one does.
func TestUnknown_CoversAndCompare(t *testing.T) {
	doc := `<a x="1" y=""><b>text</b><b z="2"/><c><d/> <!-- - --> <d e="3"/></c><metadata><m/></metadata></a>`
	submitted := mustParse(t, doc)
	if !covers(submitted, submitted) {
		t.Error("a document does not cover itself")
	}
	other := mustParse(t, `<a x="1"><metadata/><c><d/><d e="4"/></c><b>t</b><b z="2"/></a>`)
	if !covers(other, submitted) {
		t.Error("a document does not cover one with its elements in another order")
	}
	for _, part := range []string{` x="1"`, ` y=""`, `text`, `<b>text</b>`, ` z="2"`, `<d/>`, ` e="3"`, `<d e="3"/>`, `<m/>`, `<!-- - -->`} {
		known := mustParse(t, strings.Replace(doc, part, "", 1))
		lost := 0
		w := comparison{report: func(_ string, known, _ bool) {
			if !known {
				lost++
			}
		}}
		w.compare(submitted, known, known, "")
		if covers(known, submitted) != (lost == 0) {
			t.Errorf("without %q the quick look says %v, and %d things are lost", part, covers(known, submitted), lost)
		}
	}
}

func TestUnbuilt_NamesUnsupportedParts(t *testing.T) {
	submitted := mustParse(t, `<domain type="kvm" odd="1">
		<name>a</name> <strange/>
		<devices>
			<disk type="file"><target dev="vda"/></disk>
			<interface><driver rss="on" queues=""/></interface>
			<disk type="file"><mirror type="file"><source file="x"/></mirror><target dev="vdb"/></disk>
			<sound model="x"/>
		</devices>
		<metadata><x xmlns="u"/></metadata>
	</domain>`)
	known := mustParse(t, `<domain type="kvm"><name>a</name><devices>
			<disk type="file"><target dev="vda"/></disk>
			<disk type="file"><mirror type="file"><source file="x"/></mirror><target dev="vdb"/></disk>
			<interface><driver rss="on"/></interface><sound model="x"/>
		</devices><metadata/></domain>`)
	understood := mustParse(t, `<domain type="kvm"><name/><devices>
			<disk type="file" device="disk"><target dev="vda"/></disk><disk type="file"><target dev="vdb"/></disk>
			<interface><driver/></interface>
		</devices><metadata/></domain>`)
	want := []string{"name/text()", "devices/interface/driver/@rss", "devices/disk[2]/mirror", "devices/sound"}
	if got := Unbuilt(submitted, known, understood); !reflect.DeepEqual(got, want) {
		t.Errorf("Unbuilt %q, want %q", got, want)
	}
	want = []string{"@odd", "strange"}
	if got := Unknown(submitted, known); !reflect.DeepEqual(got, want) {
		t.Errorf("Unknown %q, want %q", got, want)
	}
	if got := Unbuilt(submitted, known, submitted); len(got) > 0 {
		t.Errorf("nothing is lost, and yet %q", got)
	}
}

// TestCheckText_InvalidCharacters: what would be written is what can be read, or is refused.
// Promise: X9
func TestCheckText_InvalidCharacters(t *testing.T) {
	for _, text := range []string{"\x00", "a\x01", "\x1f", "\xff", "\uFFFE", "\uFFFF"} {
		for _, e := range []*Element{{Name: "a", Children: []Node{Text(text)}}, {Name: "a", Attrs: []Attr{{Name: "b", Value: text}}}} {
			if doc, err := Format(e); err == nil {
				t.Errorf("%q is written: %q", text, doc)
			}
		}
	}
	if _, err := Format(&Element{Name: "a", Children: []Node{Text("\t\r\n\u00e9\uFFFD\U0010FFFF")}}); err != nil {
		t.Error(err)
	}
}

// What a comment holds that no document can is read as the sign for that, so that the rest can be written again.
// Promise: X9
func TestParse_InvalidCharacterInComment(t *testing.T) {
	root, err := Parse("<a><metadata><!--\x86\x01\uFFFE\u00e9--></metadata></a>")
	if err != nil {
		t.Fatal(err)
	}
	text, err := Format(root)
	if want := "<!--\uFFFD\uFFFD\uFFFD\u00e9-->"; !strings.Contains(text, want) || err != nil {
		t.Errorf("%q (%v) has no %q", text, err, want)
	}
}

// TestParse_ManyPrefixes: as many declarations as a document may have, and as many
// elements in the namespace of the first one. Each prefix has the meaning of its last
// declaration by an element that is still open. A linear search would take ten seconds of
// processor time.
// Promise: X3
func TestParse_ManyPrefixes(t *testing.T) {
	var doc strings.Builder
	doc.WriteString("<domain><metadata><a")
	for n := range 90_000 {
		fmt.Fprintf(&doc, " xmlns:p%d='u%d'", n, n)
	}
	doc.WriteString("><p0:in xmlns:p0='inner'><p0:x/></p0:in>" + strings.Repeat("<p0:x/>", 90_000) + "</a></metadata></domain>")
	root, err := Parse(doc.String())
	if err != nil {
		t.Fatal(err)
	}
	elements := root.Child("metadata").Elements()[0].Elements()
	if in := elements[0]; in.Space != "inner" || in.Elements()[0].Space != "inner" {
		t.Errorf("inside of what declares it anew a prefix stands for %q", in.Elements()[0].Space)
	}
	for _, e := range elements[1:] {
		if e.Space != "u0" {
			t.Fatalf("behind it, for %q", e.Space)
		}
	}
	text, err := Format(root)
	if err != nil || strings.Count(text, `xmlns:p0="`) != 2 || strings.Count(text, `xmlns:p1="`) != 1 {
		t.Errorf("it is printed with other declarations (%v)", err)
	}
	if _, err := Parse("<a><b xmlns:p='u'/><p:c/></a>"); err == nil {
		t.Error("a prefix stands for something behind the element that declared it")
	}
}

// Up to its bounds a document that is written is read, and none is written beyond them.
func TestFormat_ReadsBack(t *testing.T) {
	nested := func(depth int) *Element {
		e := &Element{Name: "a"}
		for range depth - 1 {
			e = &Element{Name: "a", Children: []Node{e}}
		}
		return e
	}
	wide := func(children int, child Node) *Element {
		e := &Element{Name: "a"}
		for range children {
			e.Children = append(e.Children, child)
		}
		return e
	}
	child, commented := &Element{Name: "b"}, &Element{Name: "b", Children: []Node{Comment("c"), Text("t")}}
	with := func(name string, e *Element) *Element { return &Element{Name: name, Children: []Node{e}} }
	for _, c := range []struct {
		what string
		of   func(int) *Element
		most int
	}{
		{"depth", nested, MaxDepth},
		{"children, each with a blank before it", func(n int) *Element { return wide(n, child) }, (MaxNodes - 2) / 2},
		{"texts and comments in lines", func(n int) *Element { return wide(n, commented) }, (MaxNodes - 2) / 4},
		{"what stands below metadata", func(n int) *Element { return with("d", with("metadata", wide(n, child))) }, (MaxNodes - 8) / 2},
		{"bytes", func(n int) *Element { return &Element{Name: "a", Children: []Node{Text(strings.Repeat("x", n))}} }, MaxSize - len("<a></a>\n")},
		{"bytes that are escaped", func(n int) *Element { return &Element{Name: "a", Children: []Node{Text(strings.Repeat("&", n))}} }, (MaxSize - len("<a></a>\n")) / len("&amp;")},
		{"signs of attributes in a text", func(n int) *Element { return &Element{Name: "a", Children: []Node{Text(strings.Repeat("=", n))}} }, MaxAttrs},
	} {
		text, err := Format(c.of(c.most))
		if err != nil {
			t.Errorf("%s: %v", c.what, err)
			continue
		}
		if _, err := Parse(text); err != nil {
			t.Errorf("%s: what was written is not read: %v", c.what, err)
		}
		text, err = Format(c.of(c.most + 1))
		if _, unread := Parse(text); fault.Of(err) != fault.Invalid || unread == nil {
			t.Errorf("%s: %v for one more, of which a reader says: %v", c.what, err, unread)
		}
	}
}

// Promise: X3
func FuzzParse(f *testing.F) {
	f.Add(`<domain type='kvm' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'><qemu:arg value='1'/></domain>`)
	f.Add(`<a><metadata><!-- c --><b:c xmlns:b="u" b:d="&#10;">mixed <b:e/> text</b:c></metadata> </a>`)
	f.Add("<a><![CDATA[<&]]>\r\n</a>")
	f.Add(`<a xmlns="u"><b xmlns=""/></a>`)
	f.Fuzz(func(t *testing.T, doc string) {
		root, err := Parse(doc)
		if err != nil {
			if fault.Of(err) != fault.Invalid {
				t.Fatalf("%v is %v", err, fault.Of(err))
			}
			return
		}
		printed, err := Format(root)
		if err != nil {
			if _, unread := Parse(printed); unread == nil {
				t.Fatalf("%q is not written, and could be read: %v", doc, err)
			}
			return
		}
		again, err := Parse(printed)
		if err != nil {
			t.Fatalf("cannot read %q, printed for %q: %v", printed, doc, err)
		}
		twice, err := Format(again)
		if err != nil || twice != printed {
			t.Fatalf("%q is printed as %q, then as %q (%v)", doc, printed, twice, err)
		}
		if lost := Unknown(root, again); len(lost) > 0 {
			t.Fatalf("%q lost %q", doc, lost)
		}
		var ignored struct{}
		if err := xml.Unmarshal([]byte(printed), &ignored); err != nil {
			t.Fatalf("%q does not unmarshal: %v", printed, err)
		}
	})
}
