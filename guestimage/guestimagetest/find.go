// Package guestimagetest gives tests the guest image that `make guest` has made.
package guestimagetest

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/lodge-kvm/lodge/guestimage"
)

// Variable names a directory with an image to use instead of the checkout's.
const Variable = "LODGE_GUEST_IMAGE"

// Find gives the image, and skips the test when there is none or when tests
// are to be short.
func Find(t testing.TB) guestimage.Image {
	t.Helper()
	if testing.Short() {
		t.Skip("boots a guest: not among the short tests")
	}
	dir := os.Getenv(Variable)
	if dir == "" {
		_, here, _, _ := runtime.Caller(0)
		dir = filepath.Join(filepath.Dir(here), "../../.cache/guest/current")
	}
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Skipf("no guest image: run make guest (%v)", err)
	}
	return guestimage.In(dir)
}
