package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/fault"
)

// The daemon may write everywhere, and folders on the way to a pool may be their users' own:
// a link that one of them puts there must not lead it to where that user may not write.
// Links that only root can have put are followed, as those below /var often are.

// maxLinks bounds the links of one path, as the kernel does.
const maxLinks = 40

// Follow opens what a path leads to, to name it: by links of root's alone.
func Follow(path string) (*os.File, error) {
	at, err := openAt(nil, "/", 0)
	links := 0
	for rest := strings.Split(path, "/"); err == nil && len(rest) > 0; {
		name := rest[0]
		if rest = rest[1:]; name == "" {
			continue
		}
		var to string
		to, err = step(&at, name)
		switch {
		case err != nil || to == "":
			continue
		case links == maxLinks:
			err = unix.ELOOP
		case filepath.IsAbs(to):
			_ = at.Close() // opened to be named
			at, err = openAt(nil, "/", 0)
		}
		links++
		rest = append(strings.Split(to, "/"), rest...)
	}
	if err != nil {
		_ = at.Close() // nil after all where it was not opened
		return nil, err
	}
	return at, nil
}

// step goes from a folder to what it calls by a name, or tells where a link there leads.
func step(at **os.File, name string) (to string, err error) {
	next, err := openAt(*at, name, unix.O_DIRECTORY) // which has what mounts itself do so
	if errors.Is(err, unix.ENOTDIR) {
		next, err = openAt(*at, name, 0)
	}
	if err != nil {
		return "", err
	}
	if !isLink(next) {
		_ = (*at).Close() // opened to be named
		*at = next
		return "", nil
	}
	defer next.Close()
	if err := rootsAlone(*at, next); err != nil {
		return "", err
	}
	text := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(next.Fd()), "", text)
	return string(text[:max(n, 0)]), err
}

// rootsAlone refuses a link that others than root, and the daemon's user, made or could
// put another in the place of.
func rootsAlone(folder, link *os.File) error {
	var above, st unix.Stat_t
	if err := errors.Join(unix.Fstat(int(folder.Fd()), &above), unix.Fstat(int(link.Fd()), &st)); err != nil {
		return err
	}
	ours := func(uid uint32) bool { return uid == 0 || uid == uint32(os.Geteuid()) }
	if ours(st.Uid) && ours(above.Uid) && (above.Mode&0o022 == 0 || above.Mode&unix.S_ISVTX != 0) {
		return nil
	}
	return fault.New(fault.Denied, fault.Pool, "%s is a link that others than root can lead elsewhere, and none such is followed; "+
		"name the place that it leads to, or have root make the link in a folder of root's", link.Name())
}

// openAt opens what a folder calls by a name, to name it, and follows no link.
func openAt(folder *os.File, name string, more int) (*os.File, error) {
	dir, path := unix.AT_FDCWD, name
	if folder != nil {
		dir, path = int(folder.Fd()), filepath.Join(folder.Name(), name)
	}
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC|more, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// openDir opens a pool's directory to name files below it.
func openDir(target string) (*os.File, error) {
	dir, err := Follow(target)
	if err != nil {
		return nil, dirFault(err, target)
	}
	defer dir.Close()
	return list(dir, target, unix.O_PATH)
}

// realDir is the path by which a pool's directory is reached without links.
func realDir(target string) (string, error) {
	dir, err := openDir(target)
	if err != nil {
		return "", err
	}
	defer dir.Close()
	return os.Readlink(fmt.Sprintf("/proc/self/fd/%d", dir.Fd()))
}

// makeDir is openDir of one that it makes, with those above it, if it is not there.
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
	if made = err == nil; made || errors.Is(err, fs.ErrExist) { // by somebody else meanwhile
		dir, err = openAt(above, filepath.Base(target), unix.O_DIRECTORY)
	}
	return dir, made, fault.Wrap(err, fault.Failed, fault.Pool, "cannot make directory %s", target)
}

func isLink(f *os.File) bool {
	var st unix.Stat_t
	return unix.Fstat(int(f.Fd()), &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK
}

// list opens an open directory in another way, such as to read what is in it.
func list(dir *os.File, target string, mode int) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), ".", mode|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, dirFault(err, target)
	}
	return os.NewFile(uintptr(fd), target), nil
}
