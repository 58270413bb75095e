package seclabel

import (
	"strings"
	"testing"
)

// FuzzParseContext reads SELinux contexts, as files and processes have them. A valid one is
// written as it was read, and its pair, if it has one, is the pair of its level.
func FuzzParseContext(f *testing.F) {
	for _, text := range []string{
		"system_u:system_r:svirt_tcg_t:s0:c5,c1023", "system_u:object_r:svirt_image_t:s0", "u:r:t", "u:r:t:", "u:r:t:s0-s0:c0.c1023", "u:r:t:s0:c7,c7", "u:r:t:s0:c1,c1024", "u:r:t:s0:c01,c2", "::", "a b:r:t:s0", "u:r:t:s0:c1,c2,c3",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := ParseContext(text)
		pair, paired := PairOf(text)
		if err != nil {
			if paired {
				t.Fatalf("what is no label has the pair %v: %q", pair, text)
			}
			return
		}
		if c.String() != text || strings.ContainsAny(text, " \x00\n") {
			t.Fatalf("%q is read as %q", text, c)
		}
		if !paired {
			return
		}
		if pair.A < 0 || pair.A >= pair.B || pair.B >= categories {
			t.Fatalf("%q has the pair %v", text, pair)
		}
		if again, is := PairOf(c.withLevel(pair.level(c.lowLevel())).String()); !is || again != pair {
			t.Fatalf("the pair %v of %q is written as %v", pair, text, again)
		}
	})
}
