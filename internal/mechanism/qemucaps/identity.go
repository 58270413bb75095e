package qemucaps

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Identity distinguishes one binary, with the modules beside it, from another without
// reading it.
type Identity struct {
	Path          string
	Size          int64
	ModTime       int64 // nanoseconds since 1970
	Device, Inode uint64
	ChangeTime    int64 // nanoseconds since 1970; no program can set it
	Modules       int64 // when modules were last added or removed, in nanoseconds since 1970; 0 without any
}

// Host identifies the host for the verdict about KVM: it holds while the same kernel runs with the same
// KVM on the same processor. Times of files are left out: udev sets the mode of /dev/kvm again whenever
// KVM makes or ends a machine.
type Host struct {
	BootID    string
	Kernel    string // its release
	Microcode string // "" where the kernel tells none
	KVM       KVM
}

// KVM is the device of the kernel's module. A module that is loaded again gives it a new inode.
type KVM struct {
	Inode, Device uint64 // of /dev/kvm; 0 when it is not there
	Opens         bool
	Nested        string // whether guests may run guests, by module
}

// Matches reports whether c still holds for the binary at that path on this host. It reads only metadata
// of files.
func (c *Capabilities) Matches(binary string) bool {
	now, err := Identify(binary)
	return err == nil && c.Format == Format && c.Binary == now && c.Host == ThisHost()
}

// Identify reads the identity of the binary at that path.
func Identify(binary string) (Identity, error) {
	var s unix.Stat_t
	if err := unix.Stat(binary, &s); err != nil {
		return Identity{}, &os.PathError{Op: "stat", Path: binary, Err: err}
	}
	return Identity{
		Path: binary, Size: s.Size, ModTime: s.Mtim.Nano(), ChangeTime: s.Ctim.Nano(),
		Device: s.Dev, Inode: s.Ino, Modules: modulesChanged(binary),
	}, nil
}

// modulesChanged returns the time of the last change of a directory of modules.
// Distributions put modules into packages of their own, so that devices and displays
// are added and removed while the binary stays.
func modulesChanged(binary string) int64 {
	var last int64
	prefix := filepath.Dir(filepath.Dir(binary))
	for _, dir := range append(libraries.of(prefix), filepath.Join(prefix, "lib64")) {
		last = max(last, changed(filepath.Join(dir, "qemu")))
	}
	return last
}

// changed returns the time of a file's last change, in nanoseconds since 1970; 0 if it
// does not exist.
func changed(path string) int64 {
	var s unix.Stat_t
	if unix.Stat(path, &s) != nil {
		return 0
	}
	return s.Ctim.Nano()
}

// libraries caches the library directories of a prefix, one for each architecture,
// because every start needs them and /usr/lib is slow to read.
var libraries = libraryDirs{known: map[string]libraryDir{}}

type libraryDirs struct {
	mu    sync.Mutex
	known map[string]libraryDir // by prefix
}

type libraryDir struct {
	changed int64 // of PREFIX/lib, when it was read
	dirs    []string
}

// of returns PREFIX/lib and the directories for single architectures below it.
func (l *libraryDirs) of(prefix string) []string {
	lib := filepath.Join(prefix, "lib")
	now := changed(lib)
	l.mu.Lock()
	known, ok := l.known[prefix]
	l.mu.Unlock()
	if ok && known.changed == now {
		return slices.Clip(known.dirs)
	}
	// The pattern is well formed, and a directory that cannot be read counts as one without modules.
	found, _ := filepath.Glob(filepath.Join(lib, "*-linux-*"))
	known = libraryDir{now, append(found, lib)}
	l.mu.Lock()
	l.known[prefix] = known
	l.mu.Unlock()
	return slices.Clip(known.dirs)
}

// hostSources are the files that identify a host.
type hostSources struct {
	bootID, kernel, microcode string
	kvm                       string // the device
	nested                    string // a pattern: a parameter of each module
}

var sources = hostSources{
	bootID: "/proc/sys/kernel/random/boot_id", kernel: "/proc/sys/kernel/osrelease",
	microcode: "/sys/devices/system/cpu/cpu0/microcode/version",
	kvm:       "/dev/kvm", nested: "/sys/module/kvm_*/parameters/nested",
}

// ThisHost reads the identity of the host as it is now.
func ThisHost() Host { return sources.host() }

func (s hostSources) host() Host {
	h := Host{BootID: firstLine(s.bootID), Kernel: firstLine(s.kernel), Microcode: firstLine(s.microcode)}
	var node unix.Stat_t
	if unix.Stat(s.kvm, &node) != nil {
		return h
	}
	h.KVM.Inode, h.KVM.Device = node.Ino, node.Rdev
	if fd, err := unix.Open(s.kvm, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0); err == nil {
		h.KVM.Opens = true
		_ = unix.Close(fd)
	}
	// The pattern is well formed, and Glob returns sorted paths.
	modules, _ := filepath.Glob(s.nested)
	for _, path := range modules {
		h.KVM.Nested += filepath.Base(filepath.Dir(filepath.Dir(path))) + "=" + firstLine(path) + " "
	}
	return h
}

// firstLine returns the content of a file with one line, or "" if it cannot be read.
func firstLine(path string) string {
	text, _ := os.ReadFile(path)
	return strings.TrimSpace(string(text))
}
