package kernel_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel/kerneltest"
)

// owner keeps groups below "slice" of a tree of version 2.
type owner struct {
	granted  int
	released []string
	err      error
}

func (o *owner) Grant(name, tree string) (string, error) {
	if o.err != nil {
		return "", o.err
	}
	o.granted++
	group := "/slice/" + name + ".unit"
	return group, os.MkdirAll(filepath.Join(tree, group), 0o755)
}

func (o *owner) Granted(name, tree string) string {
	group := "/slice/" + name + ".unit"
	if _, err := os.Stat(filepath.Join(tree, group)); err != nil {
		return ""
	}
	return group
}

func (o *owner) Release(name string) error {
	o.released = append(o.released, name)
	return nil
}

// ownedTree returns a host with nothing but an empty tree of version 2.
func ownedTree(t *testing.T) (root kernel.Root, tree string) {
	t.Helper()
	dir := t.TempDir()
	kerneltest.Write(t, dir, "proc/self/mountinfo = 41 31 0:37 / /mnt rw - cgroup2 cgroup2 rw\n")
	tree = filepath.Join(dir, "mnt")
	if err := os.Mkdir(tree, 0o755); err != nil {
		t.Fatal(err)
	}
	return kernel.At(dir), tree
}

func TestOwnedGroups_GrantedPlace(t *testing.T) {
	root, tree := ownedTree(t)
	o := &owner{}
	c := kernel.OpenOwnedCgroups(root, "a1", o)
	g := c.Guest("web")
	if err := errors.Join(c.Ungranted(), g.Create()); err != nil {
		t.Fatal(err)
	}
	granted := filepath.Join(tree, "slice/lodge-a1.unit")
	if _, err := os.Stat(granted + "/guest-web"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(tree + "/lodge-a1"); err == nil {
		t.Error("a group was made beside the owner's")
	}
	if err := c.Close(); !fault.Is(err, fault.Busy) || o.released != nil {
		t.Errorf("closing with a guest gives %v, released %v", err, o.released)
	}
	// The owner removes its group with everything in it.
	if err := os.RemoveAll(granted); err != nil {
		t.Fatal(err)
	}
	if err := g.Create(); err != nil || o.granted != 2 {
		t.Errorf("after the owner's group has gone, creating gives %v, granted %d times", err, o.granted)
	}
	if err := errors.Join(g.Remove(deadline(t)), c.Close()); err != nil || len(o.released) != 1 || o.released[0] != "lodge-a1" {
		t.Errorf("closing gives %v, released %v", err, o.released)
	}
}

// TestOwnedGroups_AfterUpgrade: after an upgrade the daemon finds them again.
func TestOwnedGroups_AfterUpgrade(t *testing.T) {
	root, tree := ownedTree(t)
	old := kernel.OpenCgroups(root, "").Guest("web")
	if err := old.Create(); err != nil {
		t.Fatal(err)
	}
	o := &owner{}
	c := kernel.OpenOwnedCgroups(root, "", o)
	if names := c.Guests(); len(names) != 1 || o.granted != 0 {
		t.Errorf("guests are %v, granted %d times", names, o.granted)
	}
	if err := old.Remove(deadline(t)); err != nil {
		t.Fatal(err)
	}
	kernel.OpenOwnedCgroups(root, "", o)
	if _, err := os.Stat(tree + "/lodge"); err == nil || o.granted != 1 {
		t.Errorf("once they have ended, the earlier group is there (%v), granted %d times", err, o.granted)
	}
}

// TestOwnedGroups_OwnerUnreachable: a daemon that starts while the bus
// is away finds the guests where an earlier daemon put them, and puts new ones there.
// Promise: G13
func TestOwnedGroups_OwnerUnreachable(t *testing.T) {
	root, tree := ownedTree(t)
	o := &owner{}
	if err := kernel.OpenOwnedCgroups(root, "a1", o).Guest("web").Create(); err != nil {
		t.Fatal(err)
	}
	o.err = errors.New("no bus")
	c := kernel.OpenOwnedCgroups(root, "a1", o)
	if names := c.Guests(); len(names) != 1 || names[0] != "web" || c.Ungranted() == nil {
		t.Errorf("guests are %v, and the owner's answer is %v", names, c.Ungranted())
	}
	if err := c.Guest("db").Create(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(tree + "/slice/lodge-a1.unit/guest-db"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(tree + "/lodge-a1"); err == nil {
		t.Error("a group was made beside the owner's")
	}
	if err := c.Close(); !fault.Is(err, fault.Busy) {
		t.Errorf("closing with guests gives %v", err)
	}
}

func TestOwnedGroups_NothingGranted(t *testing.T) {
	root, tree := ownedTree(t)
	c := kernel.OpenOwnedCgroups(root, "", &owner{err: errors.New("no bus")})
	if err := c.Ungranted(); err == nil || !strings.Contains(err.Error(), "no bus") {
		t.Errorf("it says %v", err)
	}
	if err := c.Guest("web").Create(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(tree + "/lodge/guest-web"); err != nil {
		t.Error(err)
	}
}
