package image

import (
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// refusedAsRoot does something as a root who is nobody special, as on a file system that
// decides by itself: without the capabilities that override the modes of files.
func refusedAsRoot(t *testing.T, do func()) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root, to be root without its capabilities")
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends, with what it lacks
		done <- func() error {
			for _, c := range []uintptr{unix.CAP_DAC_OVERRIDE, unix.CAP_DAC_READ_SEARCH} {
				if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
					return err
				}
			}
			head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			var caps [2]unix.CapUserData
			if err := unix.Capget(&head, &caps[0]); err != nil {
				return err
			}
			for _, set := range []*uint32{&caps[0].Effective, &caps[0].Permitted, &caps[0].Inheritable} {
				*set &^= 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH
			}
			if err := unix.Capset(&head, &caps[0]); err != nil {
				return err
			}
			do()
			return nil
		}()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// An image that its file system keeps from root, as NFS with root_squash does, is not
// opened, and whoever wanted it learns why and what to do: by the daemon, in a folder, and
// by qemu-img that was handed it.
// Promise: F13
func TestOpen_FileSystemRefusesRoot(t *testing.T) {
	tool, err := FindTool(nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Skip("needs qemu-img:", err)
	}
	folder := filepath.Join(t.TempDir(), "of-others")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(folder, "image"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const nobody = 65534
	refuses := func(what string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "root_squash") || !strings.Contains(err.Error(), "ermission denied") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if !isUnsupported(unix.EACCES) { // such file systems refuse attributes, too; guests start all the same
		t.Error("an attribute that may not be set is more than none")
	}
	if err := f.Chown(nobody, nobody); err != nil {
		t.Fatal(err)
	}
	refusedAsRoot(t, func() {
		_, err := Open(f.Name())
		refuses("an image of others", err)
		refuses("what qemu-img is handed", tool.Make(t.Context(), f, Plan{Format: Qcow2, Virtual: mib}))
	})
	if err := os.Chown(folder, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	refusedAsRoot(t, func() {
		_, err := Open(f.Name())
		refuses("an image in a folder of others", err)
	})
}
