package kernel

import (
	"context"
	"errors"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// MemoryGroup is a control group of version 2 with the memory controller. The value is only a name. Files, units and
// rules: Documentation/admin-guide/cgroup-v2.rst, "Memory Interface Files".
type MemoryGroup struct {
	root Root
	dir  string // as the host has it
}

// MemoryGroup names the group's memory files. Unsupported on a host whose memory controller is missing or of version
// 1, which has no memory.low, memory.reclaim and memory.pressure.
func (g *Group) MemoryGroup() (MemoryGroup, error) {
	if err := g.cgroups.checkMemory(); err != nil {
		return MemoryGroup{}, err
	}
	return MemoryGroup{g.cgroups.root, g.Path(MemoryController)}, nil
}

// MemoryGroupsAbove are the group of all guests and those above it, innermost first, without the tree's own. A
// guest's memory.low protects no more than each of them has itself. systemd owns those above the innermost: it sets
// their files again when it is reloaded, so that they are changed by systemd's properties (MemoryLow=) instead.
func (c *Cgroups) MemoryGroupsAbove() ([]MemoryGroup, error) {
	if err := c.checkMemory(); err != nil {
		return nil, err
	}
	dirs := c.Groups(MemoryController)
	groups := make([]MemoryGroup, 0, len(dirs))
	for _, dir := range dirs[:len(dirs)-1] {
		groups = append(groups, MemoryGroup{c.root, dir})
	}
	return groups, nil
}

func (c *Cgroups) checkMemory() error {
	switch {
	case !c.Has(MemoryController):
		return fault.New(fault.Unsupported, fault.Host, "the memory of guests' control groups cannot be read or protected: the memory controller cannot be used here: %s", c.absent[MemoryController])
	case !c.v2:
		return fault.New(fault.Unsupported, fault.Host, "the memory of guests' control groups cannot be protected or reclaimed: the memory controller of this host is of version 1; boot it with version 2 only (systemd.unified_cgroup_hierarchy=1)")
	}
	return nil
}

// Path is the group's directory.
func (m MemoryGroup) Path() string { return m.dir }

// PressureFile is the group's file for a PressureTrigger.
func (m MemoryGroup) PressureFile() string { return path.Join(m.dir, "memory.pressure") }

// GroupMemory is the memory that a group holds, and the bounds of it, all in bytes. The groups below it are included.
// Huge pages from a pool are not.
type GroupMemory struct {
	// Current is RAM, with caches and the kernel's own for the group. Swap is what is swapped out.
	Current, Swap uint64
	// Low is protected from reclaim as long as other memory can be reclaimed; 0 is no protection. From High on, the
	// kernel reclaims and slows the group's threads down; at Max it ends processes. High and Max are Unlimited where
	// they are not set.
	Low, High, Max uint64
}

// Memory reads memory.current, swap.current, low, high and max. Swap is 0 where the kernel does not count it.
// NotFound when the group is gone.
func (m MemoryGroup) Memory() (g GroupMemory, err error) {
	for _, f := range []struct {
		name string
		into *uint64
	}{{"memory.current", &g.Current}, {"memory.low", &g.Low}, {"memory.high", &g.High}, {"memory.max", &g.Max}, {"memory.swap.current", &g.Swap}} {
		*f.into, err = m.count(f.name)
		if err != nil && (f.into != &g.Swap || !fault.Is(err, fault.NotFound)) {
			return GroupMemory{}, err
		}
	}
	return g, nil
}

// count reads a file with one number of bytes, or "max".
func (m MemoryGroup) count(name string) (uint64, error) {
	var buffer [brief]byte
	text, err := m.root.readBrief(buffer[:], m.dir, name)
	if err != nil {
		return 0, fault.Wrap(err, fault.Of(err), fault.Host, "cannot read %s", path.Join(m.dir, name))
	}
	text = strings.TrimSpace(text)
	n, ok := parseCount(text)
	if !ok {
		return 0, fault.New(fault.Failed, fault.Host, "cannot understand %s: it holds %.64q", path.Join(m.dir, name), text)
	}
	return n, nil
}

// GroupMemoryCounters are the parts of a group's memory, in bytes, and what happened to it since the group was made.
type GroupMemoryCounters struct {
	// Anon is memory without a file behind it, such as guests' RAM; File is page cache, with memory that processes
	// share (Shmem, in which guests' RAM may be, too). Kernel is the kernel's own. AnonHuge is the part of Anon in
	// huge pages.
	Anon, File, Shmem, Kernel, AnonHuge uint64
	// Zswap is RAM that zswap takes for the group, and Zswapped the size of the group's pages in it.
	Zswap, Zswapped uint64
	// RefaultAnon and RefaultFile count pages that were needed again after they were reclaimed; MajorFaults
	// page faults that had to read; Scan and Steal pages that reclaim looked at and freed.
	RefaultAnon, RefaultFile, MajorFaults, Scan, Steal uint64
	// LowEvents is how often the group was reclaimed though it was under memory.low; HighEvents and MaxEvents how
	// often it was over those bounds; OOMKills the processes that were ended for want of memory.
	LowEvents, HighEvents, MaxEvents, OOMKills uint64
	// Absent names the lines of memory.stat that this kernel does not have, such as "zswap". Their fields are zero.
	Absent []string
}

// Counters reads memory.stat and memory.events. The kernel adds up the counters of all processors for it, which takes
// longer than Memory.
func (m MemoryGroup) Counters() (c GroupMemoryCounters, err error) {
	text, err := m.root.read(m.dir, "memory.stat")
	if err != nil {
		return c, fault.Wrap(err, fault.Of(err), fault.Host, "cannot read %s", path.Join(m.dir, "memory.stat"))
	}
	same := func(key string) string { return key }
	c.Absent = sumCounters(text, map[string]*uint64{
		"anon": &c.Anon, "file": &c.File, "shmem": &c.Shmem, "kernel": &c.Kernel, "anon_thp": &c.AnonHuge, "zswap": &c.Zswap, "zswapped": &c.Zswapped,
		"workingset_refault_anon": &c.RefaultAnon, "workingset_refault_file": &c.RefaultFile,
		"pgmajfault": &c.MajorFaults, "pgscan": &c.Scan, "pgsteal": &c.Steal,
	}, same)
	if text, err = m.root.read(m.dir, "memory.events"); err != nil {
		return c, fault.Wrap(err, fault.Of(err), fault.Host, "cannot read %s", path.Join(m.dir, "memory.events"))
	}
	sumCounters(text, map[string]*uint64{"low": &c.LowEvents, "high": &c.HighEvents, "max": &c.MaxEvents, "oom_kill": &c.OOMKills}, same)
	return c, nil
}

// Pressure reads memory.pressure: the time that the group's processes lost to want of memory. Unsupported on a
// kernel that does not measure it.
func (m MemoryGroup) Pressure() (Pressure, error) {
	text, err := m.root.read(m.dir, "memory.pressure")
	if err != nil {
		kind := fault.Of(err)
		if errors.Is(err, unix.EOPNOTSUPP) || kind == fault.NotFound && m.root.exists(m.dir) {
			kind = fault.Unsupported
		}
		return Pressure{}, fault.Wrap(err, kind, fault.Host, "cannot read %s", m.PressureFile())
	}
	return parsePressure(text), nil
}

// SetLow sets memory.low, in bytes or Unlimited, and returns what the kernel holds then: whole pages, rounded down. It
// has effect up to the memory.low of the groups above: see MemoryGroupsAbove.
func (m MemoryGroup) SetLow(bytes uint64) (held uint64, err error) {
	return m.setBound("memory.low", bytes)
}

// SetHigh sets memory.high, as SetLow. Below memory.current the write takes as long as the kernel reclaims. Without
// swap there is little to reclaim of a guest, and its threads are slowed down until they hardly run.
func (m MemoryGroup) SetHigh(bytes uint64) (held uint64, err error) {
	return m.setBound("memory.high", bytes)
}

func (m MemoryGroup) setBound(name string, bytes uint64) (uint64, error) {
	text, err := m.root.set(orMax(bytes), m.dir, name)
	if err != nil {
		return 0, m.orGone(err)
	}
	held, ok := parseCount(text)
	if page := uint64(os.Getpagesize()); !ok || held != Unlimited && (held > bytes || bytes-held >= page) || held == Unlimited && orMax(bytes) != "max" {
		return held, fault.New(fault.Busy, fault.Host, "%s was set to %s and holds %.64q: another program writes it too; stop one of the two",
			path.Join(m.dir, name), orMax(bytes), text)
	}
	return held, nil
}

// orGone is the error of a write, or that the group is gone.
func (m MemoryGroup) orGone(err error) error {
	if err != nil && !m.root.exists(m.dir) {
		return fault.Wrap(err, fault.NotFound, fault.Host, "control group %s is gone", m.dir)
	}
	return err
}

// reclaimStep bounds one write to memory.reclaim, in bytes: the kernel does not return before it has tried.
const reclaimStep = 64 << 20

// reclaimTries bounds the writes of one step that signals interrupt.
const reclaimTries = 8

// Reclaim asks the kernel to take so many bytes from the group (memory.reclaim): caches, and what can be swapped.
// It returns the bytes by which memory.current fell, which may be fewer, and 0 if the group grew meanwhile. That
// the kernel found no more is no error. It goes by steps of 64 MiB and ends between two of them when ctx ends, with
// the cause as error. Unsupported on kernels before 5.19.
func (m MemoryGroup) Reclaim(ctx context.Context, bytes uint64) (freed uint64, err error) {
	before, err := m.count("memory.current")
	if err != nil {
		return 0, err
	}
	for asked := uint64(0); asked < bytes && err == nil; {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
			break
		}
		step := min(bytes-asked, reclaimStep)
		asked += step
		err = m.reclaimSome(step)
	}
	if errors.Is(err, unix.EAGAIN) { // it found less than the step
		err = nil
	}
	after, reading := m.count("memory.current")
	if reading != nil {
		return 0, reading
	}
	return before - min(before, after), err
}

// reclaimSome asks for one step. A signal ends the kernel's work in the middle, and Go sends its threads many: what
// is missing then is asked for again, not the whole. EAGAIN: it came to less than the step.
func (m MemoryGroup) reclaimSome(bytes uint64) error {
	for range reclaimTries {
		before, err := m.count("memory.current")
		if err != nil {
			return err
		}
		err = m.root.writeOnce(decimal(bytes), m.dir, "memory.reclaim")
		if !errors.Is(err, unix.EINTR) {
			if errors.Is(err, unix.EAGAIN) {
				return err
			}
			return m.orGone(m.root.setFault(err, decimal(bytes), m.dir, "memory.reclaim"))
		}
		after, err := m.count("memory.current")
		if err != nil {
			return err
		}
		done := before - min(before, after)
		if done >= bytes {
			return nil
		}
		bytes -= done
	}
	return unix.EAGAIN
}

// writeOnce writes a file, and not again after a signal.
func (r Root) writeOnce(value string, elem ...string) error {
	fd, err := open(r.path(elem...), unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	_, err = unix.Write(fd, []byte(value))
	return err
}
