package native

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// groups is where the host has its control groups.
const groups = "/sys/fs/cgroup"

// controllers are where a host bounds memory and counts the time of processors: in
// the one tree of version 2, or in version 1's own ones.
type controllers struct {
	memory  string
	account string // "" where time is not counted
	bounds  []string
	unified bool
}

// find looks for them below a root.
func find(root string) (controllers, error) {
	offered, err := os.ReadFile(filepath.Join(root, "cgroup.subtree_control"))
	if err == nil && strings.Contains(" "+strings.TrimSpace(string(offered))+" ", " memory ") {
		return controllers{memory: root, account: root, bounds: []string{"memory.max", "memory.swap.max"}, unified: true}, nil
	}
	c := controllers{memory: filepath.Join(root, "memory"), account: filepath.Join(root, "cpuacct"), bounds: []string{"memory.limit_in_bytes", "memory.memsw.limit_in_bytes"}}
	if _, err := os.Stat(filepath.Join(c.memory, c.bounds[0])); err != nil {
		return controllers{}, fault.New(fault.Unsupported, fault.Host, "this host bounds no memory by control groups")
	}
	if _, err := os.Stat(filepath.Join(c.account, "cpuacct.usage_user")); err != nil {
		c.account = ""
	}
	return c, nil
}

// dirs are those of a group, the bounding one first.
func (c controllers) dirs(name string) []string {
	all := []string{filepath.Join(c.memory, "lodge-lab-"+name)}
	if c.account != "" && c.account != c.memory {
		all = append(all, filepath.Join(c.account, "lodge-lab-"+name))
	}
	return all
}

// group is a control group; the zero value is none.
type group struct {
	controllers
	dirs   []string
	memory int64
}

// confine puts a process, and all that it will start, into a control group that
// bounds its memory, and lets it swap nothing out. Without a bound there is none.
func confine(name string, pid int, memory int64) (g group, err error) {
	if memory == 0 {
		return g, nil
	}
	g.memory = memory
	if g.controllers, err = find(groups); err != nil {
		return g, err
	}
	g.dirs = g.controllers.dirs(name)
	if err := remove(g.dirs); err != nil { // of one that was killed
		return g, err
	}
	for _, dir := range g.dirs {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return g, fmt.Errorf("cannot make a control group: %w", err)
		}
	}
	if err := g.bound(); err != nil {
		return g, err
	}
	for _, dir := range g.dirs {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
			return g, fmt.Errorf("cannot put a process into a control group: %w", err)
		}
	}
	return g, nil
}

// bound sets what it may hold: of memory, and so that a guest's bound is not stretched
// by the host's swap. A kernel that counts no swap has no file for that.
func (g group) bound() error {
	swap := strconv.FormatInt(g.memory, 10) // version 1 bounds both together
	if g.unified {
		swap = "0"
	}
	if err := os.WriteFile(filepath.Join(g.dirs[0], g.bounds[0]), []byte(strconv.FormatInt(g.memory, 10)), 0); err != nil {
		return fmt.Errorf("cannot bound the memory of a control group: %w", err)
	}
	err := os.WriteFile(filepath.Join(g.dirs[0], g.bounds[1]), []byte(swap), 0)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("cannot bound the swap of a control group: %w", err)
	}
	return nil
}

// remove waits until the kernel has let go of what was in the groups.
func remove(dirs []string) (all error) {
	for _, dir := range dirs {
		for deadline := time.Now().Add(3 * farewell); ; <-time.After(10 * time.Millisecond) {
			err := unix.Rmdir(dir)
			if err == nil || errors.Is(err, fs.ErrNotExist) {
				break
			}
			if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
				all = errors.Join(all, fmt.Errorf("cannot remove control group %s: %w", dir, err))
				break
			}
		}
	}
	return all
}

// Sweep takes away what a lab that was killed has left of places whose names begin so:
// their control groups. All else has gone with their agents.
func Sweep(prefix string) error {
	if prefix == "" {
		return errors.New("places of a run have a name")
	}
	var all error
	for _, in := range []string{"", "memory", "cpuacct"} {
		found, err := os.ReadDir(filepath.Join(groups, in))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			all = errors.Join(all, err)
		}
		for _, d := range found {
			if strings.HasPrefix(d.Name(), "lodge-lab-"+prefix) {
				all = errors.Join(all, remove([]string{filepath.Join(groups, in, d.Name())}))
			}
		}
	}
	return all
}

// Usage is what a place takes of the host.
type Usage struct {
	User, System      time.Duration // of processors, since it began
	Memory, Available int64         // that it is bounded to, and that it can still have, in bytes
}

// Usage tells it, by the kernel's account of the control group. A place without a
// bound has none.
func (p *Place) Usage() (Usage, error) {
	g := p.group
	if len(g.dirs) == 0 {
		return Usage{}, fault.New(fault.Unsupported, fault.Host, "what a place without a bound takes is not counted")
	}
	u := Usage{Memory: g.memory}
	held, stat, inactive := "memory.usage_in_bytes", "memory.stat", "total_inactive_file"
	if g.unified {
		held, inactive = "memory.current", "inactive_file"
	}
	used, err := figure(filepath.Join(g.dirs[0], held), "")
	if err != nil {
		return u, err
	}
	files, err := figure(filepath.Join(g.dirs[0], stat), inactive)
	if err != nil {
		return u, err
	}
	u.Available = min(max(u.Memory-used+files, 0), u.Memory)
	return u, g.times(&u)
}

// times adds those of processors, where they are counted.
func (g group) times(u *Usage) error {
	files, names, unit := []string{"cpu.stat", "cpu.stat"}, []string{"user_usec", "system_usec"}, time.Microsecond
	if !g.unified {
		files, names, unit = []string{"cpuacct.usage_user", "cpuacct.usage_sys"}, []string{"", ""}, time.Nanosecond
	}
	if g.account == "" {
		return nil
	}
	for i, into := range []*time.Duration{&u.User, &u.System} {
		n, err := figure(filepath.Join(g.dirs[len(g.dirs)-1], files[i]), names[i])
		if err != nil {
			return err
		}
		*into = time.Duration(n) * unit
	}
	return nil
}

// figure reads one number of a file: the only one, or that of a name.
func figure(path, name string) (int64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		value := strings.TrimSpace(line)
		if name != "" {
			key, rest, _ := strings.Cut(value, " ")
			if key != name {
				continue
			}
			value = rest
		}
		return strconv.ParseInt(value, 10, 64)
	}
	return 0, fault.New(fault.Failed, fault.Host, "%s has no %s", path, name)
}
