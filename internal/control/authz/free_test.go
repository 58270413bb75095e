package authz

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// freeParts lists what a client that rules restrict may write freely in a definition, as far as the Authorizer
// checks single elements. Lines that begin with # are comments.
const freeParts = "testdata/free.txt"

// The Authorizer checks every attribute and text of a definition, or the list says that it concerns only its guest.
// A new one shows up here. The documents of domainxml, whose test checks that each attribute is parsed, are
// the set of all attributes.
//
// Promise: A3
func TestDocument_UncheckedPartsConcernOnlyTheGuest(t *testing.T) {
	docs, err := filepath.Glob("../../format/domainxml/testdata/define/*.xml")
	if err != nil || len(docs) == 0 {
		t.Fatal(docs, err)
	}
	docs = slices.DeleteFunc(docs, func(doc string) bool { return filepath.Base(doc) == "unknown-ignored.xml" })
	all := func(string) bool { return true }
	held := walker{allowedUses{pools: []string{"*"}, mayJoin: all, mayAffect: all, mayOpen: func(use) bool { return false }, mayName: all}}
	found := map[string]bool{}
	for _, doc := range docs {
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		root, err := xmltree.Parse(string(text))
		if err != nil {
			t.Fatal(err)
		}
		held.listFree(nil, root, "", found)
	}
	var free []string
	for part := range found {
		free = append(free, part)
	}
	slices.Sort(free)
	kept, err := os.ReadFile(freeParts)
	if err != nil {
		t.Fatal(err)
	}
	listed := slices.DeleteFunc(strings.Split(strings.TrimSpace(string(kept)), "\n"), func(line string) bool { return strings.HasPrefix(line, "#") })
	for _, part := range free {
		if !slices.Contains(listed, part) {
			t.Errorf("%s is not checked: check it in the Authorizer or, if it concerns only its guest, list it in %s", part, freeParts)
		}
	}
	for _, part := range listed {
		if !slices.Contains(free, part) {
			t.Errorf("%s is judged, or no part of a definition: it is to go from %s", part, freeParts)
		}
	}
}

// listFree finds the attributes and texts below an element that accept a word which the client has no right
// to. It removes the checked parts from the document, because a refusal would hide the rest: paths, listen
// addresses, and the networks of interfaces.
func (w walker) listFree(in, e *xmltree.Element, up string, found map[string]bool) {
	for i, a := range e.Attrs {
		switch {
		case strings.HasPrefix(a.Value, "/") || e.Name == "graphics" && a.Name == "listen":
			e.Attrs[i].Value = ""
		case e.Name == "interface" && a.Name == "type":
			e.Attrs[i].Value = "network"
		}
	}
	text := strings.TrimSpace(e.Text())
	if strings.HasPrefix(text, "/") {
		e.Children = nil
	}
	if e.Name == "metadata" || w.checkElement(in, e) != nil {
		return
	}
	at := strings.TrimPrefix(up+"/"+e.Name, "/")
	passes := func() bool { return w.checkElement(in, e) == nil }
	for i := range e.Attrs {
		if e.Attrs[i].Prefix == "xmlns" {
			continue
		}
		value := e.Attrs[i].Value
		if e.Attrs[i].Value = "word"; passes() {
			found[at+"/@"+e.Attrs[i].Name] = true
		}
		e.Attrs[i].Value = value
	}
	children := e.Children
	if text != "" {
		if e.Children = []xmltree.Node{xmltree.Text("word")}; passes() {
			found[at] = true
		}
		e.Children = children
	} else if len(e.Attrs)+len(children) == 0 { // its mere presence means something
		found[at] = true
	}
	for _, child := range e.Elements() {
		w.listFree(e, child, at, found)
	}
}
