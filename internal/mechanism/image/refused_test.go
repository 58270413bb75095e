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

// refusedAsRoot runs do as root without the capabilities that override the modes of files. It imitates
// a file system that does its own checks.
func refusedAsRoot(t *testing.T, do func()) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root, to be root without its capabilities")
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends, with the capabilities it dropped
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

// A file system may refuse an image to root, as NFS with root_squash does. The image is then not
// opened, and the client learns the reason and the remedy. The daemon reports it when it opens
// the image itself, when it opens a folder, and when qemu-img was given the image.
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
