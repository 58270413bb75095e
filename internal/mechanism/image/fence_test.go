package image

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// A relative path lies in no folder. It is refused, because it would be resolved from the root.
func TestFence_RefusesRelativePaths(t *testing.T) {
	for _, folders := range [][]string{nil, {"/srv/build"}} {
		if f, err := OpenWithin("etc/hostname", unix.O_RDONLY, folders); f != nil || !fault.Is(err, fault.Invalid) {
			t.Errorf("held to %v, it opens %v, %v", folders, f, err)
		}
		called := false
		err := WithParent("etc/x", folders, func(string) error { called = true; return nil })
		if called || !fault.Is(err, fault.Invalid) {
			t.Errorf("held to %v, it may be made: %v", folders, err)
		}
	}
}
