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

// Builder makes sandboxes. It keeps the template: a mount namespace that holds only what all programs may
// read.
type Builder struct {
	template       *os.File // the mount namespace that sandboxes are copies of
	namespaces     int      // CLONE_NEW* flags of the other namespaces, as far as this kernel has them
	missing        []string
	coreScheduling bool // each program has its own core scheduling cookie
	hasSeccomp     bool // the seccomp filter can be installed
}

// rootfs is the path of the sandbox's root in its mount namespace.
const rootfs = "/room"

// programDirs are the host's directories with programs and libraries. One that is a symbolic link is a
// link in the sandbox too.
var programDirs = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store"}

// configFiles are read by libraries. They hold no secrets and do not tell what else runs on the host.
var configFiles = []string{
	"/etc/ld.so.cache", "/etc/localtime", "/etc/alternatives", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf",
	"/etc/services", "/etc/protocols", "/etc/gnutls", "/etc/crypto-policies", "/etc/ssl/openssl.cnf",
}

// placeholders are empty files for files that may be mounted later: their directories are read-only by
// then.
var placeholders = []string{"/etc/resolv.conf", "/etc/hosts"}

// ptys is the path of the host's pseudo-terminals in the template.
const ptys = "/ptys"

// namespaces are made beside the mount namespace, with the name to report when the kernel has none of the
// kind.
var namespaces = []struct {
	flag int
	what string
}{
	{unix.CLONE_NEWIPC, "IPC namespaces"},
	{unix.CLONE_NEWUTS, "UTS namespaces"},
	{unix.CLONE_NEWNET, "network namespaces"},
}

// NewBuilder makes the template. Its error says which part this kernel does not have or this process may
// not use. Files of the template's own file system get the label, an SELinux context, unless it is "".
func NewBuilder(label string) (*Builder, error) {
	b := &Builder{}
	raiseMemlock()
	// Programs must not inherit descriptors that the daemon itself inherited.
	if err := unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return nil, fault.Wrap(err, fault.Unsupported, fault.Host, "cannot close inherited descriptors in guests")
	}
	err := onOwnThread(func() (<-chan struct{}, error) {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return nil, fmt.Errorf("cannot make a mount namespace: %w", err)
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
			b.missing = append(b.missing, fmt.Sprintf("seccomp filters (%v)", err))
		}
		return nil, nil
	})
	if err != nil {
		return nil, fault.Wrap(err, fault.Unsupported, fault.Host, "cannot make sandboxes for guests")
	}
	return b, nil
}

// HasNetNS reports whether sandboxes have an empty network namespace of their own, unless a specification
// asks for the host's network.
func (b *Builder) HasNetNS() bool { return b.namespaces&unix.CLONE_NEWNET != 0 }

// HasSeccomp reports whether sandboxed programs run under the seccomp filter.
func (b *Builder) HasSeccomp() bool { return b.hasSeccomp }

// EnableCoreScheduling makes the kernel never run threads of different programs at the same time on one
// core, so that side channels between the threads of a core reach no other program. It costs processor
// time when there are more runnable threads than cores.
func (b *Builder) EnableCoreScheduling() error {
	err := onOwnThread(func() (<-chan struct{}, error) { return nil, setSchedCookie() })
	if errors.Is(err, unix.ENODEV) {
		return fault.New(fault.Unsupported, fault.Host, "core scheduling has no use here: this host's cores run one thread each")
	}
	if err != nil {
		return fault.Wrap(err, fault.Unsupported, fault.Host, "this kernel has no core scheduling, so guests can share a core")
	}
	b.coreScheduling = true
	return nil
}

// HasCoreScheduling reports whether core scheduling is enabled.
func (b *Builder) HasCoreScheduling() bool { return b.coreScheduling }

// setSchedCookie gives the thread, and the processes that it starts, a unique core scheduling cookie. At
// one time the kernel runs only threads with the same cookie on a core.
func setSchedCookie() error {
	return unix.Prctl(unix.PR_SCHED_CORE, unix.PR_SCHED_CORE_CREATE, 0, unix.PR_SCHED_CORE_SCOPE_THREAD, 0)
}

// Missing names the parts of a sandbox that this kernel does not have.
func (b *Builder) Missing() []string { return b.missing }

// Close closes the template. Sandboxed programs keep running.
func (b *Builder) Close() error { return b.template.Close() }

// templateRoot is the directory on which the template is built. Every host has /proc, and nothing reads it
// in this mount namespace meanwhile.
const templateRoot = "/proc"

// buildTemplate turns the thread's own mount namespace into the template: a small tmpfs with read-only
// binds of the host's programs, which becomes the only root.
func buildTemplate(label string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("cannot make the mounts private: %w", err)
	}
	if err := unix.Mount("template", templateRoot, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0755"); err != nil {
		return fmt.Errorf("cannot mount the template: %w", err)
	}
	for _, path := range append(programDirs, configFiles...) {
		if err := bindReadOnly(path); err != nil {
			return fmt.Errorf("cannot bind %s: %w", path, err)
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
		return fmt.Errorf("cannot bind the host's pseudo-terminals: %w", err)
	}
	if err := os.Mkdir(templateRoot+rootfs, 0o755); err != nil {
		return err
	}
	if err := enterRoot(templateRoot); err != nil {
		return fmt.Errorf("cannot leave the host's root directory: %w", err)
	}
	if err := labelTree("/", label); err != nil {
		return fmt.Errorf("cannot label the template: %w", err)
	}
	return unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
}

// enterRoot makes a mount the root of the thread's mount namespace and unmounts the old root with
// everything below it.
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

// bindReadOnly binds a path of the host read-only into the template. A path that does not exist is
// skipped.
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
		if !filepath.IsAbs(to) || strings.HasPrefix(to, "/usr/") { // its target is in the template too
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

// setReadOnly sets the attributes read-only, nosuid and nodev on a mount, and more if given.
func setReadOnly(dir int, path string, flags uint, more uint64) error {
	return unix.MountSetattr(dir, path, flags, &unix.MountAttr{
		Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | more,
	})
}

// mountPoint makes an empty file or directory to mount on, and its parent directories.
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
