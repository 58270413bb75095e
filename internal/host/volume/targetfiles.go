package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/mechanism/safepath"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// All changes to a pool's files use these functions: names without slashes below the open directory, and no
// links.

// makeFile makes a new file and returns its inode. The name must be free, but the file has no name yet, so
// that it vanishes with a daemon that is killed before it has written the record. nameFile names it. On a file
// system without unnamed files it has its name at once.
func makeFile(target, name string) (*os.File, uint64, error) {
	dir, err := openDir(target)
	if err != nil {
		return nil, 0, err
	}
	defer dir.Close()
	var st unix.Stat_t
	switch err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); {
	case err == nil: // it may be unreadable at the moment, and its record stays
		return nil, 0, nameTakenError(target, name)
	case !errors.Is(err, fs.ErrNotExist):
		return nil, 0, wrapNameError(err, target, name)
	}
	fd, err := unix.Openat(int(dir.Fd()), ".", unix.O_RDWR|unix.O_TMPFILE|unix.O_CLOEXEC, defaultMode)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) {
		fd, err = unix.Openat(int(dir.Fd()), name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, defaultMode)
	}
	if errors.Is(err, fs.ErrExist) {
		return nil, 0, nameTakenError(target, name)
	}
	if err != nil {
		return nil, 0, fault.Wrap(err, fault.Failed, fault.Volume, "cannot make %q in %s", name, target)
	}
	if err := unix.Fstat(fd, &st); err != nil {
		_ = unix.Close(fd) // nothing was written
		return nil, 0, fault.Wrap(err, fault.Failed, fault.Volume, "cannot stat %q", name)
	}
	return os.NewFile(uintptr(fd), filepath.Join(target, name)), st.Ino, nil
}

// nameFile gives a file of makeFile its name, which must be free.
func nameFile(f *os.File, target, name string) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Nlink > 0 { // it already has its name
		return fault.Wrap(err, fault.Failed, fault.Volume, "cannot stat %q", name)
	}
	dir, err := openDir(target)
	if err != nil {
		return err
	}
	defer dir.Close()
	err = unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", f.Fd()), int(dir.Fd()), name, unix.AT_SYMLINK_FOLLOW)
	if errors.Is(err, fs.ErrExist) {
		return nameTakenError(target, name)
	}
	return fault.Wrap(err, fault.Failed, fault.Volume, "cannot name %q in %s", name, target)
}

func nameTakenError(target, name string) error {
	return fault.New(fault.Exists, fault.Volume, "%s already has a file named %q", target, name)
}

// openFile opens a volume's file for a change. A link is always refused: its target is another volume, or not
// in this pool.
func openFile(target, name string, mode int) (*os.File, error) {
	dir, err := openDir(target)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, wrapNameError(err, target, name)
	}
	defer unix.Close(fd) //nolint:errcheck // an O_PATH descriptor has nothing to lose
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, wrapNameError(err, target, name)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return nil, fault.New(fault.Invalid, fault.Volume, "%q is a link, and links are never followed for changes; change its target", name)
	}
	return image.Reopen(fd, filepath.Join(target, name), mode)
}

// openToRead opens a volume of the pool for reading. A link that root made may lead anywhere. It is followed
// for clients that may read anything, and not for clients with path limits.
func (p *Pool) openToRead(sc scope.Scope, v *Volume) (*os.File, error) {
	if p.blockBackend() != nil {
		return image.Open(v.Path)
	}
	target := filepath.Dir(v.Path)
	dir, err := openDir(target)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	f, err := safepath.OpenAt(dir, v.Name, 0)
	if err == nil && isLink(f) {
		_ = f.Close() // opened with O_PATH only
		if sc.Folders() != nil {
			return nil, fault.New(fault.Denied, fault.Volume, "%s is a link, and links are not followed for a client with path limits", v.Path)
		}
		f, err = safepath.Open(v.Path)
	}
	if err != nil {
		return nil, wrapNameError(err, target, v.Name)
	}
	defer f.Close()
	return image.Reopen(int(f.Fd()), v.Path, unix.O_RDONLY)
}

// removeFile removes a volume: a file, an empty directory, or the link itself.
func removeFile(target, name string) error {
	dir, err := openDir(target)
	if err != nil {
		return err
	}
	defer dir.Close()
	if f, err := openFile(target, name, unix.O_RDONLY); err == nil {
		defer f.Close()
		if image.LockToRemove(f) != nil {
			return fault.New(fault.Busy, fault.Volume, "a guest has %q open to write; stop the guest first", name)
		}
	}
	err = unix.Unlinkat(int(dir.Fd()), name, 0)
	if errors.Is(err, unix.EISDIR) {
		err = unix.Unlinkat(int(dir.Fd()), name, unix.AT_REMOVEDIR)
	}
	if err != nil {
		return wrapNameError(err, target, name)
	}
	return syncDir(dir, target)
}

// syncDir syncs a folder after a removal. The record of the removed file is deleted next; if the file came
// back after a power loss, a guest's bytes in it would be taken for a header.
func syncDir(dir *os.File, target string) error {
	f, err := reopenDir(dir, target, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Sync(); err != nil && !errors.Is(err, unix.EINVAL) { // some file systems have no fsync for directories
		return fault.Wrap(err, fault.Failed, fault.Volume, "cannot sync directory %s", target)
	}
	return nil
}

// removeInode removes a file if its name still has that inode.
func removeInode(target, name string, inode uint64) error {
	dir, err := openDir(target)
	if err != nil {
		return err
	}
	defer dir.Close()
	var st unix.Stat_t
	err = unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && st.Ino != inode:
		return nil
	case err != nil:
		return wrapNameError(err, target, name)
	}
	if err := unix.Unlinkat(int(dir.Fd()), name, 0); err != nil {
		return err
	}
	return syncDir(dir, target)
}

func wrapNameError(err error, target, name string) error {
	return fault.Wrap(err, fileKind(err), fault.Volume, "cannot use %q in %s", name, target)
}
