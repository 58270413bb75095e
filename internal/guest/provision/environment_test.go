package provision

import (
	"slices"
	"strings"
	"testing"
)

// A guest with a time zone in its clock element gets that zone, and not the daemon's.
func TestOverrideEnvironment(t *testing.T) {
	t.Setenv("TZ", "Asia/Tokyo")
	env := overrideEnvironment(Environment("/own"), []string{"TZ=Europe/Berlin"})
	zones := slices.DeleteFunc(slices.Clone(env), func(e string) bool { return !strings.HasPrefix(e, "TZ=") })
	if !slices.Equal(zones, []string{"TZ=Europe/Berlin"}) || !slices.Contains(env, "HOME=/own") {
		t.Errorf("it has %v", env)
	}
}
