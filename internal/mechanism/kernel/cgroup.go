package kernel

import (
	"cmp"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/mountinfo"
)

// Controller is one of the kernel's resource controllers that guests use.
type Controller string

// The controllers. CPUAccounting is a controller of its own in version 1, and part
// of every group in version 2. Version 2 has no controller for devices: a program
// for each group decides.
const (
	CPUController     Controller = "cpu"
	CPUAccounting     Controller = "cpuacct"
	CPUSetController  Controller = "cpuset"
	MemoryController  Controller = "memory"
	BlockIOController Controller = "io"
	PIDsController    Controller = "pids"
	DeviceController  Controller = "devices"
	HugePages         Controller = "hugetlb"
)

var controllers = []Controller{
	CPUController, CPUAccounting, CPUSetController, MemoryController, BlockIOController, PIDsController, DeviceController, HugePages,
}

// Cgroups is one instance's share of the host's control groups: a parent group
// named for the instance, below which each guest has a group of its own:
//
//	lodge-a1b2/guest-web/            the QEMU process
//	lodge-a1b2/guest-web/vcpu0/      a thread of it
//
// Where the tree of version 2 has an Owner, the parent group is the one that it
// grants.
//
// In version 1 (and on hosts that mount both) every controller has its own tree
// and a group is a directory in each; in version 2 there is one tree, and the
// groups of threads are threaded ones.
type Cgroups struct {
	root Root
	v2   bool
	// trees are the mount points that hold the parent group: for version 2 all
	// controllers share one.
	trees map[Controller]string
	// name is the instance's; parent is its group, below the mount point of a tree.
	name, parent string
	absent       map[Controller]string
	// owner makes the parent group; nil: this package makes it.
	owner     Owner
	ungranted error
	// changeSlots bound the concurrent changes of groups. The kernel makes one change at a time, and a
	// waiter there holds a thread.
	changeSlots chan struct{}
}

// maxConcurrentChanges bounds the callers that change groups at a time.
const maxConcurrentChanges = 2

// change runs do, which changes a group, once a slot is free.
func (c *Cgroups) change(do func() error) error {
	c.changeSlots <- struct{}{}
	defer func() { <-c.changeSlots }()
	return do()
}

// Owner owns the tree of version 2 groups, as systemd does where it is the first
// process.
type Owner interface {
	// Grant returns the group that the instance with this name may use freely, as a
	// path below the mount point of the tree. It makes the group if it is missing.
	Grant(name, tree string) (group string, err error)
	// Granted returns the group that Grant gave to an earlier daemon, without a request to
	// the owner; "" if the group does not exist.
	Granted(name, tree string) (group string)
	// Release returns the group to the owner once it is empty.
	Release(name string) error
}

// OpenCgroups finds the host's control groups and makes the parent group of the
// instance, "lodge" for the one without a name. Absent lists the controllers that
// cannot be used. On a host without usable controllers, groups are names without
// effect and every limit is absent.
func OpenCgroups(root Root, instance string) *Cgroups { return OpenOwnedCgroups(root, instance, nil) }

// OpenOwnedCgroups is OpenCgroups for a tree of version 2 that has an owner, unless
// owner is nil. If the owner grants no group, Ungranted returns the reason. The
// parent group is then the one that was granted to an earlier daemon, if guests have
// groups there; otherwise it is made as if the tree had no owner. A parent that an
// earlier daemon made without an owner stays in use while guests have groups there.
func OpenOwnedCgroups(root Root, instance string, owner Owner) *Cgroups {
	c := &Cgroups{
		root: root, name: "lodge", trees: map[Controller]string{}, absent: map[Controller]string{},
		changeSlots: make(chan struct{}, maxConcurrentChanges),
	}
	if instance != "" {
		c.name += "-" + instance
	}
	c.parent = c.name
	mounts, err := root.cgroupMounts()
	// A controller serves one version only. Version 1 wins if it has any, as the
	// rest of such a host then keeps its limits there.
	switch {
	case err != nil:
		for _, controller := range controllers {
			c.absent[controller] = err.Error()
		}
	case len(mounts.v1) > 0:
		c.trees = mounts.v1
	case mounts.v2 != "":
		c.v2 = true
		c.settleParent(mounts.v2, owner)
		c.openUnified(mounts.v2)
	}
	for _, controller := range controllers {
		c.openTree(controller)
	}
	return c
}

// settleParent asks the owner for the parent group.
func (c *Cgroups) settleParent(tree string, owner Owner) {
	if owner == nil || len(c.guestsBelow(tree, c.parent)) > 0 {
		return
	}
	_ = removeGroup(c.root.path(tree, c.parent)) // made by an earlier daemon without an owner
	group, err := owner.Grant(c.name, c.root.path(tree))
	if err != nil { // it may be out of reach, and its group still there
		c.ungranted = err
		group = owner.Granted(c.name, c.root.path(tree))
		if group == "" || len(c.guestsBelow(tree, group)) == 0 {
			return
		}
	}
	c.owner, c.parent = owner, strings.Trim(group, "/")
}

// Ungranted returns the reason why the tree's owner gave no group, or nil.
func (c *Cgroups) Ungranted() error { return c.ungranted }

// regrant asks the owner to make the parent group again after it was removed: systemctl stop removes it
// with all guests in it.
func (c *Cgroups) regrant() error {
	if _, err := c.owner.Grant(c.name, c.root.path(c.trees[CPUAccounting])); err != nil {
		return err
	}
	for _, controller := range controllers {
		if controller == CPUAccounting || !c.Has(controller) {
			continue
		}
		if err := c.enableUnified(c.trees[controller], controller); err != nil {
			return err
		}
	}
	return nil
}

// openTree makes the parent group in the controller's tree, or notes why not.
func (c *Cgroups) openTree(controller Controller) {
	tree, mounted := c.trees[controller]
	if !mounted {
		if c.absent[controller] == "" {
			c.absent[controller] = "not mounted"
		}
		return
	}
	if err := makeGroup(c.root.path(tree, c.parent)); err != nil {
		delete(c.trees, controller)
		c.absent[controller] = err.Error()
	} else if controller == CPUSetController && !c.v2 {
		if err := fillCPUSet(c.root.path(tree), c.root.path(tree, c.parent)); err != nil {
			delete(c.trees, controller)
			c.absent[controller] = err.Error()
		}
	}
}

// openUnified turns on every controller that the tree offers for the parent
// group and for the groups of guests below it.
func (c *Cgroups) openUnified(tree string) {
	if err := makeGroup(c.root.path(tree, c.parent)); err != nil {
		for _, controller := range controllers {
			c.absent[controller] = err.Error()
		}
		return
	}
	for _, controller := range controllers {
		if controller == CPUAccounting {
			c.trees[controller] = tree
			continue
		}
		if err := c.enableUnified(tree, controller); err != nil {
			c.absent[controller] = err.Error()
			continue
		}
		c.trees[controller] = tree
	}
}

// enableUnified lets the groups of guests use a controller. An owner has turned on
// the controllers that it knows: systemd does not know the one for huge pages.
func (c *Cgroups) enableUnified(tree string, controller Controller) error {
	if controller == DeviceController {
		return tryDevices(c.root.path(tree, c.parent))
	}
	for _, dir := range slices.Backward(upwards(tree, "/"+c.parent)) {
		if err := enable(c.root.path(dir), controller); err != nil {
			return err
		}
	}
	return nil
}

// enable lets the children of a version 2 group use a controller.
func enable(group string, controller Controller) error {
	on, err := os.ReadFile(filepath.Join(group, "cgroup.subtree_control"))
	if err != nil || slices.Contains(strings.Fields(string(on)), string(controller)) {
		return err
	}
	return writeControl(group, "cgroup.subtree_control", "+"+string(controller))
}

// Version is 1 or 2, or 0 on a host without usable control groups.
func (c *Cgroups) Version() int {
	switch {
	case len(c.trees) == 0:
		return 0
	case c.v2:
		return 2
	}
	return 1
}

// Has says whether guests can be given limits by the controller.
func (c *Cgroups) Has(controller Controller) bool { return c.trees[controller] != "" }

// Absent returns the controllers that cannot be used, each with the reason.
func (c *Cgroups) Absent() map[Controller]string { return maps.Clone(c.absent) }

// Close removes the parent group, or gives it back. It is Busy while guests have groups.
func (c *Cgroups) Close() error {
	if c.owner != nil {
		if guests := c.Guests(); len(guests) > 0 {
			return fault.New(fault.Busy, fault.Host, "%d guests have control groups", len(guests))
		}
		return c.owner.Release(c.name)
	}
	var errs []error
	for _, tree := range c.distinctTrees() {
		errs = append(errs, removeGroup(c.root.path(tree, c.parent)))
	}
	return errors.Join(errs...)
}

// distinctTrees gives each tree once, however many controllers share it.
func (c *Cgroups) distinctTrees() []string {
	return slices.Compact(slices.Sorted(maps.Values(c.trees)))
}

type cgroupMounts struct {
	v1 map[Controller]string
	v2 string
}

// cgroupMounts reads where control groups are mounted first (a container's root
// may show them once more, and go).
func (r Root) cgroupMounts() (cgroupMounts, error) {
	text, err := r.read("proc/self/mountinfo")
	if err != nil {
		return cgroupMounts{}, fault.Wrap(err, fault.Of(err), fault.Host, "cannot tell where control groups are mounted")
	}
	mounts := cgroupMounts{v1: map[Controller]string{}}
	for mount := range mountinfo.Parse(text) {
		switch mount.Type {
		case "cgroup2":
			mounts.v2 = cmp.Or(mounts.v2, mount.Point)
		case "cgroup":
			for option := range strings.SplitSeq(mount.Options, ",") {
				if option == "blkio" {
					option = string(BlockIOController)
				}
				if c := Controller(option); slices.Contains(controllers, c) {
					mounts.v1[c] = cmp.Or(mounts.v1[c], mount.Point)
				}
			}
		}
	}
	return mounts, nil
}

func makeGroup(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// removeGroup removes one directory. A missing one is no error.
func removeGroup(dir string) error {
	err := os.Remove(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return fault.Wrap(err, fault.Busy, fault.Host, "cannot remove control group %q", filepath.Base(dir))
}

// fillCPUSet gives a new version 1 group the processors and nodes of its parent.
// The group starts without any, and accepts no process until it has some.
func fillCPUSet(parent, group string) error {
	for _, knob := range []string{"cpuset.cpus", "cpuset.mems"} {
		own, err := readUpTo(filepath.Join(group, knob), maxFile)
		if err != nil {
			return err
		}
		if strings.TrimSpace(string(own)) != "" { // a daemon that was killed between the two files leaves the second one empty
			continue
		}
		inherited, err := readUpTo(filepath.Join(parent, knob), maxFile)
		if err != nil {
			return err
		}
		if err := writeControl(group, knob, strings.TrimSpace(string(inherited))); err != nil {
			return err
		}
	}
	return nil
}
