package kernel_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel/kerneltest"
)

// cardTree is a host with a card that is bound to a driver. Its files are plain: a write
// to them has no effect.
func cardTree(t *testing.T, driver string) (kernel.Root, kernel.PCIAddress, func(file string) string) {
	t.Helper()
	dir := t.TempDir()
	kerneltest.Write(t, dir, `sys/bus/pci/devices/0000:01:00.0/class = 0x020000
sys/bus/pci/devices/0000:01:00.0/driver_override = (null)
sys/bus/pci/devices/0000:01:00.0/driver -> ../../drivers/`+driver+`
sys/bus/pci/drivers/`+driver+`/unbind =
sys/bus/pci/drivers/vfio-pci/bind =
sys/bus/pci/drivers_probe =
`)
	return kernel.At(dir), kernel.PCIAddress{Bus: 1}, func(file string) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(dir, "sys/bus/pci", file))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
}

// TestPCI_RefusedByVFIO: the function returns to the driver that the
// kernel chooses.
func TestPCI_RefusedByVFIO(t *testing.T) {
	root, card, file := cardTree(t, "e1000e")
	if err := root.TakePCI(deadline(t), card); err == nil {
		t.Error("a card that keeps its driver counts as taken")
	}
	if got := file("devices/0000:01:00.0/driver_override"); got != "\n" {
		t.Errorf("the driver that is asked for is left at %q", got)
	}
	if got := file("drivers_probe"); got != card.String() {
		t.Errorf("the kernel looks for a driver of %q", got)
	}
}

func TestPCI_ReturnNotHeldByVFIO(t *testing.T) {
	for driver, unbound := range map[string]string{"e1000e": "\n", "vfio-pci": "0000:01:00.0"} {
		root, card, file := cardTree(t, driver)
		if err := root.ReturnPCI(deadline(t), card); err != nil {
			t.Errorf("%s: %v", driver, err)
		}
		if got := file("drivers/" + driver + "/unbind"); got != unbound {
			t.Errorf("%s is to let go of %q, want %q", driver, got, unbound)
		}
	}
	root, _, _ := cardTree(t, "vfio-pci")
	if err := root.ReturnPCI(deadline(t), kernel.PCIAddress{Bus: 2}); err != nil {
		t.Errorf("a card that is gone: %v", err)
	}
}

// TestPCI_AlreadyHeldByVFIO: another guest may use it.
func TestPCI_AlreadyHeldByVFIO(t *testing.T) {
	root, card, file := cardTree(t, "vfio-pci")
	if err := root.TakePCI(deadline(t), card); err != nil {
		t.Error(err)
	}
	if got := file("drivers/vfio-pci/unbind") + file("drivers_probe"); got != "\n\n" {
		t.Errorf("the kernel is told %q", got)
	}
}

// TestPCI_TakeTimedOut: a driver lets go only after the caller
// has given up. The device is busy until then, and is never bound to vfio-pci.
func TestPCI_TakeTimedOut(t *testing.T) {
	dir := t.TempDir()
	kerneltest.Write(t, dir, `sys/bus/pci/devices/0000:01:00.0/class = 0x020000
sys/bus/pci/devices/0000:01:00.0/driver -> ../../drivers/slow
sys/bus/pci/drivers/slow/x =
sys/bus/pci/drivers/vfio-pci/bind =
`)
	pipe := func(name string) string {
		name = filepath.Join(dir, "sys/bus/pci", name)
		if err := unix.Mkfifo(name, 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	override, unbind, probe := pipe("devices/0000:01:00.0/driver_override"), pipe("drivers/slow/unbind"), pipe("drivers_probe")
	told := func(name string) string { // each write waits for its reader
		t.Helper()
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	root, card := kernel.At(dir), kernel.PCIAddress{Bus: 1}
	ctx, stop := context.WithCancelCause(t.Context())
	failed := make(chan error, 1)
	go func() { failed <- root.TakePCI(ctx, card) }()
	if got := told(override); got != "vfio-pci\n" {
		t.Errorf("the driver that is asked for is %q", got)
	}
	stop(nil)
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("a take that is cut off: %v", err)
	}
	if err := root.ReturnPCI(deadline(t), card); !fault.Is(err, fault.Busy) {
		t.Errorf("a second change of its driver: %v", err)
	}
	told(unbind)
	if got := told(override); got != "\n" {
		t.Errorf("the driver that is asked for after that is %q", got)
	}
	told(unbind)
	if got := told(probe); got != card.String() {
		t.Errorf("the kernel looks for a driver of %q", got)
	}
}
