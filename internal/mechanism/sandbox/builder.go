package sandbox

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Builder makes chambers.
type Builder struct {
	template       *os.File // the mount namespace that chambers are copies of
	namespaces     int      // the namespaces beside it that this kernel has
	missing        []string
	coreScheduling bool // each program shares its cores with nobody else's
	hasSeccomp     bool // programs are kept from calls that lead out of a chamber
}

// rootfs is where a chamber's root is in its mount namespace.
const rootfs = "/room"

// programDirs are the directories with what all programs need. Those that are links
// are links in the chamber too.
var programDirs = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store"}

// configFiles are what libraries read: without secrets, and without who else is on
// the host.
var configFiles = []string{
	"/etc/ld.so.cache", "/etc/localtime", "/etc/alternatives", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf",
	"/etc/services", "/etc/protocols", "/etc/gnutls", "/etc/crypto-policies", "/etc/ssl/openssl.cnf",
}

// placeholders are where something may be shown later, in directories that cannot be
// written to then.
var placeholders = []string{"/etc/resolv.conf", "/etc/hosts"}

// ptys is where the mould keeps the host's pseudo-terminals.
const ptys = "/ptys"

// namespaces are the namespaces beside that of mounts, with what is absent where the
// kernel has none of a kind.
var namespaces = []struct {
	flag int
	what string
}{
	{unix.CLONE_NEWIPC, "a namespace for IPC"},
	{unix.CLONE_NEWUTS, "a namespace for the host's name"},
	{unix.CLONE_NEWNET, "a namespace for the network"},
}

// NewBuilder makes a house, or says which part of it this kernel or this process's
// privileges do not allow. What the mould itself is made of gets a label, an SELinux
// context, if there is one.
func NewBuilder(label string) (*Builder, error) {
	b := &Builder{}
	raiseMemlock()
	// What the daemon was started with is not for those that it starts.
	if err := unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return nil, fault.Wrap(err, fault.Unsupported, fault.Host, "cannot keep descriptors from guests")
	}
	err := onOwnThread(func() (<-chan struct{}, error) {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return nil, fmt.Errorf("no mount namespace can be made: %w", err)
		}
		var err error
		if b.template, err = os.Open("/proc/thread-self/ns/mnt"); err != nil {
			return nil, err
		}
		if err := buildTemplate(label); err != nil {
			return nil, errors.Join(err, b.template.Close())
		}
		for _, s := range namespaces {
			if err := unix.Unshare(s.flag); err != nil {
				b.missing = append(b.missing, fmt.Sprintf("%s (%v)", s.what, err))
				continue
			}
			b.namespaces |= s.flag
		}
		err = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
		if err == nil {
			err = installSeccomp(false)
		}
		if b.hasSeccomp = err == nil; !b.hasSeccomp {
			b.missing = append(b.missing, fmt.Sprintf("a filter of calls (%v)", err))
		}
		return nil, nil
	})
	if err != nil {
		return nil, fault.Wrap(err, fault.Unsupported, fault.Host, "cannot make chambers for guests")
	}
	return b, nil
}

// HasNetNS reports whether programs have no network unless they are given the
// host's.
func (b *Builder) HasNetNS() bool { return b.namespaces&unix.CLONE_NEWNET != 0 }

// HasSeccomp reports whether programs are kept from calls of the kernel's that lead out of
// a chamber.
func (b *Builder) HasSeccomp() bool { return b.hasSeccomp }

// EnableCoreScheduling has the kernel run threads of different programs never at the same
// time on one core: what leaks between the threads of a core then leaks to nobody.
// It costs processor time where there are more threads to run than cores.
func (b *Builder) EnableCoreScheduling() error {
	err := onOwnThread(func() (<-chan struct{}, error) { return nil, setSchedCookie() })
	if errors.Is(err, unix.ENODEV) {
		return fault.New(fault.Unsupported, fault.Host, "this host's cores run one thread each: there is nothing to share")
	}
	if err != nil {
		return fault.Wrap(err, fault.Unsupported, fault.Host, "this kernel cannot keep guests from sharing a core")
	}
	b.coreScheduling = true
	return nil
}

// HasCoreScheduling reports whether that is so.
func (b *Builder) HasCoreScheduling() bool { return b.coreScheduling }

// setSchedCookie gives the thread, and what it starts, a cookie that no other thread has: the
// kernel runs only those with the same at once on a core.
func setSchedCookie() error {
	return unix.Prctl(unix.PR_SCHED_CORE, unix.PR_SCHED_CORE_CREATE, 0, unix.PR_SCHED_CORE_SCOPE_THREAD, 0)
}

// Missing names what of a chamber this kernel does not have.
func (b *Builder) Missing() []string { return b.missing }

// Close gives the mould back. What runs in chambers runs on.
func (b *Builder) Close() error { return b.template.Close() }

// templateRoot is where the mould is built: a directory that every host has, and that
// nothing is read from meanwhile.
const templateRoot = "/proc"

// buildTemplate makes the thread's own mount namespace the mould.
func buildTemplate(label string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("cannot part from the host's mounts: %w", err)
	}
	if err := unix.Mount("mould", templateRoot, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0755"); err != nil {
		return fmt.Errorf("cannot mount the mould: %w", err)
	}
	for _, path := range append(programDirs, configFiles...) {
		if err := bindReadOnly(path); err != nil {
			return fmt.Errorf("cannot show %s: %w", path, err)
		}
	}
	for _, path := range placeholders {
		if err := mountPoint(templateRoot+path, false); err != nil {
			return err
		}
	}
	if err := os.Mkdir(templateRoot+ptys, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("/dev/pts", templateRoot+ptys, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("cannot show the host's pseudo-terminals: %w", err)
	}
	if err := os.Mkdir(templateRoot+rootfs, 0o755); err != nil {
		return err
	}
	if err := enterRoot(templateRoot); err != nil {
		return fmt.Errorf("cannot leave the host's root: %w", err)
	}
	if err := labelTree("/", label); err != nil {
		return fmt.Errorf("cannot label the mould: %w", err)
	}
	return unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
}

// enterRoot makes a mount the root of the thread's mount namespace and lets go of
// the old one with all that is in it.
func enterRoot(at string) error {
	if err := unix.Chdir(at); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return err
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return err
	}
	return unix.Chdir("/")
}

// bindReadOnly lets what lies at path be read in the mould; what is not there is not
// missed.
func bindReadOnly(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	at := templateRoot + path
	if info.Mode().Type() == os.ModeSymlink {
		to, err := os.Readlink(path)
		if err != nil {
			return err
		}
		if !filepath.IsAbs(to) || strings.HasPrefix(to, "/usr/") { // it leads to what is shown
			return errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.Symlink(to, at))
		}
		if info, err = os.Stat(path); errors.Is(err, os.ErrNotExist) {
			return nil
		} else if err != nil {
			return err
		}
	}
	if err := mountPoint(at, info.IsDir()); err != nil {
		return err
	}
	if err := unix.Mount(path, at, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	return setReadOnly(unix.AT_FDCWD, at, unix.AT_RECURSIVE, 0)
}

// setReadOnly forbids writing, devices and raised privileges below a mount, and more
// if more is said.
func setReadOnly(dir int, path string, flags uint, more uint64) error {
	return unix.MountSetattr(dir, path, flags, &unix.MountAttr{
		Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | more,
	})
}

// mountPoint makes what something can be mounted on, and the directories above.
func mountPoint(at string, directory bool) error {
	if info, err := os.Lstat(at); err == nil && info.IsDir() == directory {
		return nil
	}
	if directory {
		return os.MkdirAll(at, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(at, os.O_CREATE|os.O_WRONLY|unix.O_NOFOLLOW, 0o444)
	if err != nil {
		return err
	}
	return f.Close()
}
