package volume

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// FuzzExports parses the export list of an NFS server, which may be hostile. Each export is a path of the
// list, and one that no document can hold affects no other.
func FuzzExports(f *testing.F) {
	f.Add("/srv/a *\n/srv/b\\040c 10.0.0.0/8,10.1.0.1\n\nrelative *\n/\x01 *\n/<&'\" *\n/\uFFFE *\n/\xff *\n")
	f.Fuzz(func(t *testing.T, list string) {
		doc, err := xmltree.Format(exports("server", list))
		if err != nil {
			t.Fatalf("%q cannot be told: %v", list, err)
		}
		root, err := xmltree.Parse(doc)
		if err != nil {
			t.Fatalf("%v\n%s", err, doc)
		}
		for _, source := range root.Elements() {
			path := source.Child("dir").Attr("path")
			if !strings.HasPrefix(path, "/") || !slices.Contains(strings.Fields(list), path) || !utf8.ValidString(path) || source.Child("host").Attr("name") != "server" {
				t.Fatalf("%q of %q", path, list)
			}
		}
	})
}
