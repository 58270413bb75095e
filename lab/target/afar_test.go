package target

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/remote"
	"github.com/lodge-kvm/lodge/lab/scenario"
	"github.com/lodge-kvm/lodge/lab/target/targettest"
)

// anImage is one whose root is a hole but for its end, which is how it was sent.
func anImage(t *testing.T) (image Image, sent map[string]string) {
	t.Helper()
	dir := t.TempDir()
	root := strings.Repeat("\x00", 1<<20) + "the end"
	sent = map[string]string{"0123456789abcdef-vmlinuz": "kernel", "0123456789abcdef-initrd": strings.Repeat("i", 600_000), "0123456789abcdef-usr.raw": "usr", "0123456789abcdef-root.raw": root, "0123456789abcdef-whole": ""}
	for name, text := range sent {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.WriteAt([]byte(strings.TrimLeft(text, "\x00")), int64(len(text)-len(strings.TrimLeft(text, "\x00"))))
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	at := func(name string) string { return filepath.Join(dir, "0123456789abcdef-"+name) }
	return Image{Digest: "0123456789abcdef0123", Kernel: at("vmlinuz"), Initrd: at("initrd"), Usr: at("usr.raw"), Root: at("root.raw")}, sent
}

// store is the pool that images are kept in below /srv/lab.
func store(t *testing.T, d *targettest.Daemon) string {
	t.Helper()
	for _, call := range d.Calls() {
		if _, pool, ok := strings.Cut(call, "STORAGE_POOL_DESTROY lodge-lab-images-"); ok {
			return "lodge-lab-images-" + pool
		}
	}
	t.Fatalf("no images are kept: %q", d.Calls())
	return ""
}

// sends counts the files that were sent.
func sends(d *targettest.Daemon) (n int) {
	for _, call := range d.Calls() {
		if strings.HasPrefix(call, "STORAGE_VOL_CREATE_XML 0123456789abcdef-") {
			n++
		}
	}
	return n
}

// Guests at a daemon that is away boot an image that is sent once, and their files are
// there; of a run the image alone is left, until that is dropped.
// Promise: L72
func TestTheImageIsSentOnceAndKept(t *testing.T) {
	image, sent := anImage(t)
	d := &targettest.Daemon{}
	far := connectTo(t, d.ListenAfar(t))
	s, err := far.Open(t.Context(), "lab-abc", 1, "/srv/lab", image)
	if err != nil {
		t.Fatal(err)
	}
	images := store(t, d)
	for file, text := range d.Volumes(images) {
		if text != sent[file] {
			t.Errorf("%s has %d bytes, and was sent with %d", file, len(text), len(sent[file]))
		}
	}
	if sends(d) != 5 || len(d.Volumes(images)) != 5 {
		t.Errorf("sent: %q", d.Calls())
	}
	plain := spec
	plain.Node, plain.Pages = "", ""
	g, err := s.Start(t.Context(), "lab-abc-t1-db", 1, 1, plain)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"<kernel>/srv/lab/images/0123456789abcdef-vmlinuz<", "<initrd>/srv/lab/images/0123456789abcdef-initrd<", "file='/srv/lab/images/0123456789abcdef-usr.raw'",
		"file='/srv/lab/lab-abc-1/lab-abc-t1-db-root.qcow2'", "<source path='/srv/lab/lab-abc-1/lab-abc-t1-db.console'/>",
	} {
		if !strings.Contains(g.XML, want) {
			t.Errorf("no %s in %s", want, g.XML)
		}
	}
	d.Fill("lab-abc-1-files", "lab-abc-t1-db.console", "\x00\x00Kernel panic\r\n\x1b[2J: no init\n")
	if last := g.Console(t.Context()); !slices.Equal(last, []string{"Kernel panic", "[2J: no init"}) {
		t.Errorf("its console ends %q", last)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"DOMAIN_DESTROY lab-abc-t1-db", "STORAGE_VOL_DELETE lab-abc-t1-db-root.qcow2", "STORAGE_POOL_DELETE lab-abc-1-files", "STORAGE_POOL_UNDEFINE lab-abc-1-files"} {
		if !slices.Contains(d.Calls(), want) {
			t.Errorf("no %s among %q", want, d.Calls())
		}
	}
	if left := d.Left(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	again, err := far.Open(t.Context(), "lab-abd", 1, "/srv/lab", image)
	if err != nil || sends(d) != 5 {
		t.Errorf("%v, sent again: %d", err, sends(d))
	}
	if err := again.Close(t.Context()); err != nil {
		t.Error(err)
	}
	// One that was sent in part only is sent anew.
	d.Lose(images, "0123456789abcdef-whole")
	if again, err = far.Open(t.Context(), "lab-abe", 1, "/srv/lab", image); err != nil || sends(d) != 10 {
		t.Errorf("%v, sent %d", err, sends(d))
	}
	if err := errors.Join(again.Close(t.Context()), far.DropImages(t.Context(), "/srv/lab")); err != nil || len(d.Volumes(images)) > 0 || !slices.Contains(d.Calls(), "STORAGE_POOL_DELETE "+images) {
		t.Errorf("%v: there is %v", err, d.Volumes(images))
	}
}

// What a killed run has left is taken away after the host was booted, too: its pool is
// gone then.
// Promise: L72
func TestCleanAfar(t *testing.T) {
	d := &targettest.Daemon{Domains: []xdr.Domain{{Name: "lab-abc-t1-db"}, {Name: "mine"}}, Pools: []xdr.StoragePool{{Name: "default"}}}
	if err := connectTo(t, d.ListenAfar(t)).CleanAfar(t.Context(), "lab-abc", 2, "/srv/lab"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"DOMAIN_DESTROY lab-abc-t1-db", "STORAGE_POOL_DESTROY lab-abc-2-files", "STORAGE_POOL_DELETE lab-abc-2-files", "STORAGE_POOL_UNDEFINE lab-abc-2-files"} {
		if !slices.Contains(d.Calls(), want) {
			t.Errorf("no %s among %q", want, d.Calls())
		}
	}
	if want := []string{"domain mine", "pool default"}; !slices.Equal(d.Left(), want) {
		t.Errorf("left: %q", d.Left())
	}
}

// Wherever the lab is killed, cleaning takes all away that it has left: calls that are
// refused stand for those that it did not come to.
// Promise: L72
func TestCleanAfarAfterAKillAtEachStep(t *testing.T) {
	image, _ := anImage(t)
	for what, never := range map[string][]int32{
		"while the image is sent":            {xdr.ProcStorageVolUpload, xdr.ProcStoragePoolDestroy, xdr.ProcDomainDestroy, xdr.ProcNetworkDestroy},
		"with guests":                        {xdr.ProcDomainDestroy, xdr.ProcStorageVolDelete, xdr.ProcStoragePoolDestroy, xdr.ProcNetworkDestroy},
		"before the directory is removed":    {xdr.ProcStoragePoolDefineXML, xdr.ProcNetworkDestroy},
		"while the directory is removed":     {xdr.ProcStoragePoolDelete, xdr.ProcStoragePoolUndefine, xdr.ProcNetworkDestroy},
		"when the directory is just removed": {xdr.ProcStoragePoolUndefine, xdr.ProcNetworkDestroy},
	} {
		d := &targettest.Daemon{Refuse: map[int32]*remote.Error{}}
		for _, proc := range never {
			d.Refuse[proc] = &remote.Error{Code: 1, Message: "it was killed"}
		}
		far := connectTo(t, d.ListenAfar(t))
		killed := ""
		s, err := far.Open(t.Context(), "lab-abc", 1, "/srv/lab", image)
		if err == nil {
			_, err = s.Start(t.Context(), "lab-abc-t1-db", 1, 1, scenario.Guest{Memory: 128 * scenario.MiB, VCPUs: 1, MaxVCPUs: 1})
			err = errors.Join(err, s.Close(t.Context()))
		}
		if err != nil {
			killed = err.Error()
		}
		if !strings.Contains(killed, "it was killed") || len(d.Left()) == 0 {
			t.Errorf("%s: %s, left: %q", what, killed, d.Left())
		}
		d.RefuseNothing()
		if err := far.CleanAfar(t.Context(), "lab-abc", 1, "/srv/lab"); err != nil || len(d.Left()) > 0 {
			t.Errorf("%s: %v, left: %q", what, err, d.Left())
		}
	}
}

// Promise: L74
func TestWhatIsNotSeenAfarIsSkipped(t *testing.T) {
	image, _ := anImage(t)
	d := &targettest.Daemon{}
	far := connectTo(t, d.ListenAfar(t))
	s, err := far.Open(t.Context(), "lab-abc", 1, "/srv/lab", image)
	if err != nil {
		t.Fatal(err)
	}
	for _, place := range []string{scenario.StoreDevice, "/dev/sdz"} {
		g := scenario.Guest{Memory: 128 * scenario.MiB, VCPUs: 1, MaxVCPUs: 1, Disks: []scenario.Disk{{Name: "data", Size: scenario.GiB, Bus: "virtio", Format: "raw", Store: place}}}
		_, err := s.Start(t.Context(), "lab-abc-t1-x", 1, 1, g)
		if skipped, ok := errors.AsType[*Skipped](err); !ok || !strings.Contains(skipped.Reason, "another host") {
			t.Errorf("%s: %v", place, err)
		}
	}
	if far.Machine().Processors != 4 || far.Machine().Memory != 8<<30 {
		t.Errorf("its host is %+v", far.Machine())
	}
	if memory, err := far.MemoryAvailable(t.Context()); err != nil || memory != 3<<30 {
		t.Errorf("%d bytes available, %v", memory, err)
	}
	if disk, err := far.DiskAvailable(t.Context(), "/srv/lab", image); err != nil || disk != 100<<30 {
		t.Errorf("%d bytes of disk, %v", disk, err)
	}
}
