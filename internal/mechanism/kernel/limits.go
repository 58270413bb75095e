package kernel

import (
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/lodge-kvm/lodge/internal/word/topology"
)

// Unlimited is the value of a limit that is not in force.
const Unlimited = math.MaxUint64

// Limits are the limits of a group. A nil field is not set.
type Limits struct {
	// CPUShares is the weight against other groups, in the host's own scale:
	// cpu.shares (1024 is usual) in version 1, cpu.weight (100) in version 2.
	CPUShares *uint64
	// CPUQuota is the processor time in each CPUPeriod, or Unlimited; both in
	// microseconds. The sum over threads counts.
	CPUQuota, CPUPeriod *uint64
	// CPUs are the processors that the group may run on; Cells are the nodes that it may take memory from.
	CPUs, Cells *topology.CPUSet
	// MemoryHard limits RAM, MemorySoft is the target under memory pressure, and
	// MemorySwap limits the sum of RAM and swap. All in bytes.
	MemoryHard, MemorySoft, MemorySwap *uint64
	// BlockWeight is the weight of disk I/O against other groups.
	BlockWeight *uint64
	// BlockDevices limit the I/O on single devices.
	BlockDevices []BlockLimit
	// PIDs is the largest number of threads.
	PIDs *uint64
	// HugePages limit the bytes in huge pages of the host, by the size of the pages. The other memory
	// limits do not count huge pages.
	HugePages map[uint64]uint64
}

// BlockLimit limits the I/O of a group on one device. A nil field is not set, and
// 0 removes the limit.
type BlockLimit struct {
	// Device is major:minor.
	Device                                   string
	ReadBytes, WriteBytes, ReadOps, WriteOps *uint64 // per second
}

// knob is one write into a control file.
type knob struct {
	limit      string
	controller Controller
	// files are the names of the file in different kernels; the first that exists is used.
	files []string
	value string
}

// Apply writes every limit that is set. Limits that this host cannot set, because a
// controller or a file is missing, are named in absent and are no error. The first
// limit that the kernel refuses is an error.
func (g *Group) Apply(l Limits) (absent []string, err error) {
	knobs := g.cpuKnobs(l)
	knobs = append(knobs, g.memoryKnobs(l)...)
	knobs = append(knobs, g.blockKnobs(l)...)
	knobs = append(knobs, g.hugePageKnobs(l)...)
	for _, k := range knobs {
		file, found := g.file(k.controller, k.files)
		if !found {
			absent = append(absent, k.limit)
			continue
		}
		if err := writeControl(filepath.Dir(file), filepath.Base(file), k.value); err != nil {
			return absent, g.failed(err, fmt.Sprintf("set %s to %q in", k.limit, k.value))
		}
	}
	return absent, nil
}

// file gives the path of the first of these control files that the group has.
func (g *Group) file(controller Controller, names []string) (string, bool) {
	dir := g.Path(controller)
	if dir == "" {
		return "", false
	}
	for _, name := range names {
		path := g.cgroups.root.path(dir, name)
		if _, err := os.Stat(path); err == nil {
			return path, true
		}
	}
	return "", false
}

func (g *Group) cpuKnobs(l Limits) []knob {
	var knobs []knob
	add := func(limit string, c Controller, value, v1, v2 string) {
		knobs = append(knobs, knob{limit, c, []string{g.pick(v1, v2)}, value})
	}
	if l.CPUShares != nil {
		add("cpu shares", CPUController, decimal(*l.CPUShares), "cpu.shares", "cpu.weight")
	}
	switch {
	case g.cgroups.v2 && (l.CPUQuota != nil || l.CPUPeriod != nil):
		add("cpu quota", CPUController, g.cpuMax(l), "", "cpu.max")
	case !g.cgroups.v2:
		if l.CPUPeriod != nil {
			add("cpu period", CPUController, decimal(*l.CPUPeriod), "cpu.cfs_period_us", "")
		}
		if l.CPUQuota != nil {
			add("cpu quota", CPUController, orMinusOne(*l.CPUQuota), "cpu.cfs_quota_us", "")
		}
	}
	if l.Cells != nil {
		add("cells", CPUSetController, l.Cells.String(), "cpuset.mems", "cpuset.mems")
	}
	if l.CPUs != nil {
		add("cpus", CPUSetController, l.CPUs.String(), "cpuset.cpus", "cpuset.cpus")
	}
	return knobs
}

// cpuMax is the content of version 2's one file for quota and period. A value that
// l does not set stays as it is.
func (g *Group) cpuMax(l Limits) string {
	quota, period := "max", "100000"
	if fields := strings.Fields(g.value(CPUController, "cpu.max")); len(fields) == 2 {
		quota, period = fields[0], fields[1]
	}
	if l.CPUQuota != nil {
		quota = orMax(*l.CPUQuota)
	}
	if l.CPUPeriod != nil {
		period = decimal(*l.CPUPeriod)
	}
	return quota + " " + period
}

func (g *Group) memoryKnobs(l Limits) []knob {
	var knobs []knob
	add := func(limit, value, v1, v2 string) {
		knobs = append(knobs, knob{limit, MemoryController, []string{g.pick(v1, v2)}, value})
	}
	unlimited := orMinusOne
	if g.cgroups.v2 {
		unlimited = orMax
	}
	if l.MemoryHard != nil {
		add("memory hard limit", unlimited(*l.MemoryHard), "memory.limit_in_bytes", "memory.max")
	}
	if l.MemorySoft != nil {
		add("memory soft limit", unlimited(*l.MemorySoft), "memory.soft_limit_in_bytes", "memory.high")
	}
	if l.MemorySwap != nil {
		sum := *l.MemorySwap
		if g.cgroups.v2 {
			sum = g.swapAlone(l)
		}
		add("memory and swap limit", unlimited(sum), "memory.memsw.limit_in_bytes", "memory.swap.max")
		// Version 1 requires at every moment that the RAM limit is at most the sum of RAM
		// and swap. So when the limits grow, the sum is written first.
		if old, ok := g.count(MemoryController, "memory.memsw.limit_in_bytes"); ok && l.MemoryHard != nil && *l.MemoryHard > old {
			knobs[0], knobs[len(knobs)-1] = knobs[len(knobs)-1], knobs[0]
		}
	}
	if l.PIDs != nil {
		knobs = append(knobs, knob{"thread limit", PIDsController, []string{"pids.max"}, orMax(*l.PIDs)})
	}
	return knobs
}

// swapAlone is the limit on swap that makes up the sum together with the limit on RAM:
// version 2 counts them apart.
func (g *Group) swapAlone(l Limits) uint64 {
	hard, ok := g.count(MemoryController, "memory.max")
	if l.MemoryHard != nil {
		hard, ok = *l.MemoryHard, true
	}
	if !ok || hard == Unlimited || *l.MemorySwap == Unlimited {
		return *l.MemorySwap
	}
	return *l.MemorySwap - min(hard, *l.MemorySwap)
}

// The files for the weight of disk I/O, by the scheduler that is in use.
var (
	blockWeightV1 = []string{"blkio.weight", "blkio.bfq.weight"}
	blockWeightV2 = []string{"io.weight", "io.bfq.weight"}
)

func (g *Group) blockKnobs(l Limits) []knob {
	var knobs []knob
	if l.BlockWeight != nil {
		files := blockWeightV1
		if g.cgroups.v2 {
			files = blockWeightV2
		}
		knobs = append(knobs, knob{"block weight", BlockIOController, files, decimal(*l.BlockWeight)})
	}
	for _, d := range l.BlockDevices {
		for _, t := range []struct {
			name, v1, v2 string
			value        *uint64
		}{
			{"read bytes", "blkio.throttle.read_bps_device", "rbps", d.ReadBytes},
			{"write bytes", "blkio.throttle.write_bps_device", "wbps", d.WriteBytes},
			{"read operations", "blkio.throttle.read_iops_device", "riops", d.ReadOps},
			{"write operations", "blkio.throttle.write_iops_device", "wiops", d.WriteOps},
		} {
			if t.value == nil {
				continue
			}
			value, file := d.Device+" "+decimal(*t.value), t.v1
			if g.cgroups.v2 {
				value, file = d.Device+" "+t.v2+"="+orMaxZero(*t.value), "io.max"
			}
			knobs = append(knobs, knob{t.name + " of device " + d.Device, BlockIOController, []string{file}, value})
		}
	}
	return knobs
}

// hugePageKnobs bound both the pages that a process has and the pages that it reserves: neither is then
// available to others.
func (g *Group) hugePageKnobs(l Limits) []knob {
	var knobs []knob
	unlimited := orMinusOne
	if g.cgroups.v2 {
		unlimited = orMax
	}
	for _, size := range slices.Sorted(maps.Keys(l.HugePages)) {
		for _, of := range []string{"", ".rsvd"} {
			file := "hugetlb." + hugePageName(size) + of + g.pick(".limit_in_bytes", ".max")
			knobs = append(knobs, knob{"huge pages", HugePages, []string{file}, unlimited(l.HugePages[size])})
		}
	}
	return knobs
}

// hugePageName returns the name of a page size in the files of control groups.
func hugePageName(size uint64) string {
	switch {
	case size >= 1<<30:
		return decimal(size>>30) + "GB"
	case size >= 1<<20:
		return decimal(size>>20) + "MB"
	}
	return decimal(size>>10) + "KB"
}

func (g *Group) pick(v1, v2 string) string {
	if g.cgroups.v2 {
		return v2
	}
	return v1
}

func decimal(n uint64) string { return strconv.FormatUint(n, 10) }

func orMinusOne(n uint64) string {
	if n >= math.MaxInt64 {
		return "-1"
	}
	return decimal(n)
}

func orMax(n uint64) string {
	if n >= math.MaxInt64 {
		return "max"
	}
	return decimal(n)
}

func orMaxZero(n uint64) string {
	if n == 0 {
		return "max"
	}
	return decimal(n)
}

// value reads a control file of the group, or "".
func (g *Group) value(controller Controller, names ...string) string {
	file, found := g.file(controller, names)
	if !found {
		return ""
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// count reads a control file with one number, where max, -1 and numbers near
// the top of the range mean Unlimited.
func (g *Group) count(controller Controller, names ...string) (uint64, bool) {
	return parseCount(g.value(controller, names...))
}

func parseCount(text string) (uint64, bool) {
	if text == "max" || text == "-1" {
		return Unlimited, true
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, false
	}
	// Version 1 rounds "no limit" down to a page.
	if n > math.MaxInt64-1<<20 {
		n = Unlimited
	}
	return n, true
}

// Limits reads the limits back. Fields are nil where the host cannot set them;
// limits of single devices are not read.
func (g *Group) Limits() (Limits, error) {
	if err := g.checkExists(); err != nil {
		return Limits{}, err
	}
	var l Limits
	number := func(into **uint64, c Controller, names ...string) {
		if n, ok := g.count(c, names...); ok {
			*into = &n
		}
	}
	number(&l.CPUShares, CPUController, g.pick("cpu.shares", "cpu.weight"))
	number(&l.MemoryHard, MemoryController, g.pick("memory.limit_in_bytes", "memory.max"))
	number(&l.MemorySoft, MemoryController, g.pick("memory.soft_limit_in_bytes", "memory.high"))
	number(&l.MemorySwap, MemoryController, g.pick("memory.memsw.limit_in_bytes", "memory.swap.max"))
	number(&l.PIDs, PIDsController, "pids.max")
	l.CPUs, l.Cells = g.set("cpuset.cpus"), g.set("cpuset.mems")
	if !g.cgroups.v2 {
		number(&l.CPUQuota, CPUController, "cpu.cfs_quota_us")
		number(&l.CPUPeriod, CPUController, "cpu.cfs_period_us")
		number(&l.BlockWeight, BlockIOController, blockWeightV1...)
		return l, nil
	}
	g.readUnified(&l)
	return l, nil
}

// readUnified reads the files whose layout differs in version 2.
func (g *Group) readUnified(l *Limits) {
	if fields := strings.Fields(g.value(CPUController, "cpu.max")); len(fields) == 2 {
		if quota, ok := parseCount(fields[0]); ok {
			l.CPUQuota = &quota
		}
		if period, ok := parseCount(fields[1]); ok {
			l.CPUPeriod = &period
		}
	}
	weight := g.value(BlockIOController, blockWeightV2...) // "default 100"
	if n, ok := parseCount(strings.TrimPrefix(weight, "default ")); ok {
		l.BlockWeight = &n
	}
	if l.MemorySwap != nil && l.MemoryHard != nil && *l.MemorySwap != Unlimited && *l.MemoryHard != Unlimited {
		sum := *l.MemorySwap + *l.MemoryHard
		l.MemorySwap = &sum
	}
}

func (g *Group) set(name string) *topology.CPUSet {
	file, found := g.file(CPUSetController, []string{name})
	if !found {
		return nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	set, err := topology.ParseCPUSet(string(text))
	if err != nil {
		return nil
	}
	return &set
}
