package xmltree

import "testing"

// FuzzMetadata sets a user's element in a <metadata> with any text. Reading it returns
// the same element, setting it again changes nothing, and the elements of
// other namespaces stay.
// Promise: X9
func FuzzMetadata(f *testing.F) {
	f.Add("", "http://a.example/1", "x", `<app><role kind="web"/></app>`)
	f.Add(`<y:other xmlns:y="http://b.example/1">1 &lt; 2</y:other><x:app xmlns:x="http://a.example/1"/>`, "http://a.example/1", "x", `<app xmlns="urn:z" xmlns:q="urn:q" q:a="1"><q:b/></app>`)
	f.Add("text <!-- and a comment -->", "u", "xml", "<a/>")
	f.Add(`<x xmlns="u"/></metadata><metadata>`, "u", "", "")
	f.Fuzz(func(t *testing.T, inner, uri, prefix, doc string) {
		_, before, err := MetadataElement(inner, uri)
		if before && err != nil {
			t.Fatal(err)
		}
		set, err := SetMetadataElement(inner, uri, prefix, doc)
		if err != nil {
			return
		}
		got, there, err := MetadataElement(set, uri)
		if err != nil || there != (doc != "") {
			t.Fatalf("set, and then there: %v, %v\n%s", there, err, set)
		}
		if !there {
			return
		}
		again, err := SetMetadataElement(set, uri, prefix, got)
		if err != nil {
			t.Fatalf("what was got cannot be set: %v\n%s", err, got)
		}
		if twice, _, err := MetadataElement(again, uri); err != nil || twice != got {
			t.Fatalf("set again it is another (%v):\n%s\nnot\n%s", err, twice, got)
		}
		gone, err := SetMetadataElement(again, uri, "", "")
		if err != nil {
			t.Fatal(err)
		}
		if _, there, _ := MetadataElement(gone, uri); there {
			t.Fatalf("taken away, and there: %s", gone)
		}
	})
}
