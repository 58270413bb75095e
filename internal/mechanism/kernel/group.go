package kernel

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Group is a control group of a guest, or of some of its threads. The value is only a
// name: nothing is made before Create, and a restarted daemon finds a guest's group
// again by the same name.
type Group struct {
	cgroups *Cgroups
	// name is the path below the parent group.
	name string
	// threaded groups hold threads of the one process that is in the guest's group.
	threaded bool
}

const guestPrefix = "guest-"

// Guest names the group of a guest. Any name does: bytes that a directory cannot
// carry are escaped.
func (c *Cgroups) Guest(name string) *Group {
	return &Group{cgroups: c, name: guestPrefix + strings.NewReplacer("%", "%25", "/", "%2f", "\n", "%0a").Replace(name)}
}

// Guests lists the guests that have groups, of any daemon.
func (c *Cgroups) Guests() []string {
	names := map[string]bool{}
	for _, tree := range c.distinctTrees() {
		for _, name := range c.guestsBelow(tree, c.parent) {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// guestsBelow gives the names of the guests that have groups below one of a tree.
func (c *Cgroups) guestsBelow(tree, parent string) (names []string) {
	for _, dir := range c.root.list(tree, parent) {
		if name, is := strings.CutPrefix(dir, guestPrefix); is {
			names = append(names, strings.NewReplacer("%25", "%", "%2f", "/", "%0a", "\n").Replace(name))
		}
	}
	return names
}

// Threads names a group below a guest's for some of its threads, such as vcpu0,
// emulator or iothread1. Only the processor controllers act on it.
func (g *Group) Threads(name string) *Group {
	return &Group{cgroups: g.cgroups, name: g.name + "/" + name, threaded: true}
}

// Path is the group's directory in the tree of a controller, or "".
func (g *Group) Path(controller Controller) string {
	tree := g.cgroups.trees[controller]
	if tree == "" {
		return ""
	}
	return filepath.Join(tree, g.cgroups.parent, g.name)
}

// dirs are the directories that make up the group, each once.
func (g *Group) dirs() []string {
	var dirs []string
	for _, tree := range g.cgroups.distinctTrees() {
		if !g.threaded || g.cgroups.v2 || g.cgroups.hasThreads(tree) {
			dirs = append(dirs, g.cgroups.root.path(tree, g.cgroups.parent, g.name))
		}
	}
	return dirs
}

// hasThreads says whether a version 1 tree has a controller for threads.
func (c *Cgroups) hasThreads(tree string) bool {
	return tree == c.trees[CPUController] || tree == c.trees[CPUSetController] || tree == c.trees[CPUAccounting]
}

// checkExists reports an error if the group does not exist.
func (g *Group) checkExists() error {
	dirs := g.dirs()
	if len(dirs) == 0 {
		return fault.New(fault.Unsupported, fault.Host, "this host has no usable control groups")
	}
	_, err := os.Stat(dirs[0])
	return g.failed(err, "find")
}

// Create makes the group, or uses the one that exists. A guest's group is made before
// those of its threads; in version 2 the process must be in it before they are made.
func (g *Group) Create() error { return g.cgroups.change(g.create) }

func (g *Group) create() error {
	for _, dir := range g.dirs() {
		err := makeGroup(dir)
		if errors.Is(err, fs.ErrNotExist) && g.cgroups.owner != nil && !g.threaded {
			if err = g.cgroups.regrant(); err == nil {
				err = makeGroup(dir)
			}
		}
		if err != nil {
			return g.failed(err, "create")
		}
	}
	if g.cgroups.Version() == 2 {
		if g.threaded {
			return g.failed(g.makeThreaded(), "create")
		}
		return nil
	}
	if tree := g.cgroups.trees[CPUSetController]; tree != "" {
		dir := g.cgroups.root.path(g.Path(CPUSetController))
		return g.failed(fillCPUSet(filepath.Dir(dir), dir), "create")
	}
	return nil
}

// makeThreaded turns a version 2 group into one that holds single threads, and
// makes the processor controllers of its parent available in it.
func (g *Group) makeThreaded() error {
	dir := g.dirs()[0]
	if err := writeControl(dir, "cgroup.type", "threaded"); err != nil {
		return err
	}
	for _, controller := range []Controller{CPUController, CPUSetController} {
		if !g.cgroups.Has(controller) {
			continue
		}
		if err := enable(filepath.Dir(dir), controller); err != nil {
			return err
		}
	}
	return nil
}

// AddProcess moves a process with all its threads into the group.
func (g *Group) AddProcess(pid int) error { return g.add("cgroup.procs", pid) }

// AddThread moves a single thread into a group of threads.
func (g *Group) AddThread(tid int) error {
	if g.cgroups.v2 {
		return g.add("cgroup.threads", tid)
	}
	return g.add("tasks", tid)
}

func (g *Group) add(knob string, id int) error {
	return g.cgroups.change(func() error {
		for _, dir := range g.dirs() {
			if err := writeControl(dir, knob, strconv.Itoa(id)); err != nil {
				return g.failed(err, "move process "+strconv.Itoa(id)+" into")
			}
		}
		return nil
	})
}

// Processes lists the processes in a guest's group and in the groups of its
// threads, each once.
func (g *Group) Processes() ([]int, error) {
	seen := map[int]bool{}
	var pids []int
	for _, dir := range g.dirs() {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() {
				return ignoreGone(err)
			}
			found, err := readPIDs(path)
			for _, pid := range found {
				if !seen[pid] {
					seen[pid] = true
					pids = append(pids, pid)
				}
			}
			return ignoreGone(err)
		})
		if err != nil {
			return nil, g.failed(err, "list the processes of")
		}
	}
	return pids, nil
}

// ignoreGone drops errors of a group that is being removed. It also drops the refusal
// of a threaded group to list processes: its guest's group lists them.
func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) || errors.Is(err, syscall.EOPNOTSUPP) {
		return nil
	}
	return err
}

func readPIDs(dir string) ([]int, error) {
	text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return nil, err
	}
	return sortedNumbers(strings.Fields(string(text)), ""), nil
}

// poll is the pause of Kill and Remove between reads of a group: in version 1 the kernel
// has no event for it.
const poll = 5 * time.Millisecond

// Kill ends every process in the group and waits until none is left or ctx ends.
func (g *Group) Kill(ctx context.Context) error {
	return g.until(ctx, "kill the processes of", func() (bool, error) {
		pids, err := g.Processes()
		if err != nil || len(pids) == 0 {
			return true, err
		}
		if g.cgroups.v2 && writeControl(g.dirs()[0], "cgroup.kill", "1") == nil {
			return false, nil
		}
		for some := range slices.Chunk(pids, killBatch) {
			if err := g.killListed(some); err != nil {
				return true, g.failed(err, "kill the processes of")
			}
		}
		return false, nil
	})
}

// killBatch bounds the pidfds that Kill holds at a time.
const killBatch = 64

// killListed kills these processes if they are still in the group once it holds a pidfd of each: one may
// have ended since it was listed, and its number belong to a process outside the group. A process forked
// meanwhile is killed in the next round. A process outside this PID namespace is listed as 0 and cannot be
// killed.
func (g *Group) killListed(pids []int) error {
	held := map[int]int{}
	defer func() {
		for _, fd := range held {
			_ = unix.Close(fd)
		}
	}()
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		if err == nil {
			held[pid] = fd
		} else if !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.EINVAL) {
			return err
		}
	}
	listed, err := g.Processes()
	if err != nil {
		return err
	}
	for _, pid := range listed {
		if fd, has := held[pid]; has {
			if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
	}
	return nil
}

// Remove removes the group and the groups below it. It waits until ctx ends for processes
// that are ending; then the error is Busy. A missing group is no error.
func (g *Group) Remove(ctx context.Context) error {
	return g.until(ctx, "remove", func() (bool, error) {
		err := g.cgroups.change(func() error {
			for _, dir := range g.dirs() {
				if err := removeTree(dir); err != nil {
					return err
				}
			}
			return nil
		})
		if errors.Is(err, syscall.EBUSY) {
			return false, nil
		}
		return true, g.failed(err, "remove")
	})
}

// clearDelay is how long the group of a guest that has ended may take to become empty before the processes
// in it are killed.
const clearDelay = 100 * time.Millisecond

// Clear removes the group of a guest that has ended, and kills processes that are left in it.
func (g *Group) Clear(ctx context.Context) error {
	soon, stop := context.WithTimeout(ctx, clearDelay)
	defer stop()
	if err := g.Remove(soon); !fault.Is(err, fault.Busy) || ctx.Err() != nil {
		return err
	}
	if err := g.Kill(ctx); err != nil {
		return err
	}
	return g.Remove(ctx)
}

// removeTree removes a group and those below it, children first. The control
// files in them are not removed one by one: they go with the directory. Most
// groups have no children, and are not searched for any.
func removeTree(dir string) error {
	err := ignoreGone(syscall.Rmdir(dir))
	if !errors.Is(err, syscall.EBUSY) && !errors.Is(err, syscall.ENOTEMPTY) {
		return err
	}
	entries, listing := os.ReadDir(dir)
	if listing != nil {
		return ignoreGone(listing)
	}
	children := false
	for _, e := range entries {
		if e.IsDir() {
			children = true
			if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	if !children {
		return err
	}
	return ignoreGone(syscall.Rmdir(dir))
}

// until repeats try until it says done, at the pace of poll.
func (g *Group) until(ctx context.Context, verb string, try func() (done bool, err error)) error {
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for {
		if done, err := try(); done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fault.Wrap(context.Cause(ctx), fault.Busy, fault.Host, "cannot %s control group %q: it still has processes", verb, g.name)
		case <-ticker.C:
		}
	}
}

func (g *Group) failed(err error, verb string) error {
	kind := fault.Failed
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ESRCH):
		kind = fault.NotFound
	case errors.Is(err, syscall.EINVAL):
		kind = fault.Invalid
	case errors.Is(err, fs.ErrPermission):
		kind = fault.Denied
	}
	return fault.Wrap(err, kind, fault.Host, "cannot %s control group %q", verb, g.name)
}
