package qemucaps

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// furnishedHost makes the files that identify a host.
func furnishedHost(t *testing.T) hostSources {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "kvm_amd", "parameters"), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "kvm_amd", "parameters", "nested"), "1\n")
	return hostSources{
		bootID: write(t, filepath.Join(dir, "boot"), "b1\n"), kernel: write(t, filepath.Join(dir, "release"), "6.1\n"),
		microcode: write(t, filepath.Join(dir, "microcode"), "0x1\n"), kvm: write(t, filepath.Join(dir, "kvm"), ""),
		nested: filepath.Join(dir, "kvm_*", "parameters", "nested"),
	}
}

// TestMatches_KVMDeviceModeChanged: udev changes the mode whenever KVM makes or
// ends a machine. The capabilities that were probed stay valid.
// Promise: G15
func TestMatches_KVMDeviceModeChanged(t *testing.T) {
	host := furnishedHost(t)
	defer func(s hostSources) { sources = s }(sources)
	sources = host
	binary := write(t, filepath.Join(t.TempDir(), "qemu"), "")
	identity, err := Identify(binary)
	if err != nil {
		t.Fatal(err)
	}
	c := &Capabilities{Format: Format, Binary: identity, Host: host.host()}
	changeTime := func() unix.Timespec {
		var s unix.Stat_t
		if err := unix.Stat(host.kvm, &s); err != nil {
			t.Fatal(err)
		}
		return s.Ctim
	}
	for _, mode := range []os.FileMode{0o660, 0o666, 0o660} {
		for before := changeTime(); changeTime() == before; { // the clock of files is coarse
			if err := os.Chmod(host.kvm, mode); err != nil {
				t.Fatal(err)
			}
		}
		if !c.Matches(binary) {
			t.Fatalf("with the device's rights set to %v QEMU would be probed again", mode)
		}
	}
}

func TestThisHost_Changes(t *testing.T) {
	for name, change := range map[string]func(*testing.T, hostSources) error{
		"another boot":               func(t *testing.T, s hostSources) error { write(t, s.bootID, "b2\n"); return nil },
		"another kernel":             func(t *testing.T, s hostSources) error { write(t, s.kernel, "6.2\n"); return nil },
		"new microcode":              func(t *testing.T, s hostSources) error { write(t, s.microcode, "0x2\n"); return nil },
		"the module was unloaded":    func(_ *testing.T, s hostSources) error { return os.Remove(s.kvm) },
		"the module was loaded anew": func(t *testing.T, s hostSources) error { return os.Rename(write(t, s.kvm+".new", ""), s.kvm) },
		"guests may not run guests": func(t *testing.T, s hostSources) error {
			write(t, filepath.Join(filepath.Dir(s.kvm), "kvm_amd", "parameters", "nested"), "0\n")
			return nil
		},
		"another vendor's module": func(_ *testing.T, s hostSources) error {
			dir := filepath.Dir(s.kvm)
			return os.Rename(filepath.Join(dir, "kvm_amd"), filepath.Join(dir, "kvm_intel"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := furnishedHost(t)
			before := s.host()
			if before != s.host() {
				t.Fatal("the same host differs from itself")
			}
			if err := change(t, s); err != nil {
				t.Fatal(err)
			}
			if after := s.host(); after == before {
				t.Errorf("the host is still %+v", after)
			}
		})
	}
}

// A device that cannot be opened may be so later, with the same inode: its module
// is loaded at the first try.
func TestThisHost_KVMUnavailable(t *testing.T) {
	s := furnishedHost(t)
	if kvm := s.host().KVM; !kvm.Opens || kvm.Nested != "kvm_amd=1 " {
		t.Errorf("a device that can be opened is %+v", kvm)
	}
	s.kvm += ".socket" // which the kernel opens as little as a device without its module
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", s.kvm)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if kvm := s.host().KVM; kvm.Inode == 0 || kvm.Opens {
		t.Errorf("a device that cannot be opened is %+v", kvm)
	}
}

func TestMatches(t *testing.T) {
	prefix := t.TempDir()
	modules := filepath.Join(prefix, "lib", "x86_64-linux-gnu", "qemu")
	for _, dir := range []string{modules, filepath.Join(prefix, "bin")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	binary := write(t, filepath.Join(prefix, "bin", "qemu"), "one")
	identity, err := Identify(binary)
	if err != nil {
		t.Fatal(err)
	}
	c := &Capabilities{Format: Format, Binary: identity, Host: sources.host()}
	if !c.Matches(binary) {
		t.Fatal("the same binary does not match")
	}
	other := *c
	other.Host.BootID += "x"
	if other.Matches(binary) {
		t.Error("another boot matches")
	}
	other = *c
	other.Format++
	if other.Matches(binary) {
		t.Error("another format matches")
	}
	write(t, filepath.Join(modules, "ui-spice-core.so"), "module")
	if c.Matches(binary) {
		t.Error("a binary with one module more matches")
	}
	if c.Binary, err = Identify(binary); err != nil || !c.Matches(binary) {
		t.Errorf("with the new module it does not match: %v", err)
	}
	if c.Matches(binary + ".gone") {
		t.Error("a binary that is gone matches")
	}
	if err := os.WriteFile(binary+".new", []byte("two"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(binary+".new", binary); err != nil {
		t.Fatal(err)
	}
	if c.Matches(binary) {
		t.Error("a binary that was replaced matches")
	}
}

func write(t testing.TB, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
