package image

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// GiveBack makes the image's files belong to whom the image does, which its facts
// tell, and takes away the marks of daemons. Some give what they use to the account
// that QEMU runs as, note whose it was in trusted attributes, of which an image has
// none, and do not take back what several guests share. Guests that run have the
// files open, and go on.
func (i Image) GiveBack() error {
	var owner unix.Stat_t
	all := unix.Stat(filepath.Join(filepath.Dir(i.Initrd), facts), &owner)
	if all != nil {
		return fault.Wrap(all, fault.Failed, fault.Host, "cannot tell whose the lab's guest image is")
	}
	for _, file := range i.files() {
		path := *file
		var stat unix.Stat_t
		if err := unix.Stat(path, &stat); err != nil {
			all = errors.Join(all, err)
			continue
		}
		for _, name := range marksOf(path) {
			all = errors.Join(all, unix.Removexattr(path, name))
		}
		if stat.Uid != owner.Uid || stat.Gid != owner.Gid {
			all = errors.Join(all, os.Chown(path, int(owner.Uid), int(owner.Gid)))
		}
	}
	return fault.Wrap(all, fault.Failed, fault.Host, "cannot give the lab's guest image back as it was")
}

// marksOf names a file's trusted attributes; none where the file system has none.
func marksOf(path string) (names []string) {
	list := make([]byte, 64<<10) // the kernel's own bound
	n, err := unix.Listxattr(path, list)
	if err != nil {
		return nil
	}
	for name := range bytes.SplitSeq(list[:n], []byte{0}) {
		if strings.HasPrefix(string(name), "trusted.") {
			names = append(names, string(name))
		}
	}
	return names
}
