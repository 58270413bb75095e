package kernel_test

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel/kerneltest"
)

// null and zero are nodes that every host has, to allow and to refuse.
var null, zero = kernel.DeviceNode{Major: 1, Minor: 3}, kernel.DeviceNode{Major: 1, Minor: 5}

// reads starts a process in a group that then reads a byte of a device. It returns
// the process's error text if the device may not be read.
func reads(t *testing.T, g *kernel.Group, path string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", "read go && exec dd if="+path+" of=/dev/null bs=1 count=1 2>&1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := g.AddProcess(cmd.Process.Pid); err != nil {
		t.Error(err)
	}
	if _, err := io.WriteString(in, "go\n"); err != nil {
		t.Error(err)
	}
	said, err := io.ReadAll(out)
	if err != nil {
		t.Error(err)
	}
	if cmd.Wait() == nil {
		return ""
	}
	return string(said)
}

// A guest's group can open the devices that it is allowed, and no others; the list of
// allowed devices can grow and shrink while it runs.
func testDevices(t *testing.T, c *kernel.Cgroups) {
	t.Helper()
	if !c.Has(kernel.DeviceController) {
		t.Skip("this host does not control devices: ", c.Absent()[kernel.DeviceController])
	}
	g := c.Guest("devices")
	if err := g.Create(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Clear(context.Background()); err != nil {
			t.Error(err)
		}
	})
	for _, c := range []struct {
		nodes []kernel.DeviceNode
		may   bool
	}{
		{[]kernel.DeviceNode{null, zero}, true},
		{[]kernel.DeviceNode{null}, false},
		{[]kernel.DeviceNode{null, zero}, true},
		{[]kernel.DeviceNode{null, {Block: true, Major: zero.Major, Minor: zero.Minor}}, false},
		{[]kernel.DeviceNode{{Major: zero.Major, Minor: kernel.AnyMinor}}, true},
	} {
		if err := g.AllowDevices(c.nodes); err != nil {
			t.Fatal(err)
		}
		if said := reads(t, g, "/dev/zero"); (said == "") != c.may {
			t.Errorf("with %v it may read /dev/zero: %v, and not %v; it said %q", c.nodes, said == "", c.may, said)
		}
	}
}

// Promise: I2
func TestGroup_Devices(t *testing.T) { testDevices(t, openLive(t, kernel.Root{})) }

// The daemon's own group may have a list, as in a container: guests get those of their devices that it allows.
// Promise: I2
func TestGroup_DevicesBelowList(t *testing.T) {
	c := openLive(t, kernel.Root{})
	at := c.Guest("devices").Path(kernel.DeviceController)
	if c.Version() != 1 || at == "" {
		t.Skip("this host has no list of devices")
	}
	for _, rule := range []struct{ file, text string }{
		{"devices.deny", "a"}, {"devices.allow", "c 1:* rwm"}, {"devices.allow", "c 1:3 rwm"}, {"devices.allow", "c 1:5 rwm"},
	} {
		if err := os.WriteFile(filepath.Join(filepath.Dir(at), rule.file), []byte(rule.text), 0); err != nil {
			t.Fatal(err)
		}
	}
	testDevices(t, c)
}

// Promise: I2
func TestGroup_DevicesUnified(t *testing.T) { testDevices(t, openUnified(t)) }

// The writes to a version 1 group and their order: a node that stays allowed is never refused
// in between.
// Promise: I2
func TestDeviceList_VersionOne(t *testing.T) {
	dir := t.TempDir()
	kerneltest.Write(t, dir, `proc/self/mountinfo = 30 23 0:26 / /d rw - cgroup cgroup rw,devices
d/lodge/guest-a/devices.list = c 1:3 rw
d/lodge/guest-a/devices.allow = 
d/lodge/guest-a/devices.deny = 
`)
	c := kernel.OpenCgroups(kernel.At(dir), "")
	if c.Version() != 1 || !c.Has(kernel.DeviceController) {
		t.Fatalf("the made-up tree is not used: %v", c.Absent())
	}
	group := filepath.Join(dir, "d/lodge/guest-a")
	for _, step := range []struct {
		list, allow, deny string
		nodes             []kernel.DeviceNode
	}{
		{"a *:* rwm\n", "c 1:3 rw", "a", []kernel.DeviceNode{{Major: 1, Minor: 3}}},
		{"c 1:3 rw\n", "", "", []kernel.DeviceNode{{Major: 1, Minor: 3}}},
		{"c 1:3 rw\n", "b 8:16 rw", "", []kernel.DeviceNode{{Major: 1, Minor: 3}, {Block: true, Major: 8, Minor: 16}}},
		{"c 1:3 rw\nc 10:196 rw\n", "", "c 10:196 rw", []kernel.DeviceNode{{Major: 1, Minor: 3}}},
		{"", "c 136:* rw", "", kernel.Terminals()},
		{"c 1:3 rwm\n", "", "c 1:3 m", []kernel.DeviceNode{{Major: 1, Minor: 3}}}, // as a container's group has it
		{"c 1:3 r\n", "c 1:3 rw", "", []kernel.DeviceNode{{Major: 1, Minor: 3}}},
		{"c *:* m\n", "", "c *:* m", nil},
	} {
		err := errors.Join(os.WriteFile(filepath.Join(group, "devices.list"), []byte(step.list), 0o600),
			os.WriteFile(filepath.Join(group, "devices.allow"), nil, 0o600), os.WriteFile(filepath.Join(group, "devices.deny"), nil, 0o600))
		if err == nil {
			err = c.Guest("a").AllowDevices(step.nodes)
		}
		if err != nil {
			t.Fatal(err)
		}
		for file, want := range map[string]string{"devices.allow": step.allow, "devices.deny": step.deny} {
			if got, err := os.ReadFile(filepath.Join(group, file)); err != nil || string(got) != want {
				t.Errorf("from %q to %v: %s got %q, want %q (%v)", step.list, step.nodes, file, got, want, err)
			}
		}
	}
	if err := c.Guest("a").AllowDevices(make([]kernel.DeviceNode, 5000)); err == nil {
		t.Error("any number of devices is let")
	}
	if text, _ := os.ReadFile(filepath.Join(group, "devices.allow")); strings.Contains(string(text), "0:0") {
		t.Errorf("some of too many devices were let: %s", text)
	}
}
