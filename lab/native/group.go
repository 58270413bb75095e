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

	"github.com/lodge-kvm/lodge/fault"
)

// group is a control group; "" is none.
type group string

// confine puts a process, and all that it will start, into a control group that
// bounds its memory. Without a bound there is none.
func confine(name string, pid int, memory int64) (group, error) {
	if memory == 0 {
		return "", nil
	}
	parent, bound, err := controller("/sys/fs/cgroup")
	if err != nil {
		return "", err
	}
	g := group(filepath.Join(parent, "lodge-lab-"+name))
	if err := g.remove(); err != nil { // of one that was killed
		return "", err
	}
	if err := os.Mkdir(string(g), 0o755); err != nil {
		return "", fmt.Errorf("cannot make a control group: %w", err)
	}
	for _, w := range []struct{ file, value string }{{bound, strconv.FormatInt(memory, 10)}, {"cgroup.procs", strconv.Itoa(pid)}} {
		if err := os.WriteFile(filepath.Join(string(g), w.file), []byte(w.value), 0); err != nil {
			return g, fmt.Errorf("cannot set up a control group: %w", err)
		}
	}
	return g, nil
}

// controller finds where memory is bounded: in the one tree of version 2, or in
// version 1's own.
func controller(root string) (parent, bound string, err error) {
	offered, err := os.ReadFile(filepath.Join(root, "cgroup.subtree_control"))
	if err == nil && strings.Contains(" "+strings.TrimSpace(string(offered))+" ", " memory ") {
		return root, "memory.max", nil
	}
	if _, err := os.Stat(filepath.Join(root, "memory", "memory.limit_in_bytes")); err == nil {
		return filepath.Join(root, "memory"), "memory.limit_in_bytes", nil
	}
	return "", "", fault.New(fault.Unsupported, fault.Host, "this host bounds no memory by control groups: leave the bound away and note it")
}

// remove waits until the kernel has let go of what was in the group.
func (g group) remove() error {
	if g == "" {
		return nil
	}
	for deadline := time.Now().Add(3 * farewell); ; <-time.After(10 * time.Millisecond) {
		err := unix.Rmdir(string(g))
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return fmt.Errorf("cannot remove control group %s: %w", g, err)
		}
	}
}
