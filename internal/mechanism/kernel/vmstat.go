package kernel

import (
	"slices"
	"strconv"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// VMCounters are the kernel's counters of its memory management, for the whole host since boot. Two
// readings tell what happened between them. Pages are base pages. The names of /proc/vmstat are beside the
// fields; most are explained in Documentation/admin-guide/mm and, under the same names, in the part about memory.stat
// of Documentation/admin-guide/cgroup-v2.rst.
type VMCounters struct {
	SwapIns, SwapOuts        uint64 // pswpin, pswpout: pages that swap devices read and wrote
	ZswapIns, ZswapOuts      uint64 // zswpin, zswpout: pages to and from zswap
	MajorFaults              uint64 // pgmajfault: page faults that had to read
	RefaultAnon, RefaultFile uint64 // workingset_refault_anon, _file: pages that were needed again after they were reclaimed
	// AllocStalls is how often a thread that needed memory had to free some first (allocstall_*, the sum of all zones).
	AllocStalls uint64
	// ScanKswapd, ScanDirect and ScanProactive are pages looked at by reclaim: of the kernel's thread, of threads
	// that needed memory, and of memory.reclaim (pgscan_kswapd, pgscan_direct, pgscan_proactive). StealKswapd,
	// StealDirect and StealProactive were freed (pgsteal_...).
	ScanKswapd, ScanDirect, ScanProactive    uint64
	StealKswapd, StealDirect, StealProactive uint64
	OOMKills                                 uint64 // oom_kill: processes ended for want of memory
	THPFaults, THPFallbacks                  uint64 // thp_fault_alloc, thp_fault_fallback: faults that got a huge page, and that did not
	THPCollapses, THPSplits                  uint64 // thp_collapse_alloc, thp_split_page: huge pages made of small ones, and split
	THPSwapOuts                              uint64 // thp_swpout: huge pages swapped out whole
	CompactStalls                            uint64 // compact_stall: how often a thread had to compact memory first
	// KSMCopies are merged pages that were written to, and so copied (cow_ksm); KSMSwapInCopies were copied when they
	// came back from swap (ksm_swpin_copy).
	KSMCopies, KSMSwapInCopies uint64
	// Absent names the counters that this kernel does not have, such as "zswpin". Their fields are zero.
	Absent []string
}

// VMCounters reads /proc/vmstat once.
func (r Root) VMCounters() (VMCounters, error) {
	text, err := r.read("proc/vmstat")
	if err != nil {
		return VMCounters{}, fault.Wrap(err, fault.Of(err), fault.Host, "cannot read the counters of the host's memory")
	}
	var c VMCounters
	fields := map[string]*uint64{
		"pswpin": &c.SwapIns, "pswpout": &c.SwapOuts, "zswpin": &c.ZswapIns, "zswpout": &c.ZswapOuts, "pgmajfault": &c.MajorFaults,
		"workingset_refault_anon": &c.RefaultAnon, "workingset_refault_file": &c.RefaultFile, "allocstall": &c.AllocStalls,
		"pgscan_kswapd": &c.ScanKswapd, "pgscan_direct": &c.ScanDirect, "pgscan_proactive": &c.ScanProactive,
		"pgsteal_kswapd": &c.StealKswapd, "pgsteal_direct": &c.StealDirect, "pgsteal_proactive": &c.StealProactive,
		"oom_kill": &c.OOMKills, "thp_fault_alloc": &c.THPFaults, "thp_fault_fallback": &c.THPFallbacks,
		"thp_collapse_alloc": &c.THPCollapses, "thp_split_page": &c.THPSplits, "thp_swpout": &c.THPSwapOuts,
		"compact_stall": &c.CompactStalls, "cow_ksm": &c.KSMCopies, "ksm_swpin_copy": &c.KSMSwapInCopies,
	}
	c.Absent = sumCounters(text, fields, func(key string) string {
		if strings.HasPrefix(key, "allocstall_") { // one for each zone
			return "allocstall"
		}
		return key
	})
	return c, nil
}

// sumCounters reads lines "key number" into the fields of the keys, and sums lines whose keys name the same
// field. It returns the keys without a line, sorted.
func sumCounters(text string, fields map[string]*uint64, fieldOf func(key string) string) (absent []string) {
	found := map[string]bool{}
	keyed(text, " ", func(key, value string) {
		key = fieldOf(key)
		if into, has := fields[key]; has {
			if n, err := strconv.ParseUint(value, 10, 64); err == nil {
				*into += n
				found[key] = true
			}
		}
	})
	for key := range fields {
		if !found[key] {
			absent = append(absent, key)
		}
	}
	slices.Sort(absent)
	return absent
}
