package image

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A daemon may give an image's files to whom its QEMU runs as, and be killed.
// Promise: L43
func TestAnImageIsGivenBackAsItWas(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "usr.erofs")
	err := errors.Join(os.WriteFile(path, nil, 0o644), os.WriteFile(filepath.Join(dir, facts), nil, 0o644))
	marked := unix.Setxattr(path, "user.mine", []byte("1"), 0) == nil
	if os.Geteuid() == 0 {
		err = errors.Join(err, os.Chown(path, 64055, 64055))
		marked = marked && unix.Setxattr(path, "trusted.libvirt.security.ref_dac", []byte("1"), 0) == nil
	}
	i := Image{Kernel: path, Initrd: path, Usr: path, Root: path}
	if err = errors.Join(err, i.GiveBack()); err != nil {
		t.Fatal(err)
	}
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil || int(stat.Uid) != os.Geteuid() {
		t.Errorf("its owner is %d, %v", stat.Uid, err)
	}
	if marks := marksOf(path); len(marks) > 0 {
		t.Errorf("marks %v are left", marks)
	}
	if _, err := unix.Getxattr(path, "user.mine", make([]byte, 10)); marked && err != nil {
		t.Errorf("an attribute that is no daemon's has gone: %v", err)
	}
	if err := (Image{Kernel: path + ".none", Initrd: path, Usr: path, Root: path}).GiveBack(); err == nil {
		t.Error("a file that is not there was given back")
	}
}
