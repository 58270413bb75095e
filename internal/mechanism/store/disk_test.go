package store

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

var quiet = slog.New(slog.DiscardHandler)

// small mounts a file system of a few megabytes of its own.
func small(t *testing.T, size string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("mounts file systems")
	}
	if os.Getuid() != 0 {
		t.Skip("needs root to mount")
	}
	dir := t.TempDir()
	if err := unix.Mount("small", dir, "tmpfs", 0, "mode=0700,size="+size); err != nil {
		t.Skip("cannot mount here:", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(errors.Join(err, unix.Unmount(dir, unix.MNT_DETACH)))
		}
	})
	return dir
}

// stuff fills a file system to the last byte, and returns a function that makes room again.
func stuff(t *testing.T, dir string) (free func()) {
	t.Helper()
	path := filepath.Join(dir, "stuffing")
	f, err := os.Create(path)
	must(t, err)
	defer f.Close()
	for block := make([]byte, 4096); err == nil; {
		_, err = f.Write(block)
	}
	return func() { must(t, os.Remove(path)) }
}

// soon waits until a change is accepted: a file that could not be opened is not
// tried again at once.
func soon(t *testing.T, change func() error) {
	t.Helper()
	for late := time.Now().Add(30 * time.Second); ; {
		err := change()
		if err == nil {
			return
		}
		if time.Now().After(late) {
			t.Fatal(err)
		}
		<-time.After(20 * time.Millisecond)
	}
}

// Promise: S7
func TestReserveSpace_ChangeOnFullDisk(t *testing.T) {
	dir := small(t, "4m")
	s, err := OpenLogged(dir, quiet)
	must(t, err)
	must(t, s.Put(guests, "g", guest{Name: "before"}))
	big := guest{Name: strings.Repeat("x", 100<<10)}
	must(t, s.ReserveSpace(len(big.Name)))
	free := stuff(t, dir)
	for n := range 8 { // each takes as much as the one before
		big.Name += strings.Repeat("y", n)
		if err := s.Put(guests, "g", big); err != nil {
			t.Fatalf("change %d: %v", n, err)
		}
	}
	if err := s.ReserveSpace(16 << 20); !fault.Is(err, fault.NoCapacity) {
		t.Errorf("room that there is not was kept: %v", err)
	}
	free()
	must(t, s.Close())
	s, err = OpenLogged(dir, quiet)
	must(t, err)
	var g guest
	must(t, s.Get(guests, "g", &g))
	if g.Name != big.Name {
		t.Error("the last change is lost")
	}
	must(t, s.Close())
}

// Promise: S1
func TestPut_DiskFull(t *testing.T) {
	dir := small(t, "2m")
	s, err := OpenLogged(dir, quiet)
	must(t, err)
	must(t, s.Put(guests, "before", guest{Name: "before"}))
	free := stuff(t, dir)
	big := guest{Name: strings.Repeat("x", 100<<10)}
	err = s.Put(guests, "refused", big)
	if !fault.Is(err, fault.NoCapacity) || !strings.Contains(err.Error(), "full") || !strings.Contains(err.Error(), dir) {
		t.Fatalf("a full disk gave %v", err)
	}
	if s.Health() == nil {
		t.Error("the store says that it is well")
	}
	var g guest
	must(t, s.Get(guests, "before", &g))
	if err := s.Get(guests, "refused", &g); !fault.Is(err, fault.NotFound) {
		t.Errorf("what was refused is there (%v)", err)
	}
	free()
	soon(t, func() error { return s.Put(guests, "after", big) })
	if err := s.Health(); err != nil {
		t.Errorf("with room again the store says %v", err)
	}
	must(t, s.Close())
	checkKept(t, dir, "before", "after")
}

// checkKept expects exactly these records in a store that is opened again.
func checkKept(t *testing.T, dir string, keys ...string) {
	t.Helper()
	r, err := Check(dir)
	must(t, err)
	if !r.Whole() {
		t.Errorf("the file is not whole: %v", r.Problems)
	}
	s, err := OpenLogged(dir, quiet)
	must(t, err)
	whole, _ := readable(t, s)
	for _, k := range keys {
		if whole[k] == "" {
			t.Errorf("the acknowledged record %s is lost", k)
		}
	}
	if len(whole) != len(keys) {
		t.Errorf("%d records are there, want %v", len(whole), keys)
	}
	must(t, s.Close())
}

// Promise: S1
func TestOpen_NewStoreOnFullDisk(t *testing.T) {
	dir := small(t, "1m")
	free := stuff(t, dir)
	s, err := OpenLogged(dir, quiet)
	must(t, err)
	if err := s.Health(); !fault.Is(err, fault.NoCapacity) {
		t.Errorf("on a full disk the store says %v", err)
	}
	if whole, _ := readable(t, s); len(whole) != 0 {
		t.Errorf("found %v", whole)
	}
	free()
	soon(t, func() error { return s.Put(guests, "first", guest{Name: "first"}) })
	must(t, s.Close())
	checkKept(t, dir, "first")
}

// Promise: S1
func TestOpen_ReadOnlyDisk(t *testing.T) {
	dir := small(t, "2m")
	s, err := OpenLogged(dir, quiet)
	must(t, err)
	must(t, s.Put(guests, "before", guest{Name: "before"}))
	must(t, s.Close())
	must(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))

	s, err = OpenLogged(dir, quiet)
	must(t, err)
	if err := s.Health(); err == nil || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("on a read-only disk the store says %v", err)
	}
	var g guest
	must(t, s.Get(guests, "before", &g))
	if err := s.Put(guests, "refused", g); err == nil || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("a change gave %v", err)
	}
	must(t, unix.Mount("", dir, "", unix.MS_REMOUNT, ""))
	soon(t, func() error { return s.Put(guests, "after", guest{Name: "after"}) })
	must(t, s.Close())
	checkKept(t, dir, "before", "after")
}

// A disk that cannot write fails at the sync, after it accepted the writes.
// Nothing tells then which of them are on disk.
// Promise: S1
func TestPut_DiskFails(t *testing.T) {
	below := small(t, "12m")
	img := filepath.Join(below, "disk")
	must(t, os.WriteFile(img, nil, 0o600))
	must(t, os.Truncate(img, 32<<20))
	run(t, "mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", "-O", "^has_journal", img)
	device := run(t, "losetup", "--find", "--show", img)
	t.Cleanup(func() { run(t, "losetup", "--detach", device) })
	dir := t.TempDir()
	must(t, unix.Mount(device, dir, "ext4", 0, "errors=continue"))
	mounted := true
	t.Cleanup(func() {
		if mounted {
			_ = unix.Unmount(dir, unix.MNT_DETACH) // a test that failed
		}
	})

	s, err := OpenLogged(dir, quiet)
	must(t, err)
	must(t, s.Put(guests, "before", guest{Name: "before"}))
	free := stuff(t, below) // the disk has no room for its own blocks: I/O errors
	var refused error
	for i := 0; i < 64 && refused == nil; i++ {
		refused = s.Put(guests, "refused", guest{Name: strings.Repeat("x", 1<<20)})
	}
	if refused == nil || s.Health() == nil {
		t.Fatalf("a failing disk took the change: %v, %v", refused, s.Health())
	}
	t.Log(refused)
	var g guest
	must(t, s.Get(guests, "before", &g))
	free()
	soon(t, func() error { return s.Put(guests, "after", guest{Name: "after"}) })
	must(t, s.Close())
	must(t, unix.Unmount(dir, 0))
	must(t, unix.Mount(device, dir, "ext4", 0, "")) // from the disk, and not from memory
	s, err = OpenLogged(dir, quiet)
	must(t, err)
	whole, _ := readable(t, s)
	if whole["before"] == "" || whole["after"] == "" {
		t.Errorf("of the acknowledged records %d are left", len(whole))
	}
	must(t, s.Close())
	must(t, unix.Unmount(dir, 0))
	mounted = false
}

func run(t *testing.T, argv ...string) string {
	t.Helper()
	if _, err := exec.LookPath(argv[0]); err != nil {
		t.Skip("needs", argv[0])
	}
	out, err := exec.CommandContext(context.WithoutCancel(t.Context()), argv[0], argv[1:]...).CombinedOutput()
	if err != nil && !strings.HasPrefix(argv[len(argv)-1], "/dev/loop") {
		t.Skipf("%s does not work here: %v: %s", argv[0], err, out)
	}
	return strings.TrimSpace(string(out))
}
