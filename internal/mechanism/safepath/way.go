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

// MaxLinks bounds the links of one path, as the kernel does.
const MaxLinks = 40

// Follow opens what a path leads to, to name it.
func Follow(path string) (*os.File, error) {
	w := &walker{}
	name, err := w.walk(path)
	defer w.leave()
	if err != nil {
		return nil, err
	}
	return OpenAt(w.at, name, 0)
}

// At calls do with a path by which it may reach what a path leads to, through the folder that
// it lies in, where do may make it if it is not there. It must open that with nofollow, since a
// link may have come into its place, and be done with at when it returns.
func At(path string, do func(at string, nofollow int) error) error {
	w := &walker{}
	name, err := w.walk(path)
	defer w.leave()
	if err != nil {
		return err
	}
	return within(w.at, name, path, func(at string) error { return do(at, unix.O_NOFOLLOW) })
}

// Beside calls do with a path by which it may reach what a path names, through the folder that it
// lies in. That may be a link, which is not followed and can be removed. It must be done with at
// when it returns.
func Beside(path string, do func(at string) error) error {
	folder, err := Follow(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer folder.Close()
	return within(folder, filepath.Base(path), path, do)
}

// Straight is Beside where no link is followed at all: one on the way is an error, unix.ELOOP.
func Straight(path string, do func(at string) error) error {
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS}
	fd, err := unix.Openat2(unix.AT_FDCWD, filepath.Dir(path), how)
	if err != nil {
		return err
	}
	folder := os.NewFile(uintptr(fd), filepath.Dir(path))
	defer folder.Close()
	return within(folder, filepath.Base(path), path, do)
}

// within calls do with a path by which a folder is reached, and has its errors tell the one that
// somebody knows.
func within(folder *os.File, name, path string, do func(at string) error) error {
	at := fmt.Sprintf("/proc/self/fd/%d/%s", folder.Fd(), name)
	err := do(at)
	if refused := (*fs.PathError)(nil); errors.As(err, &refused) && refused.Path == at {
		refused.Path = path
	}
	return err
}

// OpenAt opens what a folder calls by a name, to name it, and follows no link; without a folder,
// what has that path.
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

// walker is on its way.
type walker struct {
	at    *os.File // a folder, and no link
	links int      // that were followed
	// link is one that somebody else than root made, whose user's number is by.
	link string
	by   uint32
	// apart is a link on a file system that says itself whose links are (see Claims), and on is that.
	apart string
	on    uint64
}

// walk goes along a path to the folder in which lies what it leads to, and tells the name of that
// there. It is no link, and may not be there.
func (w *walker) walk(path string) (name string, err error) {
	name, err = ".", w.enter(OpenAt(nil, "/", 0))
	for rest := parts(path); err == nil && len(rest) > 0; {
		name, rest, err = w.step(rest[0], rest[1:])
	}
	if err == nil {
		err = w.check(name)
	}
	return name, err
}

// parts are the names in a path. What leads up stays: behind a link it is not what it says.
func parts(path string) []string {
	return slices.DeleteFunc(strings.Split(path, "/"), func(name string) bool { return name == "" || name == "." })
}

// step goes to what the folder calls by a name, if there is more of the way behind it, or
// follows it if it is a link. It gives what is left of the way, and the name of where that ends
// if nothing is.
func (w *walker) step(name string, rest []string) (last string, left []string, err error) {
	f, err := OpenAt(w.at, name, unix.O_DIRECTORY) // which has what mounts itself do so
	if errors.Is(err, unix.ENOTDIR) {
		f, err = OpenAt(w.at, name, 0)
	}
	if len(rest) == 0 && errors.Is(err, fs.ErrNotExist) {
		return name, nil, nil
	}
	if err != nil {
		return "", nil, err
	}
	switch to, err := w.read(f); {
	case err != nil || len(rest) == 0 && to == "" && name != "..":
		_ = f.Close() // opened to be named
		return name, nil, err
	case to == "":
		return ".", rest, w.enter(f, nil)
	case filepath.IsAbs(to):
		_ = f.Close()
		return ".", append(parts(to), rest...), w.enter(OpenAt(nil, "/", 0))
	default:
		_ = f.Close()
		return ".", append(parts(to), rest...), nil
	}
}

// enter goes into a folder that was opened.
func (w *walker) enter(folder *os.File, err error) error {
	if err == nil {
		w.leave()
		w.at = folder
	}
	return err
}

func (w *walker) leave() { _ = w.at.Close() } // opened to be named; nil before the first

// read tells where a link leads, if it is to be followed; empty: it is no link.
func (w *walker) read(link *os.File) (to string, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(link.Fd()), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return "", err
	}
	if w.links++; w.links > MaxLinks {
		return "", unix.ELOOP
	}
	claims, err := Claims(link)
	if err != nil {
		return "", err
	}
	if claims {
		if w.apart != "" && w.on != st.Dev {
			return "", w.refuse()
		}
		w.apart, w.on = link.Name(), st.Dev
	}
	if !Ours(st.Uid) {
		if w.link != "" && w.by != st.Uid {
			return "", w.refuse()
		}
		w.link, w.by = link.Name(), st.Uid
	}
	text := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(link.Fd()), "", text)
	return string(text[:max(n, 0)]), err
}

// check refuses what a link that somebody made leads to and somebody else has. What is not there
// is of whom its folder is. A link of FUSE's, which may be a user's program that calls it root's,
// leads to what lies there, too.
func (w *walker) check(name string) error {
	if w.link == "" && w.apart == "" {
		return nil
	}
	var st unix.Stat_t
	err := unix.Fstatat(int(w.at.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		err = unix.Fstat(int(w.at.Fd()), &st)
	}
	if err == nil && (w.link != "" && st.Uid != w.by || w.apart != "" && st.Dev != w.on) {
		err = w.refuse()
	}
	return err
}

func (w *walker) refuse() error {
	if w.apart != "" {
		return fault.New(fault.Denied, fault.Host, "%s is a link on a file system of FUSE, or on one that a user has brought, which may say of anybody's that it is root's, and leads away from there; "+
			"name the place that it leads to", w.apart)
	}
	return fault.New(fault.Denied, fault.Host, "%s is a link that user %d made, and leads to what that user does not have; "+
		"name the place that it leads to, or have root make the link", w.link, w.by)
}

// brought are where users have file systems mounted that they brought along: a stick, or an image.
var brought = []string{"/media/", "/run/media/"}

// Claims says whether a file lies on a file system of users', which says of anything that it is
// root's: FUSE's are programs, and others were made elsewhere.
func Claims(f *os.File) (bool, error) {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil || fs.Type == unix.FUSE_SUPER_MAGIC {
		return true, err
	}
	real, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	return slices.ContainsFunc(brought, func(dir string) bool { return strings.HasPrefix(real, dir) }), err
}

// Ours says whether what a user makes is root's, or the daemon's own.
func Ours(uid uint32) bool { return uid == 0 || uid == uint32(os.Geteuid()) }
