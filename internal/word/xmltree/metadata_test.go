package xmltree

import "testing"

func TestMetadata_ReadsBack(t *testing.T) {
	const a, b = "http://a.example/1", "http://b.example/1"
	inner, err := SetMetadataElement("", a, "x", `<app><role kind="web"/></app>`)
	if err != nil {
		t.Fatal(err)
	}
	inner, err = SetMetadataElement(inner, b, "y", `<other>1 &lt; 2</other>`)
	if err != nil {
		t.Fatal(err)
	}
	inner, err = SetMetadataElement(inner, a, "x", `<app><role kind="db"/></app>`)
	if err != nil {
		t.Fatal(err)
	}
	want := `<y:other xmlns:y="http://b.example/1">1 &lt; 2</y:other>
<x:app xmlns:x="http://a.example/1">
  <x:role kind="db"/>
</x:app>
`
	if inner != want {
		t.Errorf("metadata is\n%s\nnot\n%s", inner, want)
	}
	got, there, err := MetadataElement(inner, a)
	if want := "<app>\n  <role kind=\"db\"/>\n</app>\n"; got != want || !there || err != nil {
		t.Errorf("got %q, %v, %v", got, there, err)
	}
	if inner, err = SetMetadataElement(inner, a, "x", ""); err != nil {
		t.Fatal(err)
	}
	if _, there, _ := MetadataElement(inner, a); there {
		t.Errorf("still there: %s", inner)
	}
	if _, there, _ := MetadataElement(inner, b); !there {
		t.Errorf("the other is gone too: %s", inner)
	}
}

// Promise: X9
func TestMetadata_Invalid(t *testing.T) {
	for _, c := range [][3]string{{"", "x", "<a/>"}, {"u", "", "<a/>"}, {"u", "x", "<a>"}, {"u", "x", "<a xmlns='v'/>"}, {"u", "xml", "<a/>"}, {"u", "x><y", "<a/>"}, {"u", "x y", "<a/>"}, {"u", "1", "<a/>"}, {"\xff", "x", "<a/>"}, {"\x00", "x", "<a/>"}} {
		if _, err := SetMetadataElement("", c[0], c[1], c[2]); err == nil {
			t.Errorf("%q was accepted", c)
		}
	}
}
