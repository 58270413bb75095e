package safepath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// MaxLinks bounds the symbolic links that are followed in one path, as the kernel does.
const MaxLinks = 40

// Open opens the target of a path with O_PATH. It follows links by the rules of this package.
func Open(path string) (*os.File, error) {
	w := &walker{}
	name, err := w.walk(path)
	defer w.leave()
	if err != nil {
		return nil, err
	}
	return OpenAt(w.folder, name, 0)
}

// OpenParent resolves a path and calls do with another path to the same target, below an open descriptor of its
// folder, so that no folder can be replaced on the way. do opens or makes the target. It must pass nofollow to open,
// because a link may have replaced the target, and must not use at after it returns.
func OpenParent(path string, do func(at string, nofollow int) error) error {
	w := &walker{}
	name, err := w.walk(path)
	defer w.leave()
	if err != nil {
		return err
	}
	return within(w.folder, name, path, func(at string) error { return do(at, unix.O_NOFOLLOW) })
}

// OpenLink is OpenParent for the last element of the path itself: if that is a link, it is not followed, so do can
// remove it. do must not use at after it returns.
func OpenLink(path string, do func(at string) error) error {
	folder, err := Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer folder.Close()
	return within(folder, filepath.Base(path), path, do)
}

// OpenNoSymlinks is OpenLink that follows no link at all: one on the path is an error, unix.ELOOP.
func OpenNoSymlinks(path string, do func(at string) error) error {
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS}
	fd, err := unix.Openat2(unix.AT_FDCWD, filepath.Dir(path), how)
	if err != nil {
		return err
	}
	folder := os.NewFile(uintptr(fd), filepath.Dir(path))
	defer folder.Close()
	return within(folder, filepath.Base(path), path, do)
}

// within calls do with a path below the folder's descriptor. In errors it replaces that path by the
// one that the caller knows.
func within(folder *os.File, name, path string, do func(at string) error) error {
	at := fmt.Sprintf("/proc/self/fd/%d/%s", folder.Fd(), name)
	err := do(at)
	if refused := (*fs.PathError)(nil); errors.As(err, &refused) && refused.Path == at {
		refused.Path = path
	}
	return err
}

// OpenAt opens a name in a folder with O_PATH, and follows no link. If folder is nil, name is
// a path.
func OpenAt(folder *os.File, name string, more int) (*os.File, error) {
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

// walker is the state of one walk along a path.
type walker struct {
	folder *os.File // a folder, not a link
	links  int      // number of links followed
	// userLink is a link that a user other than root made; owner is that user's number.
	userLink string
	owner    uint32
	// untrustedLink is a link on a file system with unreliable owners (see UntrustedFS), and
	// untrustedDev the device of that file system.
	untrustedLink string
	untrustedDev  uint64
}

// walk follows a path to the folder of its target, and returns the target's name there.
// The target is not a link, and may not exist.
func (w *walker) walk(path string) (name string, err error) {
	name, err = ".", w.enter(OpenAt(nil, "/", 0))
	for rest := components(path); err == nil && len(rest) > 0; {
		name, rest, err = w.step(rest[0], rest[1:])
	}
	if err == nil {
		err = w.checkTarget(name)
	}
	return name, err
}

// components returns the names in a path. It keeps "..", because after a link that is not the parent in the text.
func components(path string) []string {
	return slices.DeleteFunc(strings.Split(path, "/"), func(name string) bool { return name == "" || name == "." })
}

// step enters the folder of that name if more elements follow, or follows the name if it is a link. It returns the
// remaining elements, and the name of the target if none remain.
func (w *walker) step(name string, rest []string) (last string, left []string, err error) {
	f, err := OpenAt(w.folder, name, unix.O_DIRECTORY) // triggers automounts
	if errors.Is(err, unix.ENOTDIR) {
		f, err = OpenAt(w.folder, name, 0)
	}
	if len(rest) == 0 && errors.Is(err, fs.ErrNotExist) {
		return name, nil, nil
	}
	if err != nil {
		return "", nil, err
	}
	switch to, err := w.readLink(f); {
	case err != nil || len(rest) == 0 && to == "" && name != "..":
		_ = f.Close() // opened with O_PATH
		return name, nil, err
	case to == "":
		return ".", rest, w.enter(f, nil)
	case filepath.IsAbs(to):
		_ = f.Close()
		return ".", append(components(to), rest...), w.enter(OpenAt(nil, "/", 0))
	default:
		_ = f.Close()
		return ".", append(components(to), rest...), nil
	}
}

// enter makes an opened folder the present one, and closes the one before.
func (w *walker) enter(folder *os.File, err error) error {
	if err == nil {
		w.leave()
		w.folder = folder
	}
	return err
}

func (w *walker) leave() { _ = w.folder.Close() } // opened with O_PATH; nil before the first

// readLink returns the target of a link that may be followed; empty: not a link.
func (w *walker) readLink(link *os.File) (to string, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(link.Fd()), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return "", err
	}
	if w.links++; w.links > MaxLinks {
		return "", unix.ELOOP
	}
	untrusted, err := UntrustedFS(link)
	if err != nil {
		return "", err
	}
	if untrusted {
		if w.untrustedLink != "" && w.untrustedDev != st.Dev {
			return "", w.refuse()
		}
		w.untrustedLink, w.untrustedDev = link.Name(), st.Dev
	}
	if !TrustedOwner(st.Uid) {
		if w.userLink != "" && w.owner != st.Uid {
			return "", w.refuse()
		}
		w.userLink, w.owner = link.Name(), st.Uid
	}
	text := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(link.Fd()), "", text)
	return string(text[:max(n, 0)]), err
}

// checkTarget refuses a target that does not belong to the owner of the user's link. A missing target
// counts as owned by the owner of its folder. A FUSE file system may be a user's program that reports root as the
// owner of a link, so the target of such a link must lie on the same file system.
func (w *walker) checkTarget(name string) error {
	if w.userLink == "" && w.untrustedLink == "" {
		return nil
	}
	var st unix.Stat_t
	err := unix.Fstatat(int(w.folder.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		err = unix.Fstat(int(w.folder.Fd()), &st)
	}
	if err == nil && (w.userLink != "" && st.Uid != w.owner || w.untrustedLink != "" && st.Dev != w.untrustedDev) {
		err = w.refuse()
	}
	return err
}

// refuse returns the error for a link that must not be followed.
func (w *walker) refuse() error {
	if w.untrustedLink != "" {
		return fault.New(fault.Denied, fault.Host, "cannot follow the link %s: it leaves a FUSE or removable file system, and such a file system may report a false owner; "+
			"name the place that it leads to", w.untrustedLink)
	}
	return fault.New(fault.Denied, fault.Host, "cannot follow the link %s: user %d made it, and its target belongs to another user; "+
		"name the place that it leads to, or have root make the link", w.userLink, w.owner)
}

// removableDirs are the folders where desktops mount file systems that users bring: USB sticks or images.
var removableDirs = []string{"/media/", "/run/media/"}

// UntrustedFS reports whether a file lies on a file system that may report false owners: FUSE file
// systems are users' programs, and removable ones were made on other hosts.
func UntrustedFS(f *os.File) (bool, error) {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil || fs.Type == unix.FUSE_SUPER_MAGIC {
		return true, err
	}
	real, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	return slices.ContainsFunc(removableDirs, func(dir string) bool { return strings.HasPrefix(real, dir) }), err
}

// TrustedOwner reports whether a user is trusted to make links: root, or the daemon's own user.
func TrustedOwner(uid uint32) bool { return uid == 0 || uid == uint32(os.Geteuid()) }
