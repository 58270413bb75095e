package guest

import (
	"log/slog"
	"os"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
)

// If a guest's QEMU cannot be looked up, for example because no more files can be opened, the guest is not assumed
// to have ended.
// Promise: G5
func TestEmulatorIn_UnreadableProcess(t *testing.T) {
	const uuid = "5f0f2a0e-6d53-4a35-b1a6-0a1f3ad0c0de"
	host := t.TempDir() // which has no /proc
	r := &machine.Registry{Config: machine.Config{
		RunDir: t.TempDir(), Kernel: kernel.At(host), Cgroups: kernel.OpenCgroups(kernel.At(host), "x"), Log: slog.New(slog.DiscardHandler),
	}}
	dir := r.GuestDir(uuid)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := provision.ClearRunDir(t.Context(), r, dir); !fault.Is(err, fault.Failed) {
		t.Errorf("its run directory is cleared: %v", err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Error(err)
	}
	if _, err := findProcess(r, &machine.Instance{Dir: dir, RunRecord: machine.RunRecord{UUID: uuid}}); !fault.Is(err, fault.Failed) {
		t.Errorf("it is taken for one that has ended: %v", err)
	}
}

// A user adds another guest's UUID to QEMU's command line. The guest is not mistaken for the other.
// Promise: G5
func TestEmulatorIn_ByUUID(t *testing.T) {
	const own, other = "5f0f2a0e-6d53-4a35-b1a6-0a1f3ad0c0de", "c0ffee00-0000-4000-8000-0000000000a6"
	command := []string{"qemu", "-name", "guest=one,debug-threads=on", "-uuid", own, "-device", "x", "-uuid", other, other}
	for uuid, is := range map[string]bool{own: true, other: false} {
		if machine.IsGuest(command, "/run/"+uuid) != is {
			t.Errorf("it is taken for %s: %v", uuid, !is)
		}
	}
	for _, not := range [][]string{{"-uuid"}, {"-uuid", own}, {"guest=one", own}, nil} {
		if machine.IsGuest(not, "/run/"+own) {
			t.Errorf("%q is taken for a guest", not)
		}
	}
}
