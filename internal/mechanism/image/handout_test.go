package image

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// TestOpenForQEMU_ReplacedHeader: a writer that changes the header of an image after the daemon has read
// it, and before QEMU does, could make QEMU open any file it names. From OpenForQEMU on the image counts as in
// use, so an upload is refused.
// Promise: X2
func TestOpenForQEMU_ReplacedHeader(t *testing.T) {
	f := empty(t, "image")
	err := tool(t).Make(t.Context(), f, Plan{Format: Qcow2, Virtual: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	chain, err := OpenChain(t.Context(), scope.Daemon("a test"), f.Name(), Qcow2)
	if err != nil {
		t.Fatal(err)
	}
	defer chain.Close()
	out, err := chain[0].OpenForQEMU(unix.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	if InUse(f) != Written {
		t.Error("nobody sees that it is handed out to be written")
	}
	if err := out.Close(); err != nil || InUse(f) != Unused {
		t.Errorf("it is in use when nobody has it: %v", err)
	}
	if _, err := f.WriteAt([]byte{incompatExternalData}, 79); err != nil { // its data lie elsewhere
		t.Fatal(err)
	}
	var back *os.File
	if back, err = chain[0].OpenForQEMU(unix.O_RDWR); !fault.Is(err, fault.Busy) || back != nil {
		t.Errorf("it is handed out with another header: %v", err)
	}
}

// A QEMU that never used a file it was given keeps it open while it is paused. The same QEMU may then be given the
// file once more: none of the bytes that QEMU checks says that there is a writer. The same holds for a file that
// QEMU uses.
// Promise: F20
func TestOpenForQEMU_Twice(t *testing.T) {
	f := empty(t, "image")
	chain, err := OpenChain(t.Context(), scope.Daemon("a test"), f.Name(), Raw)
	if err != nil {
		t.Fatal(err)
	}
	defer chain.Close()
	handOut := func() *os.File {
		out, err := chain[0].OpenForQEMU(unix.O_RDWR)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = out.Close() }) // nothing was written
		if hasLock(out, lockHeld+permWrite, 1) || hasLock(out, lockDenied, permCount) {
			t.Error("QEMU would find a writer")
		}
		return out
	}
	handOut()
	if err := setLock(handOut(), lockDenied+permWrite); err != nil { // QEMU has come to use it
		t.Fatal(err)
	}
	if _, err := chain[0].OpenForQEMU(unix.O_RDWR); err != nil {
		t.Error("it is not handed to who has it: ", err)
	}
}

// TestOpenForQEMU_RemovedFile: if one client removes an image while another gives it to QEMU to write, one of them
// comes first, and the other gets an error.
// Promise: F20
func TestOpenForQEMU_RemovedFile(t *testing.T) {
	f := empty(t, "image")
	if err := f.Truncate(1 << 20); err != nil {
		t.Fatal(err)
	}
	chain, err := OpenChain(t.Context(), scope.Daemon("a test"), f.Name(), Raw)
	if err != nil {
		t.Fatal(err)
	}
	defer chain.Close()
	out, err := chain[0].OpenForQEMU(unix.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	if err := LockToRemove(f); !fault.Is(err, fault.Busy) {
		t.Errorf("what is handed out may be removed: %v", err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	if err := LockToRemove(f); err != nil {
		t.Fatal(err)
	}
	if _, err := chain[0].OpenForQEMU(unix.O_RDWR); !fault.Is(err, fault.Busy) {
		t.Errorf("it is handed out as it is removed: %v", err)
	}
	out, err = chain[0].OpenForQEMU(unix.O_RDONLY)
	if err != nil {
		t.Errorf("nobody would write: %v", err)
	}
	_ = out.Close() // opened to read
	// On NFS, a file that is removed while it is open has such a name until it is closed.
	asNFS := filepath.Join(filepath.Dir(f.Name()), ".nfs0001")
	if err := errors.Join(f.Close(), os.Rename(f.Name(), asNFS)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := chain[0].OpenForQEMU(unix.O_RDWR); !fault.Is(err, fault.NotFound) {
			t.Errorf("it is handed out when it is gone: %v", err)
		}
		_ = os.Remove(asNFS)
	}
}
