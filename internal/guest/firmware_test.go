package guest_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// A guest's firmware or variables file is replaced by an image with a header that names a backing or data file.
// QEMU would open that file by any protocol that it knows, and the guest would read it.
// Promise: A3
func TestFirmware_BackingFileRefused(t *testing.T) {
	for _, isolated := range []bool{true, false} {
		t.Run(fmt.Sprintf("isolated=%v", isolated), func(t *testing.T) { testFirmware(t, isolated) })
	}
}

func testFirmware(t *testing.T, isolated bool) {
	d := newDaemonOf(t, isolated)
	dir := t.TempDir()
	secret, whole, above, beside := filepath.Join(dir, "secret"), filepath.Join(dir, "whole"), filepath.Join(dir, "above"), filepath.Join(dir, "beside")
	ok(t, os.WriteFile(secret, make([]byte, 1<<20), 0o600))
	tool(t, "create", "-q", "-f", "qcow2", whole, "1M")
	tool(t, "create", "-q", "-f", "qcow2", "-b", secret, "-F", "raw", above)
	tool(t, "create", "-q", "-f", "qcow2", "-o", "data_file="+secret, beside, "1M")
	define := func(code, vars string) *guest.Guest {
		t.Helper()
		return d.define(strings.NewReplacer("</name>", "</name><uuid>00000000-1111-4222-8333-44444444f1a5</uuid>", "</os>",
			"<loader readonly='yes' type='pflash' format='qcow2'>"+code+"</loader><nvram format='qcow2'>"+vars+"</nvram></os>").Replace(small("flashed")))
	}
	const says = "its header names another file"
	for _, leads := range []string{above, beside} {
		refused(t, launch.Start(d.ctx(), define(leads, whole), scope.Daemon("a test"), launch.StartOptions{}), fault.Unsupported, says)
		refused(t, launch.Start(d.ctx(), define(whole, leads), scope.Daemon("a test"), launch.StartOptions{}), fault.Unsupported, says)
	}
	vars := filepath.Join(dir, "vars")
	tool(t, "create", "-q", "-f", "qcow2", vars, "1M")
	ok(t, launch.Start(d.ctx(), define(whole, vars), scope.Daemon("a test"), launch.StartOptions{Paused: true}))
}

// QEMU reads a device's ROM from a file of the user, although the sandbox shows little of the host.
func TestFirmware_OptionROMShown(t *testing.T) {
	d := newDaemonOf(t, true)
	rom := filepath.Join(t.TempDir(), "rom")
	ok(t, os.WriteFile(rom, make([]byte, 4<<10), 0o600))
	g := d.define(small("read", "<interface type='user'><model type='virtio'/><rom file='"+rom+"'/></interface>"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{Paused: true}))
}
