package target

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/fault"
)

// owned is what a file of the image was like before a daemon had it. The image is
// not the run's own, and some daemons give what they use to the account that QEMU
// runs as, and do not take back what several guests share.
type owned struct {
	path     string
	uid, gid int
	mode     fs.FileMode
	marks    []string // names of extended attributes
}

// borrow notes what files are like. One that is not there is left out: the guest's
// start will tell.
func borrow(paths ...string) (all []owned, err error) {
	for _, path := range paths {
		var stat unix.Stat_t
		if failure := unix.Stat(path, &stat); errors.Is(failure, unix.ENOENT) {
			continue
		} else if failure != nil {
			return nil, fault.Wrap(failure, fault.Failed, fault.Host, "cannot look at the guests' image")
		}
		all = append(all, owned{path, int(stat.Uid), int(stat.Gid), fs.FileMode(stat.Mode).Perm(), marksOf(path)})
	}
	return all, nil
}

// giveBack makes files be as they were: their owner, their mode, and no attribute
// that they had not.
func giveBack(files []owned) error {
	var all error
	for _, f := range files {
		var stat unix.Stat_t
		if err := unix.Stat(f.path, &stat); err != nil {
			continue // it has gone, and was not ours
		}
		if int(stat.Uid) != f.uid || int(stat.Gid) != f.gid {
			all = errors.Join(all, os.Chown(f.path, f.uid, f.gid))
		}
		if fs.FileMode(stat.Mode).Perm() != f.mode {
			all = errors.Join(all, os.Chmod(f.path, f.mode))
		}
		for _, name := range marksOf(f.path) {
			if !slices.Contains(f.marks, name) {
				all = errors.Join(all, unix.Removexattr(f.path, name))
			}
		}
	}
	return fault.Wrap(all, fault.Failed, fault.Host, "cannot give the guests' image back as it was")
}

// marksOf names a file's extended attributes; none where the file system has none.
func marksOf(path string) (names []string) {
	list := make([]byte, 64<<10) // the kernel's own bound
	n, err := unix.Listxattr(path, list)
	if err != nil {
		return nil
	}
	for name := range bytes.SplitSeq(list[:n], []byte{0}) {
		if len(name) > 0 {
			names = append(names, string(name))
		}
	}
	return names
}
