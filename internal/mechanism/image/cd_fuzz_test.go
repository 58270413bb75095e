package image

import (
	"strings"
	"testing"
	"time"
)

// FuzzCD puts files with any names and content on a CD. The files must be read back whole
// from both directory trees of the CD.
func FuzzCD(f *testing.F) {
	f.Add("cidata", "user-data", []byte("#cloud-config\n"), "meta-data", []byte{})
	f.Add("a", "a.b", make([]byte, 2049), "a.c", make([]byte, 2048))
	f.Add("CIDATA", "../x", []byte{}, "", []byte{})
	f.Fuzz(func(t *testing.T, label, one string, first []byte, other string, second []byte) {
		want := map[string]string{one: string(first), other: string(second)}
		cd, err := CD(label, []CDFile{{one, first}, {other, second}}, time.Unix(1e9, 0))
		if err != nil {
			return
		}
		if len(want) != 2 {
			t.Fatalf("two files of the name %q are taken", one)
		}
		for _, form := range []struct {
			descriptor int
			text       func([]byte) string
			name       func(string) string
		}{
			{16, func(b []byte) string { return string(b) }, func(name string) string { return strings.ToUpper(name) + ";1" }},
			{17, fromUCS2, func(name string) string { return name }},
		} {
			_, got := readCD(t, cd, form.descriptor, form.text)
			for name, data := range want {
				if back, there := got[form.name(name)]; !there || back != data || len(got) != 2 {
					t.Fatalf("%q: %v, of %d files", name, there, len(got))
				}
			}
		}
	})
}
