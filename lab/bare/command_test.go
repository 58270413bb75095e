package bare

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

var monitorArgs = []string{
	"-chardev", "socket,id=charmonitor,fd=28,server=on,wait=off", "-mon", "chardev=charmonitor,id=monitor,mode=control",
}

func TestDetachGivesTheMonitorAnotherSocket(t *testing.T) {
	for _, device := range []string{
		"socket,id=charmonitor,fd=28,server=on,wait=off",
		"socket,id=charmonitor,path=/run/guest/monitor.sock,server=on,wait=off",
	} {
		args := slices.Concat([]string{"-S"}, []string{"-chardev", device}, monitorArgs[2:], []string{"-smp", "1"})
		got, err := detach(args, "/", t.TempDir())
		want := slices.Concat([]string{"-S", "-chardev", "socket,id=charmonitor,fd=3,server=on,wait=off"}, monitorArgs[2:], []string{"-smp", "1"})
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: got %q, %v", device, got, err)
		}
	}
}

func TestDetachCopiesTheSecret(t *testing.T) {
	root, dir := t.TempDir(), t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "lib"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "lib/key"), []byte("sesame"), 0o600); err != nil {
		t.Fatal(err)
	}
	secret := `{"qom-type":"secret","id":"masterKey0","format":"raw","file":"/lib/key"}`
	memory := `{"qom-type":"memory-backend-ram","id":"pc.ram","size":100663296}`
	got, err := detach(slices.Concat([]string{"-object", secret, "-object", memory}, monitorArgs), root, dir)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "masterKey0.secret")
	if want := strings.Replace(secret, "/lib/key", path, 1); got[1] != want || got[3] != memory {
		t.Errorf("got %s and %s, want %s", got[1], got[3], want)
	}
	if key, err := os.ReadFile(path); err != nil || string(key) != "sesame" {
		t.Errorf("the copy holds %q, %v", key, err)
	}
	if err := os.Remove(filepath.Join(root, "lib/key")); err != nil {
		t.Fatal(err)
	}
	if _, err := detach(slices.Concat([]string{"-object", secret}, monitorArgs), root, dir); !fault.Is(err, fault.Failed) {
		t.Errorf("a secret that is gone: %v", err)
	}
}

func TestDetachRefusesWhatBelongsToOneProcess(t *testing.T) {
	for name, args := range map[string][]string{
		"no monitor":        {"-S"},
		"monitor elsewhere": {"-chardev", "stdio,id=m", "-mon", "chardev=m,mode=control"},
		"tap":               slices.Concat(monitorArgs, []string{"-netdev", "tap,fd=30,id=hostnet0"}),
		"taps":              slices.Concat(monitorArgs, []string{"-netdev", "tap,fds=30:31,id=hostnet0"}),
		"vhost":             slices.Concat(monitorArgs, []string{"-netdev", "tap,ifname=x,vhostfd=30"}),
		"as JSON":           slices.Concat(monitorArgs, []string{"-netdev", `{"type":"tap","fd":"30","id":"n"}`}),
		"first in JSON":     slices.Concat(monitorArgs, []string{"-netdev", `{"fd":"30","type":"tap"}`}),
		"set":               slices.Concat(monitorArgs, []string{"-blockdev", `{"driver":"file","filename":"/dev/fdset/1"}`}),
		"added":             slices.Concat(monitorArgs, []string{"-add-fd", "set=1,fd=30"}),
		"pid file":          slices.Concat(monitorArgs, []string{"-pidfile", "/run/x"}),
	} {
		if got, err := detach(args, "/", t.TempDir()); !fault.Is(err, fault.Unsupported) {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
	}
	harmless := []string{"-name", "guest=fd,debug-threads=on", "-object", `{"qom-type":"rng-random","id":"fdc"}`, "-device", `{"driver":"isa-fdc"}`}
	if _, err := detach(slices.Concat(harmless, monitorArgs), "/", t.TempDir()); err != nil {
		t.Errorf("what only looks like a descriptor: %v", err)
	}
}

func TestFind(t *testing.T) {
	proc := t.TempDir()
	for pid, args := range map[string]string{
		"10":   "/usr/bin/qemu-system-x86_64\x00-name\x00guest=web1,debug-threads=on\x00-S\x00",
		"11":   "/usr/bin/qemu-system-x86_64\x00-name\x00guest=web,debug-threads=on\x00-S\x00",
		"12":   "grep\x00-name\x00guest=web\x00",
		"13":   "",
		"14":   "/usr/bin/qemu-system-x86_64\x00-name",
		"self": "/usr/bin/qemu-system-x86_64\x00-name\x00guest=web\x00",
	} {
		if err := os.Mkdir(filepath.Join(proc, pid), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(proc, pid, "cmdline"), []byte(args), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if pid, args, err := find(proc, "web"); pid != 11 || err != nil || len(args) != 4 {
		t.Errorf("got %d, %q, %v", pid, args, err)
	}
	if _, _, err := find(proc, "we"); !fault.Is(err, fault.NotFound) {
		t.Errorf("a guest that is not there: %v", err)
	}
}

func TestACommandOfAnotherGuestDiffersByItsName(t *testing.T) {
	c := &Command{Binary: "qemu", Args: []string{"-name", "guest=lab-1,debug-threads=on", "-blockdev", `{"filename":"/d/lab-1-00.raw"}`, "-S"}, guest: "lab-1", dir: "/a"}
	other := c.For("lab-2", "/b")
	want := []string{"-name", "guest=lab-2,debug-threads=on", "-blockdev", `{"filename":"/d/lab-2-00.raw"}`, "-S"}
	if !slices.Equal(other.Args, want) || other.dir != "/b" {
		t.Errorf("got %q in %s", other.Args, other.dir)
	}
	if c.Args[1] != "guest=lab-1,debug-threads=on" {
		t.Error("the first command has changed")
	}
}
