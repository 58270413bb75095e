package domain

import (
	"strings"
	"testing"
)

func TestCheck_UnprintableNames(t *testing.T) {
	for name, good := range map[string]bool{
		"web-1": true, "Käse 7": true, "日本": true, strings.Repeat("x", maxName): true,
		"": false, " ": false, "..": false, "a/b": false, "a\x1b[2J": false, "a\u009b2J": false, "a\nb": false,
		"a\xff": false, strings.Repeat("x", maxName+1): false,
	} {
		if err := CheckName(name); (err == nil) != good {
			t.Errorf("%q: %v", name, err)
		}
	}
}
