// Package guestimagetest gives tests the guest image of `make guest`, and finds other
// files that make has built in the checkout.
package guestimagetest

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/lodge-kvm/lodge/internal/testguest"
)

// Variable names a directory with an image to use instead of the checkout's.
const Variable = "LODGE_GUEST_IMAGE"

// Find gives the image, and skips the test when there is none or when tests
// are to be short.
func Find(t testing.TB) testguest.Image {
	t.Helper()
	dir, err := filepath.EvalSymlinks(Made(t, Variable, "guest/current"))
	if err != nil {
		t.Skipf("no guest image: run make guest (%v)", err)
	}
	return testguest.In(dir)
}

// Made returns the path below .cache of a guest image that make has built, or the path in the variable. It skips
// the test with -short.
func Made(t testing.TB, variable, name string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("boots a guest: not among the short tests")
	}
	if path := os.Getenv(variable); path != "" {
		return path
	}
	_, here, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(here), "../../../.cache", name)
}
