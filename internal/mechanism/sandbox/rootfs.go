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

// Spec describes the sandbox of one program. Paths are absolute and clean, and the same inside and
// outside.
type Spec struct {
	User User
	// Program is the file to run. A program that is not in the template is bound into the sandbox, with
	// the rest of its installation, if it has one.
	Program string
	// WritableDirs are the directories that the program may write to. The caller makes them, gives them to
	// the user and removes them.
	WritableDirs []WritableDir
	// ReadOnlyFiles are files to read and sockets to connect to. The caller keeps them and closes them.
	ReadOnlyFiles []ReadOnlyFile
	// Devices are device nodes that the program may read and write.
	Devices []Device
	// Terminals lets the program make pseudo-terminals of the host.
	Terminals bool
	// HostNetwork gives the program the host's network.
	HostNetwork bool
	// AllowIOUring lets the program use io_uring.
	AllowIOUring bool
	// MountProc mounts a /proc with the program's own processes only, for a program that opens its files
	// as /proc/self/fd/N.
	MountProc bool
	// Capabilities are the capabilities that the program keeps; usually none. For a program with
	// capabilities the sandbox's root is read-only, except for the writable directories.
	Capabilities []uintptr
	// Limits are the resource limits of the process.
	Limits Limits
	// Label is its label on a host with mandatory access control.
	Label Label
}

// WritableDir is a directory that the program may write to.
type WritableDir struct {
	HostPath string // on the host
	Path     string // in the sandbox
}

// User is the user and group that a program runs as.
type User struct{ UID, GID uint32 }

// ReadOnlyFile is one file or directory that is visible in a sandbox. A directory or socket is opened with
// O_PATH.
type ReadOnlyFile struct {
	Path string
	File *os.File
}

// mount is a file or directory of the host that will be attached in a sandbox.
type mount struct {
	target    string
	fd        int      // a detached mount; -1: there is none
	copyFrom  *os.File // file that is copied instead, because the user may not read the host's
	directory bool
}

// prepareMounts clones the mounts of a sandbox. It runs on a thread that sees the host's file systems. The
// caller closes the mounts.
func (spec *Spec) prepareMounts() (mounts []mount, err error) {
	defer func() {
		if err != nil {
			closeMounts(mounts)
		}
	}()
	for _, own := range spec.WritableDirs {
		p, err := own.prepare()
		if p.fd >= 0 {
			mounts = append(mounts, p)
		}
		if err != nil {
			return mounts, fmt.Errorf("cannot show %s: %w", own.HostPath, err)
		}
	}
	if mounts, err = prepareProgram(mounts, spec.Program); err != nil {
		return mounts, fmt.Errorf("cannot show %s: %w", spec.Program, err)
	}
	for _, s := range spec.ReadOnlyFiles {
		p, err := spec.prepareFile(s)
		if err != nil {
			return mounts, fmt.Errorf("cannot show %s: %w", s.Path, err)
		}
		mounts = append(mounts, p)
	}
	// Parent directories come first, or they would hide the mounts below them.
	slices.SortStableFunc(mounts, func(a, b mount) int { return strings.Compare(a.target, b.target) })
	return mounts, nil
}

// prepare clones the mount of a writable directory.
func (o WritableDir) prepare() (mount, error) {
	dir, err := os.OpenFile(o.HostPath, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return mount{fd: -1}, err
	}
	defer func() { _ = dir.Close() }()
	p, err := cloneMount(dir, o.Path)
	if err != nil {
		return p, err
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC}
	return p, unix.MountSetattr(p.fd, "", unix.AT_EMPTY_PATH, &attr)
}

// prepareFile clones the mount of one file. If the user may not read the file, it is copied instead,
// because a mount does not change permissions.
func (spec *Spec) prepareFile(s ReadOnlyFile) (mount, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(s.File.Fd()), &st); err != nil {
		return mount{}, err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFREG && !spec.User.mayRead(&st) {
		return mount{target: s.Path, fd: -1, copyFrom: s.File}, nil
	}
	p, err := cloneMount(s.File, s.Path)
	if err == nil {
		err = setReadOnly(p.fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, 0)
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

// cloneMount makes a detached mount of an open file or directory.
func cloneMount(f *os.File, at string) (mount, error) {
	info, err := f.Stat()
	if err != nil {
		return mount{fd: -1}, err
	}
	tree, err := unix.OpenTree(int(f.Fd()), "", unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return mount{fd: -1}, err
	}
	return mount{target: at, fd: tree, directory: info.IsDir()}, nil
}

func closeMounts(mounts []mount) {
	for _, p := range mounts {
		if p.fd >= 0 {
			_ = unix.Close(p.fd)
		}
	}
}

// attach places the mount below root.
func (m mount) attach(root string) error {
	at := filepath.Join(root, m.target)
	if m.copyFrom != nil {
		return explainReadOnly(copyInto(m.copyFrom, at))
	}
	if err := mountPoint(at, m.directory); err != nil {
		return explainReadOnly(err)
	}
	return unix.MoveMount(m.fd, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// explainReadOnly explains EROFS: the path lies in a directory that is bound from the host read-only.
func explainReadOnly(err error) error {
	if errors.Is(err, unix.EROFS) {
		return errors.New("the sandbox shows the host's own folder there, read-only; move the file to another folder")
	}
	return err
}

// maxCopy bounds the size, in bytes, of a file that is copied into a sandbox: kernels and initial RAM disks.
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
		err = fault.New(fault.Invalid, fault.Host, "it is larger than %d bytes and the guest's user may not read it; make it readable", maxCopy)
	}
	return errors.Join(err, to.Close())
}

// buildRoot mounts and fills the root of a sandbox. The thread's umask is 0.
func (spec *Spec) buildRoot(mounts []mount) error {
	if err := unix.Mount("sandbox", rootfs, "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=0755"); err != nil {
		return fmt.Errorf("cannot mount the root: %w", err)
	}
	if err := spec.bindTemplate(); err != nil {
		return err
	}
	for _, p := range mounts {
		if err := p.attach(rootfs); err != nil {
			return fmt.Errorf("cannot show %s: %w", p.target, err)
		}
	}
	if err := spec.makeDevices(rootfs); err != nil {
		return err
	}
	// Without this a program could reach the terminals: another sandboxed program passes it a directory descriptor that
	// lies outside its own root, and it walks up from there.
	if err := unix.Unmount(ptys, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("cannot unmount the host's pseudo-terminals: %w", err)
	}
	if !spec.MountProc {
		return nil
	}
	if err := os.Mkdir(rootfs+"/proc", 0o555); err != nil {
		return err
	}
	if err := unix.Mount("proc", rootfs+"/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "hidepid=2,subset=pid"); err != nil {
		return fmt.Errorf("cannot mount /proc: %w", err)
	}
	return nil
}

// bindTemplate repeats the template's entries in the new root.
func (spec *Spec) bindTemplate() error {
	entries, err := os.ReadDir("/")
	if err != nil {
		return err
	}
	for _, e := range entries {
		from, at := "/"+e.Name(), rootfs+"/"+e.Name()
		switch {
		case from == rootfs || from == ptys:
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

// deviceNodes are the devices in every sandbox. None lets one program harm another.
var deviceNodes = []struct {
	name         string
	major, minor uint32
}{{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}}

// DeviceNodes returns the paths of the device nodes in every sandbox.
func DeviceNodes() []string {
	var paths []string
	for _, n := range deviceNodes {
		paths = append(paths, "/dev/"+n.name)
	}
	return paths
}

// makeDevices makes /dev.
func (spec *Spec) makeDevices(root string) error {
	dev := root + "/dev"
	if err := os.MkdirAll(dev, 0o755); err != nil {
		return err
	}
	for _, n := range deviceNodes {
		if err := unix.Mknod(dev+"/"+n.name, unix.S_IFCHR|0o666, int(unix.Mkdev(n.major, n.minor))); err != nil {
			return fmt.Errorf("cannot make /dev/%s: %w", n.name, err)
		}
	}
	if spec.Terminals {
		if err := os.Mkdir(dev+"/pts", 0o755); err != nil {
			return err
		}
		if err := unix.Mount(ptys, dev+"/pts", "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("cannot bind the pseudo-terminals: %w", err)
		}
		if err := hidePtsPtmx(root); err != nil {
			return err
		}
		if err := makePtmx(root); err != nil {
			return fmt.Errorf("cannot make %s: %w", ptmx, err)
		}
	}
	return nil
}

// ptmx is the node that makes pseudo-terminals.
const ptmx = "/dev/ptmx"

// hidePtsPtmx hides /dev/pts/ptmx, which makes pseudo-terminals too. In containers every user may open it,
// and a mounted node cannot be removed.
func hidePtsPtmx(root string) error {
	if err := unix.Mount(root+"/dev/null", root+"/dev/pts/ptmx", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("cannot hide /dev/pts/ptmx: %w", err)
	}
	return nil
}

func makePtmx(root string) error {
	return unix.Mknod(root+ptmx, unix.S_IFCHR|0o666, int(unix.Mkdev(5, 2)))
}

// Device is a device node of the host that is made again in a sandbox, at the host's path.
type Device struct {
	Path string
	Mode uint32 // unix.S_IFCHR or unix.S_IFBLK
	Dev  uint64
}

// make makes the node below root, for the user alone.
func (d Device) make(root string, u User) error {
	at := filepath.Join(root, d.Path)
	if strings.HasPrefix(d.Path, "/dev/pts/") {
		return nil // part of the bound /dev/pts
	}
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	if err := unix.Mknod(at, d.Mode|0o600, int(d.Dev)); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("cannot make %s: %w", d.Path, err)
	}
	for _, n := range deviceNodes {
		if d.Path == "/dev/"+n.name {
			return nil
		}
	}
	return os.Lchown(at, int(u.UID), int(u.GID))
}
