package sandbox

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Chamber is what one program has. Paths are absolute and clean, and the same
// inside as outside.
type Chamber struct {
	User User
	// Program is what is run. One that lies where programs usually do not is shown,
	// and so is the rest of its installation, if it has one.
	Program string
	// Own are the directories that the program may write to. They are made, given
	// to the user and removed by whoever starts the program.
	Own []Own
	// Shown are files to read, and sockets to connect to. They stay the caller's.
	Shown []Shown
	// Devices are device nodes, which the program may read and write.
	Devices []Device
	// Terminals lets the program make pseudo-terminals of the host.
	Terminals bool
	// Network leaves the program the host's network.
	Network bool
	// Rings lets the program use io_uring.
	Rings bool
	// Own processes can be seen in /proc, and nobody else's: for a program that
	// reaches what it was handed as /proc/self/fd/N.
	Proc bool
	// Keep are the capabilities that the program has; usually none. One that has
	// any finds nothing in its root that can be written to but what is its Own.
	Keep []uintptr
	// Limits bound the process.
	Limits Limits
	// Label is what it is called where the host has mandatory access control.
	Label Label
}

// Own is a directory of the program's own.
type Own struct {
	Dir string // where it is
	At  string // where the program sees it
}

// User is who a program runs as.
type User struct{ UID, GID uint32 }

// Shown is one file or directory that can be seen in a chamber. The file is open,
// with O_PATH if it is a directory or a socket.
type Shown struct {
	Path string
	File *os.File
}

// piece is something of the host's on its way into a chamber.
type piece struct {
	at        string
	tree      int      // a detached mount; -1: there is none
	copied    *os.File // what is copied instead, because the user may not read it
	directory bool
}

// take picks up the pieces of a chamber, on a thread that sees the host.
func (c *Chamber) take() (pieces []piece, err error) {
	defer func() {
		if err != nil {
			drop(pieces)
		}
	}()
	for _, own := range c.Own {
		p, err := own.take()
		if p.tree >= 0 {
			pieces = append(pieces, p)
		}
		if err != nil {
			return pieces, fmt.Errorf("cannot show %s: %w", own.Dir, err)
		}
	}
	if pieces, err = takeProgram(pieces, c.Program); err != nil {
		return pieces, fmt.Errorf("cannot show %s: %w", c.Program, err)
	}
	for _, s := range c.Shown {
		p, err := c.takeShown(s)
		if err != nil {
			return pieces, fmt.Errorf("cannot show %s: %w", s.Path, err)
		}
		pieces = append(pieces, p)
	}
	// What lies in another comes after it, or it could not be seen.
	slices.SortStableFunc(pieces, func(a, b piece) int { return strings.Compare(a.at, b.at) })
	return pieces, nil
}

// take picks up a directory that the program may write to.
func (o Own) take() (piece, error) {
	dir, err := os.OpenFile(o.Dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return piece{tree: -1}, err
	}
	defer func() { _ = dir.Close() }()
	p, err := detach(dir, o.At)
	if err != nil {
		return p, err
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC}
	return p, unix.MountSetattr(p.tree, "", unix.AT_EMPTY_PATH, &attr)
}

// takeShown picks up one file, or its contents where the user may not read it: a
// mount changes nothing about that.
func (c *Chamber) takeShown(s Shown) (piece, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(s.File.Fd()), &st); err != nil {
		return piece{}, err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFREG && !c.User.mayRead(&st) {
		return piece{at: s.Path, tree: -1, copied: s.File}, nil
	}
	p, err := detach(s.File, s.Path)
	if err == nil {
		err = readOnly(p.tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, 0)
	}
	return p, err
}

func (u User) mayRead(st *unix.Stat_t) bool {
	switch {
	case u.UID == 0:
		return true
	case st.Uid == u.UID:
		return st.Mode&0o400 != 0
	case st.Gid == u.GID:
		return st.Mode&0o040 != 0
	}
	return st.Mode&0o004 != 0
}

// detach makes a mount of what a file is, which lies nowhere yet.
func detach(f *os.File, at string) (piece, error) {
	info, err := f.Stat()
	if err != nil {
		return piece{tree: -1}, err
	}
	tree, err := unix.OpenTree(int(f.Fd()), "", unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return piece{tree: -1}, err
	}
	return piece{at: at, tree: tree, directory: info.IsDir()}, nil
}

func drop(pieces []piece) {
	for _, p := range pieces {
		if p.tree >= 0 {
			_ = unix.Close(p.tree)
		}
	}
}

// put places a piece below root.
func (p piece) put(root string) error {
	at := filepath.Join(root, p.at)
	if p.copied != nil {
		return inTheWay(copyInto(p.copied, at))
	}
	if err := mountPoint(at, p.directory); err != nil {
		return inTheWay(err)
	}
	return unix.MoveMount(p.tree, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// inTheWay says why nothing can be shown in a folder of the mould's, which is the host's own.
func inTheWay(err error) error {
	if errors.Is(err, unix.EROFS) {
		return errors.New("programs of guests see the host's own folder there, and nothing else in it; move the file to another folder")
	}
	return err
}

// maxCopy bounds what is copied into a chamber: kernels and initial RAM disks.
const maxCopy = 1 << 30

func copyInto(from *os.File, at string) error {
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	to, err := os.OpenFile(at, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o444)
	if err != nil {
		return err
	}
	n, err := io.Copy(to, io.NewSectionReader(from, 0, maxCopy))
	if err == nil && n == maxCopy {
		err = fault.New(fault.Invalid, fault.Host, "it is larger than %d bytes, and the guest's user may not read it where it is", maxCopy)
	}
	return errors.Join(err, to.Close())
}

// furnish builds the root of a chamber. The thread's umask is 0.
func (c *Chamber) furnish(pieces []piece) error {
	if err := unix.Mount("chamber", room, "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=0755"); err != nil {
		return fmt.Errorf("cannot mount its root: %w", err)
	}
	if err := c.layOut(); err != nil {
		return err
	}
	for _, p := range pieces {
		if err := p.put(room); err != nil {
			return fmt.Errorf("cannot show %s: %w", p.at, err)
		}
	}
	if err := c.makeDevices(room); err != nil {
		return err
	}
	// Beyond its door it would be there for whoever is handed a folder by a program of another chamber, and goes up from that.
	if err := unix.Unmount(ptys, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("cannot put the host's pseudo-terminals away: %w", err)
	}
	if !c.Proc {
		return nil
	}
	if err := os.Mkdir(room+"/proc", 0o555); err != nil {
		return err
	}
	if err := unix.Mount("proc", room+"/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "hidepid=2,subset=pid"); err != nil {
		return fmt.Errorf("cannot show its processes: %w", err)
	}
	return nil
}

// layOut repeats the mould in the new root.
func (c *Chamber) layOut() error {
	entries, err := os.ReadDir("/")
	if err != nil {
		return err
	}
	for _, e := range entries {
		from, at := "/"+e.Name(), room+"/"+e.Name()
		switch {
		case from == room || from == ptys:
			continue
		case e.Type() == os.ModeSymlink:
			to, err := os.Readlink(from)
			if err == nil {
				err = os.Symlink(to, at)
			}
			if err != nil {
				return err
			}
		default:
			if err := os.Mkdir(at, 0o755); err != nil {
				return err
			}
			if err := unix.Mount(from, at, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
				return fmt.Errorf("cannot show %s: %w", from, err)
			}
		}
	}
	return nil
}

// nodes are the devices that every program has. None of them is shared in a way
// that one program could do harm by to another.
var nodes = []struct {
	name         string
	major, minor uint32
}{{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}}

// Nodes are the paths of the device nodes that are in every chamber.
func Nodes() []string {
	var paths []string
	for _, n := range nodes {
		paths = append(paths, "/dev/"+n.name)
	}
	return paths
}

// makeDevices makes /dev.
func (c *Chamber) makeDevices(root string) error {
	dev := root + "/dev"
	if err := os.MkdirAll(dev, 0o755); err != nil {
		return err
	}
	for _, n := range nodes {
		if err := unix.Mknod(dev+"/"+n.name, unix.S_IFCHR|0o666, int(unix.Mkdev(n.major, n.minor))); err != nil {
			return fmt.Errorf("cannot make /dev/%s: %w", n.name, err)
		}
	}
	if c.Terminals {
		if err := os.Mkdir(dev+"/pts", 0o755); err != nil {
			return err
		}
		if err := unix.Mount(ptys, dev+"/pts", "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("cannot show the pseudo-terminals: %w", err)
		}
		if err := hideMaker(root); err != nil {
			return err
		}
		if err := makePtmx(root); err != nil {
			return fmt.Errorf("cannot make %s: %w", ptmx, err)
		}
	}
	return nil
}

// ptmx makes pseudo-terminals.
const ptmx = "/dev/ptmx"

// hideMaker hides the node by which the host's pseudo-terminals can be made among these themselves, too, which
// in containers everybody may: it could not be taken away.
func hideMaker(root string) error {
	if err := unix.Mount(root+"/dev/null", root+"/dev/pts/ptmx", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("cannot hide what makes pseudo-terminals: %w", err)
	}
	return nil
}

func makePtmx(root string) error {
	return unix.Mknod(root+ptmx, unix.S_IFCHR|0o666, int(unix.Mkdev(5, 2)))
}

// Device is a node of the host's as it is made again in a chamber, at the path by which the
// host has it.
type Device struct {
	Path string
	Mode uint32 // unix.S_IFCHR or unix.S_IFBLK
	Dev  uint64
}

// make makes the node below root, for its user alone.
func (d Device) make(root string, u User) error {
	at := filepath.Join(root, d.Path)
	if strings.HasPrefix(d.Path, "/dev/pts/") {
		return nil // shown as it is
	}
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	if err := unix.Mknod(at, d.Mode|0o600, int(d.Dev)); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("cannot make %s: %w", d.Path, err)
	}
	for _, n := range nodes {
		if d.Path == "/dev/"+n.name {
			return nil
		}
	}
	return os.Lchown(at, int(u.UID), int(u.GID))
}
