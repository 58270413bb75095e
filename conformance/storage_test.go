package conformance

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestStorage(t *testing.T) {
	needs(t, "qemu-img")
	d := start(t)
	dir := filepath.Join(d.dir, "images")
	v := func(args ...string) string {
		t.Helper()
		return d.virsh(t, args...)
	}
	v("pool-define-as", "images", "dir", "--target", dir)
	v("pool-build", "images")
	v("pool-start", "images")
	contains(t, "pool-list", v("pool-list", "--details"), "images", "running", "no", "yes")
	contains(t, "pool-info", v("pool-info", "images"), "Name:           images", "State:          running", "Persistent:     yes", "Capacity:", "Available:")
	contains(t, "pool-dumpxml", v("pool-dumpxml", "images"), "<pool type='dir'>", "<path>"+dir+"</path>", "<capacity unit='bytes'>")

	v("vol-create-as", "images", "thin.qcow2", "1G", "--format", "qcow2")
	v("vol-create-as", "images", "full.raw", "8M", "--format", "raw", "--allocation", "8M")
	v("vol-create-as", "images", "child.qcow2", "1G", "--format", "qcow2", "--backing-vol", "thin.qcow2", "--backing-vol-format", "qcow2")
	contains(t, "vol-list", v("vol-list", "images", "--details"), "thin.qcow2", "full.raw", "child.qcow2", "1.00 GiB", "8.00 MiB")
	contains(t, "vol-info", v("vol-info", "thin.qcow2", "images"), "Type:           file", "Capacity:       1.00 GiB")
	contains(t, "vol-dumpxml", v("vol-dumpxml", "child.qcow2", "images"), "<volume type='file'>", "<format type='qcow2'/>", "<backingStore>", dir+"/thin.qcow2")
	contains(t, "vol-path", v("vol-path", "full.raw", "images"), dir+"/full.raw")
	contains(t, "vol-pool", v("vol-pool", dir+"/full.raw"), "images")
	contains(t, "the same name again", d.mustFail(t, "vol-create-as", "images", "full.raw", "1M"), "full.raw")

	content := bytes.Repeat([]byte("lodge was here\n"), 100_000)
	up, down := filepath.Join(d.dir, "up"), filepath.Join(d.dir, "down")
	if err := os.WriteFile(up, content, 0o644); err != nil {
		t.Fatal(err)
	}
	v("vol-upload", "full.raw", up, "--pool", "images")
	v("vol-clone", "full.raw", "copy.raw", "--pool", "images")
	v("vol-download", "copy.raw", down, "--pool", "images")
	got, err := os.ReadFile(down)
	if err != nil || len(got) != 8<<20 || !bytes.HasPrefix(got, content) {
		t.Errorf("a clone of the uploaded volume downloads as %d bytes, equal: %v, %v", len(got), bytes.HasPrefix(got, content), err)
	}
	v("vol-resize", "copy.raw", "16M", "--pool", "images")
	contains(t, "vol-info", v("vol-info", "copy.raw", "images"), "16.00 MiB")
	v("vol-wipe", "full.raw", "--pool", "images")
	if wiped, _ := os.ReadFile(filepath.Join(dir, "full.raw")); len(wiped) != 8<<20 || bytes.Contains(wiped, []byte("lodge")) {
		t.Errorf("wiping leaves %d bytes, with the old content: %v", len(wiped), bytes.Contains(wiped, []byte("lodge")))
	}

	if err := os.WriteFile(filepath.Join(dir, "found.raw"), make([]byte, 4096), 0o644); err != nil {
		t.Fatal(err)
	}
	v("pool-refresh", "images")
	contains(t, "vol-list after a refresh", v("vol-list", "images"), "found.raw")
	for _, name := range []string{"child.qcow2", "thin.qcow2", "full.raw", "copy.raw", "found.raw"} {
		v("vol-delete", name, "--pool", "images")
	}
	v("pool-autostart", "images")
	contains(t, "pool-info", v("pool-info", "images"), "Autostart:      yes")
	v("pool-destroy", "images")
	v("pool-delete", "images")
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the pool's directory is still there: %v", err)
	}
	v("pool-undefine", "images")
	if list := v("pool-list", "--all"); strings.TrimSpace(list) != "" {
		t.Errorf("left: %s", list)
	}
}

func TestNodeDevices(t *testing.T) {
	needs(t)
	d := start(t)
	contains(t, "nodedev-list", d.virsh(t, "nodedev-list"), "computer")
	contains(t, "nodedev-dumpxml", d.virsh(t, "nodedev-dumpxml", "computer"), "<device>", "<name>computer</name>", "<capability type='system'>")
	contains(t, "nodedev-list --cap net", d.virsh(t, "nodedev-list", "--cap", "net"), "net_lo_")
	for _, verb := range []string{"nodedev-detach", "nodedev-reattach"} {
		contains(t, verb, d.mustFail(t, verb, "computer"), "not a PCI device")
	}
	for name := range strings.FieldsSeq(d.virsh(t, "nodedev-list", "--cap", "pci")) {
		contains(t, "the driver", d.mustFail(t, "nodedev-detach", name, "--driver", "xen"), "vfio alone")
	}
}
