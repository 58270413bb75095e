package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/safepath"
)

// openDir opens a pool's directory, to name files below it.
func openDir(target string) (*os.File, error) {
	dir, err := safepath.Open(target)
	if err != nil {
		return nil, wrapDirError(err, target)
	}
	defer dir.Close()
	return reopenDir(dir, target, unix.O_PATH)
}

// realDir is the path of a pool's directory without links.
func realDir(target string) (string, error) {
	dir, err := openDir(target)
	if err != nil {
		return "", err
	}
	defer dir.Close()
	return os.Readlink(fmt.Sprintf("/proc/self/fd/%d", dir.Fd()))
}

// makeDir is openDir of a directory that it makes, with its parents, if it is missing.
func makeDir(target string, mode uint32) (dir *os.File, made bool, err error) {
	if dir, err = openDir(target); !fault.Is(err, fault.NotFound) {
		return dir, false, err
	}
	above, _, err := makeDir(filepath.Dir(target), 0o755)
	if err != nil {
		return nil, false, err
	}
	defer above.Close()
	err = unix.Mkdirat(int(above.Fd()), filepath.Base(target), mode)
	if made = err == nil; made || errors.Is(err, fs.ErrExist) { // another process made it meanwhile
		dir, err = safepath.OpenAt(above, filepath.Base(target), unix.O_DIRECTORY)
	}
	return dir, made, fault.Wrap(err, fault.Failed, fault.Pool, "cannot make directory %s", target)
}

func isLink(f *os.File) bool {
	var st unix.Stat_t
	return unix.Fstat(int(f.Fd()), &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK
}

// reopenDir opens an open directory again in another mode, such as for reading its entries.
func reopenDir(dir *os.File, target string, mode int) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), ".", mode|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, wrapDirError(err, target)
	}
	return os.NewFile(uintptr(fd), target), nil
}
