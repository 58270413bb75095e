package kernel

import (
	"bufio"
	"cmp"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// MemoryRollup is the memory of a process with its share of what it has in common with others, in bytes.
type MemoryRollup struct {
	// Resident is in RAM, and Proportional the same with each shared page divided by the number of processes that share
	// it: the sum over all processes is what they take together. ProportionalAnon is its part without files.
	Resident, Proportional, ProportionalAnon uint64
	// Swap is swapped out, and ProportionalSwap divided as Proportional.
	Swap, ProportionalSwap uint64
	// AnonHuge is in transparent huge pages, which KSM does not merge before they are split. Merged is what KSM has
	// merged; its pages are in Resident.
	AnonHuge, Merged uint64
	// SharedHuge and PrivateHuge are huge pages from pools. They are not in Resident.
	SharedHuge, PrivateHuge uint64
	// Locked must stay in RAM (mlock(2)); it is divided as Proportional.
	Locked uint64
	// Absent names the lines that this kernel does not have, such as "KSM". Their fields are zero.
	Absent []string
}

// MemoryRollup reads /proc/PID/smaps_rollup (Documentation/filesystems/proc.rst). It needs root or the process's
// own user.
//
// For this file and for smaps, the kernel takes the lock of the process's address space and looks at each of its
// pages. That took 50 ms for each GiB in small pages and under 1 ms in huge ones (Linux 6.18, measured), and the
// process cannot change its address space meanwhile. A process that is stuck in such a change holds the lock
// without end, and the reader cannot be interrupted. So a caller reads beside its loop, one process at a time, and
// gives up a reader that does not return. ProcessMemory needs no lock, and has all but the shares.
func (r Root) MemoryRollup(pid int) (MemoryRollup, error) {
	text, err := r.read("proc", strconv.Itoa(pid), "smaps_rollup")
	if err != nil {
		return MemoryRollup{}, fault.Wrap(err, fault.Of(err), fault.Host, "cannot read the memory of process %d", pid)
	}
	var m MemoryRollup
	m.Absent = kibibytes(text, map[string]*uint64{
		"Rss": &m.Resident, "Pss": &m.Proportional, "Pss_Anon": &m.ProportionalAnon, "Swap": &m.Swap, "SwapPss": &m.ProportionalSwap,
		"AnonHugePages": &m.AnonHuge, "KSM": &m.Merged, "Shared_Hugetlb": &m.SharedHuge, "Private_Hugetlb": &m.PrivateHuge, "Locked": &m.Locked,
	})
	slices.Sort(m.Absent)
	return m, nil
}

// MemoryMapping is a part of a process's address space, in bytes.
type MemoryMapping struct {
	Start, Size uint64
	// Resident is in RAM, Swap swapped out, AnonHuge in transparent huge pages, and Merged by KSM.
	Resident, Swap, AnonHuge, Merged uint64
	// Mergeable: KSM may merge its pages (madvise MADV_MERGEABLE; the flag mg).
	Mergeable bool
}

// The bounds of smaps: one line, whose longest part is an escaped path, and the whole. A mapping takes about 800 bytes.
const (
	maxSmapsLine = 32 << 10
	maxSmaps     = 32 << 20
)

// AnonymousMappings reads /proc/PID/smaps and returns the largest private mappings without a file, at most so many,
// largest first. The RAM of a guest is such a mapping, or several, unless it is shared, in a file, or in huge pages
// from a pool. A change of merge on QEMU's memory backend shows in Mergeable, though not always in KSMProcess. See
// MemoryRollup for the lock and the costs. NoCapacity: the process has more mappings than are read (some 40,000).
func (r Root) AnonymousMappings(pid, most int) ([]MemoryMapping, error) {
	f, err := os.Open(r.path("proc", strconv.Itoa(pid), "smaps"))
	if err == nil {
		defer f.Close()
	}
	if err := readFault(err); err != nil {
		return nil, fault.Wrap(err, fault.Of(err), fault.Host, "cannot read the mappings of process %d", pid)
	}
	bounded := &io.LimitedReader{R: f, N: maxSmaps}
	all, err := parseSmaps(bounded, most)
	if bounded.N <= 0 {
		return nil, fault.New(fault.NoCapacity, fault.Host, "process %d has too many mappings to read: more than %d MiB of text", pid, maxSmaps>>20)
	}
	if err = readFault(err); err != nil {
		return nil, fault.Wrap(err, fault.Of(err), fault.Host, "cannot read the mappings of process %d", pid)
	}
	return all, nil
}

// parseSmaps keeps no more than the largest mappings, however many there are.
func parseSmaps(from io.Reader, most int) (largest []MemoryMapping, err error) {
	var m MemoryMapping
	anonymous := false
	keep := func() {
		if at, _ := slices.BinarySearchFunc(largest, m, largerFirst); anonymous && at < most {
			largest = slices.Insert(largest, at, m)
			largest = largest[:min(len(largest), most)]
		}
	}
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, maxSmapsLine)
	for lines.Scan() {
		line := lines.Text()
		if next, is, ok := parseMapping(line); ok {
			keep()
			m, anonymous = next, is
			continue
		}
		if key, value, ok := strings.Cut(line, ":"); ok && anonymous {
			m.read(key, strings.TrimSpace(value))
		}
	}
	keep()
	return largest, lines.Err()
}

func largerFirst(a, b MemoryMapping) int {
	return cmp.Or(cmp.Compare(b.Size, a.Size), cmp.Compare(a.Start, b.Start))
}

// parseMapping reads the first line of a mapping: "start-end perms offset device inode [name]". The kernel escapes
// line ends in names, so that no name can pass for such a line.
func parseMapping(line string) (m MemoryMapping, anonymous, ok bool) {
	fields := strings.Fields(line)
	if len(fields) < 5 || len(fields[1]) != 4 {
		return m, false, false
	}
	from, to, ranged := strings.Cut(fields[0], "-")
	start, err1 := strconv.ParseUint(from, 16, 64)
	end, err2 := strconv.ParseUint(to, 16, 64)
	if !ranged || err1 != nil || err2 != nil || end < start {
		return m, false, false
	}
	named := len(fields) > 5 && fields[5] != "[heap]" && !strings.HasPrefix(fields[5], "[anon:")
	return MemoryMapping{Start: start, Size: end - start}, fields[1][3] == 'p' && fields[4] == "0" && !named, true
}

// read takes in one of the other lines of a mapping.
func (m *MemoryMapping) read(key, value string) {
	var into *uint64
	switch key {
	case "Rss":
		into = &m.Resident
	case "Swap":
		into = &m.Swap
	case "AnonHugePages":
		into = &m.AnonHuge
	case "KSM":
		into = &m.Merged
	case "VmFlags":
		m.Mergeable = slices.Contains(strings.Fields(value), "mg")
		return
	default:
		return
	}
	if kib, err := strconv.ParseUint(strings.TrimSuffix(value, " kB"), 10, 54); err == nil {
		*into = kib << 10
	}
}
