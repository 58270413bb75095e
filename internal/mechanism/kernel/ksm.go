package kernel

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// ksmDir holds the files of KSM, the kernel's merging of equal pages. Their meaning and units:
// Documentation/admin-guide/mm/ksm.rst.
const ksmDir = "sys/kernel/mm/ksm"

// KSMRun is what KSM does.
type KSMRun uint64

// The states of KSM. KSMUnmerge stops it and gives each process pages of its own again: PagesSharing
// pages more than now, which must be free or the kernel ends processes. The write returns when this
// is done, after seconds or minutes.
const (
	KSMStop    KSMRun = 0 // merged pages stay merged
	KSMMerge   KSMRun = 1
	KSMUnmerge KSMRun = 2
)

// The values of KSM.AdvisorMode.
const (
	KSMAdvisorNone     = "none"
	KSMAdvisorScanTime = "scan-time"
)

// KSM is the state of KSM: its settings, and counters of the whole host. Pages are base pages
// (os.Getpagesize).
type KSM struct {
	Run KSMRun
	// PagesShared pages of RAM are used in PagesShared + PagesSharing places: PagesSharing is what
	// merging saves, before its own cost.
	PagesShared, PagesSharing uint64
	// PagesUnshared were compared and are unique; PagesVolatile change too fast to be compared.
	PagesUnshared, PagesVolatile uint64
	// PagesScanned and PagesSkipped (by SmartScan) and FullScans count since boot.
	PagesScanned, PagesSkipped, FullScans uint64
	// ZeroPages are mapped to the kernel's page of zeros; they save a page each, and PagesSharing does
	// not count them.
	ZeroPages uint64
	// GeneralProfit is what merging saves less the memory for its own records, in bytes. It is
	// negative where merging costs more than it saves.
	GeneralProfit int64
	// MergeAcrossNodes lets pages of different NUMA nodes be merged.
	MergeAcrossNodes bool
	// SmartScan skips pages that could not be merged in former scans.
	SmartScan bool
	// AdvisorMode is KSMAdvisorScanTime where the kernel chooses PagesToScan.
	AdvisorMode string
	// AdvisorMaxCPU bounds ksmd's share of one processor, in percent.
	AdvisorMaxCPU uint64
	// AdvisorTargetScanTime is how long one full scan should take; the file has whole seconds.
	AdvisorTargetScanTime time.Duration
	// AdvisorMinPages is the advisor's first PagesToScan; it may choose fewer later. AdvisorMaxPages
	// bounds it.
	AdvisorMinPages, AdvisorMaxPages uint64
	// PagesToScan are scanned between two sleeps of ksmd, each of Sleep (whole milliseconds).
	PagesToScan uint64
	Sleep       time.Duration
	// Absent names the files that this kernel does not have, such as "general_profit". Their fields
	// are not known, and zero.
	Absent []string
}

// KSM reads the state of KSM. Unsupported on a kernel without it.
func (r Root) KSM() (KSM, error) {
	if !r.exists(ksmDir) {
		return KSM{}, fault.New(fault.Unsupported, fault.Host, "this kernel cannot merge equal pages: it is built without CONFIG_KSM")
	}
	var k KSM
	var buffer [brief]byte
	for _, f := range k.files() {
		text, err := r.readBrief(buffer[:], ksmDir, f.name)
		if fault.Is(err, fault.NotFound) {
			k.Absent = append(k.Absent, f.name)
			continue
		}
		if err != nil {
			return KSM{}, fault.Wrap(err, fault.Of(err), fault.Host, "cannot read /%s/%s", ksmDir, f.name)
		}
		if text = strings.TrimSpace(text); !f.parse(text) {
			return KSM{}, fault.New(fault.Failed, fault.Host, "cannot understand /%s/%s: it holds %.64q", ksmDir, f.name, text)
		}
	}
	return k, nil
}

// Knows reports whether the kernel has a file of KSM, by its name.
func (k KSM) Knows(file string) bool { return !slices.Contains(k.Absent, file) }

// ksmFile is one file of KSM, and the reader of its content.
type ksmFile struct {
	name  string
	parse func(text string) bool
}

func (k *KSM) files() []ksmFile {
	return []ksmFile{
		{"run", parseUint((*uint64)(&k.Run))},
		{"pages_shared", parseUint(&k.PagesShared)},
		{"pages_sharing", parseUint(&k.PagesSharing)},
		{"pages_unshared", parseUint(&k.PagesUnshared)},
		{"pages_volatile", parseUint(&k.PagesVolatile)},
		{"pages_scanned", parseUint(&k.PagesScanned)},
		{"pages_skipped", parseUint(&k.PagesSkipped)},
		{"full_scans", parseUint(&k.FullScans)},
		{"ksm_zero_pages", parseUint(&k.ZeroPages)},
		{"general_profit", parseInt(&k.GeneralProfit)},
		{"merge_across_nodes", parseSwitch(&k.MergeAcrossNodes)},
		{"smart_scan", parseSwitch(&k.SmartScan)},
		{"advisor_mode", func(text string) bool { k.AdvisorMode = chosen(text); return k.AdvisorMode != "" }},
		{"advisor_max_cpu", parseUint(&k.AdvisorMaxCPU)},
		{"advisor_target_scan_time", parseDuration(&k.AdvisorTargetScanTime, time.Second)},
		{"advisor_min_pages_to_scan", parseUint(&k.AdvisorMinPages)},
		{"advisor_max_pages_to_scan", parseUint(&k.AdvisorMaxPages)},
		{"pages_to_scan", parseUint(&k.PagesToScan)},
		{"sleep_millisecs", parseDuration(&k.Sleep, time.Millisecond)},
	}
}

func parseUint(into *uint64) func(string) bool {
	return func(text string) bool {
		n, err := strconv.ParseUint(text, 10, 64)
		*into = n
		return err == nil
	}
}

func parseInt(into *int64) func(string) bool {
	return func(text string) bool {
		n, err := strconv.ParseInt(text, 10, 64)
		*into = n
		return err == nil
	}
}

func parseSwitch(into *bool) func(string) bool {
	return func(text string) bool {
		*into = text == "1"
		return text == "0" || text == "1"
	}
}

// parseDuration reads a count of units. One that a time.Duration cannot hold is the longest duration.
func parseDuration(into *time.Duration, unit time.Duration) func(string) bool {
	return func(text string) bool {
		n, err := strconv.ParseUint(text, 10, 64)
		*into = math.MaxInt64
		if n <= uint64(math.MaxInt64/unit) {
			*into = time.Duration(n) * unit
		}
		return err == nil
	}
}

// KSMSettings are settings of KSM. A nil field is not set. The fields are as in KSM.
type KSMSettings struct {
	Run                              *KSMRun
	MergeAcrossNodes, SmartScan      *bool
	AdvisorMode                      *string
	AdvisorMaxCPU                    *uint64
	AdvisorTargetScanTime            *time.Duration
	AdvisorMinPages, AdvisorMaxPages *uint64
	PagesToScan                      *uint64
	Sleep                            *time.Duration
}

// Settings returns the settings that SetKSM takes to bring this state back: those that the kernel has, and
// PagesToScan only where no advisor chooses it.
func (k KSM) Settings() KSMSettings {
	s := KSMSettings{
		Run: known(k, "run", k.Run), SmartScan: known(k, "smart_scan", k.SmartScan),
		MergeAcrossNodes: known(k, "merge_across_nodes", k.MergeAcrossNodes),
		AdvisorMode:      known(k, "advisor_mode", k.AdvisorMode), AdvisorMaxCPU: known(k, "advisor_max_cpu", k.AdvisorMaxCPU),
		AdvisorTargetScanTime: known(k, "advisor_target_scan_time", k.AdvisorTargetScanTime),
		AdvisorMinPages:       known(k, "advisor_min_pages_to_scan", k.AdvisorMinPages),
		AdvisorMaxPages:       known(k, "advisor_max_pages_to_scan", k.AdvisorMaxPages),
		Sleep:                 known(k, "sleep_millisecs", k.Sleep),
	}
	if k.AdvisorMode == "" || k.AdvisorMode == KSMAdvisorNone {
		s.PagesToScan = known(k, "pages_to_scan", k.PagesToScan)
	}
	return s
}

func known[T any](k KSM, file string, value T) *T {
	if !k.Knows(file) {
		return nil
	}
	return &value
}

// SetKSM writes the settings that are set, and reads each back. It stops at the first one that the kernel
// does not take; those before it stay written. The order of the writes:
//
//   - run first if it stops merging, and last if it starts it, so that nothing is merged by half of the settings.
//   - The advisor's parameters before its mode: it begins with them.
//   - pages_to_scan after the mode: the kernel sets it to 100 when the mode becomes none.
//
// PagesToScan is WrongState while an advisor is on, which chooses it. MergeAcrossNodes is Busy while pages are merged:
// KSMUnmerge first.
func (r Root) SetKSM(s KSMSettings) error {
	var writes []ksmWrite
	run := ksmValue(nil, "run", s.Run, func(run KSMRun) string { return decimal(uint64(run)) })
	if s.Run != nil && *s.Run != KSMMerge {
		writes, run = run, nil
	}
	seconds := func(d time.Duration) string { return decimal(uint64(max(d, 0) / time.Second)) }
	milliseconds := func(d time.Duration) string { return decimal(uint64(max(d, 0) / time.Millisecond)) }
	writes = ksmValue(writes, "merge_across_nodes", s.MergeAcrossNodes, zeroOrOne)
	writes = ksmValue(writes, "smart_scan", s.SmartScan, zeroOrOne)
	writes = ksmValue(writes, "advisor_max_cpu", s.AdvisorMaxCPU, decimal)
	writes = ksmValue(writes, "advisor_target_scan_time", s.AdvisorTargetScanTime, seconds)
	writes = ksmValue(writes, "advisor_min_pages_to_scan", s.AdvisorMinPages, decimal)
	writes = ksmValue(writes, "advisor_max_pages_to_scan", s.AdvisorMaxPages, decimal)
	writes = ksmValue(writes, "advisor_mode", s.AdvisorMode, func(mode string) string { return mode })
	writes = ksmValue(writes, "pages_to_scan", s.PagesToScan, decimal)
	writes = ksmValue(writes, "sleep_millisecs", s.Sleep, milliseconds)
	for _, w := range append(writes, run...) {
		if err := r.checkKSM(w); err != nil {
			return err
		}
		if err := r.setExactly(w.value, ksmDir, w.file); err != nil {
			return err
		}
	}
	return nil
}

// ksmWrite is a value for one file of KSM.
type ksmWrite struct{ file, value string }

// ksmValue adds the write of a value that is set.
func ksmValue[T any](writes []ksmWrite, file string, value *T, text func(T) string) []ksmWrite {
	if value == nil {
		return writes
	}
	return append(writes, ksmWrite{file, text(*value)})
}

func zeroOrOne(on bool) string {
	if on {
		return "1"
	}
	return "0"
}

// checkKSM refuses a value that the kernel would refuse without a reason.
func (r Root) checkKSM(w ksmWrite) error {
	switch w.file {
	case "pages_to_scan":
		if mode := chosen(r.attr(ksmDir, "advisor_mode")); mode != "" && mode != KSMAdvisorNone {
			return fault.New(fault.WrongState, fault.Host, "cannot set /%s/%s to %s while advisor_mode is %.64q, which chooses it; set advisor_mode to none first",
				ksmDir, w.file, w.value, mode)
		}
	case "merge_across_nodes":
		if shared := r.size(ksmDir, "pages_shared"); shared > 0 && r.attr(ksmDir, w.file) != w.value {
			return fault.New(fault.Busy, fault.Host, "cannot set /%s/%s to %s while pages_shared is %d; set run to 2 first, which needs free memory for pages_sharing more pages",
				ksmDir, w.file, w.value, shared)
		}
	}
	return nil
}

// KSMProcess is one process's part in KSM.
type KSMProcess struct {
	// Items are the pages of the process that KSM keeps a record of, whether merged or not. MergingPages
	// are merged. Many items for few merged pages cost more than they save: see Profit.
	Items, MergingPages uint64
	// ZeroPages are mapped to the kernel's page of zeros, and not in MergingPages.
	ZeroPages uint64
	// Profit is what merging saves for this process less the records of its pages, in bytes.
	Profit int64
	// MergeAny: the whole process was given to KSM (prctl PR_SET_MEMORY_MERGE). Mergeable: some mapping of it was.
	// A guest's RAM may be left out though Mergeable is true: AnonymousMappings tells.
	MergeAny, Mergeable bool
	// Absent names the lines that this kernel does not have, such as "ksm_mergeable". Their fields are
	// zero.
	Absent []string
}

// KSMProcess reads /proc/PID/ksm_stat (Documentation/filesystems/proc.rst). It needs root or the process's own
// user. NotFound without such a process, or without KSM. Where the file has the line ksm_mergeable, the kernel
// takes the same lock for it as for smaps: see MemoryRollup.
func (r Root) KSMProcess(pid int) (KSMProcess, error) {
	var buffer [brief]byte
	text, err := r.readBrief(buffer[:], "proc", strconv.Itoa(pid), "ksm_stat")
	if err != nil {
		return KSMProcess{}, fault.Wrap(err, fault.Of(err), fault.Host, "cannot read the merged pages of process %d", pid)
	}
	lines := map[string]string{}
	for line := range strings.Lines(text) { // "ksm_rmap_items 12", "ksm_mergeable: yes"
		if fields := strings.Fields(line); len(fields) == 2 {
			lines[strings.TrimSuffix(fields[0], ":")] = fields[1]
		}
	}
	var p KSMProcess
	yes := func(into *bool) func(string) bool {
		return func(text string) bool { *into = text == "yes"; return text == "yes" || text == "no" }
	}
	for _, f := range []ksmFile{
		{"ksm_rmap_items", parseUint(&p.Items)},
		{"ksm_merging_pages", parseUint(&p.MergingPages)},
		{"ksm_zero_pages", parseUint(&p.ZeroPages)},
		{"ksm_process_profit", parseInt(&p.Profit)},
		{"ksm_merge_any", yes(&p.MergeAny)},
		{"ksm_mergeable", yes(&p.Mergeable)},
	} {
		value, has := lines[f.name]
		if !has && f.name == "ksm_merging_pages" { // before 6.4, this was a file of its own
			value = r.attr("proc", strconv.Itoa(pid), f.name)
			has = value != ""
		}
		if !has {
			p.Absent = append(p.Absent, f.name)
		} else if !f.parse(value) {
			return KSMProcess{}, fault.New(fault.Failed, fault.Host, "cannot understand /proc/%d/ksm_stat: %s is %.64q", pid, f.name, value)
		}
	}
	return p, nil
}

// statFlags is the field of /proc/PID/stat with the kernel's flags, counted as the others; kernelThread is
// PF_KTHREAD among them.
const (
	statFlags    = 6
	kernelThread = 0x00200000
)

// KSMThread finds ksmd, the kernel's thread that merges, among all processes. NotFound without KSM, and in a
// container. It lives until the host ends, so callers keep its ID: Process(ID) tells its processor time by ticks of
// 10 ms, and Schedule(ID, ID) to the nanosecond.
func (r Root) KSMThread() (Process, error) {
	found, err := r.processes(func(pid int) bool {
		var line [brief]byte
		text, err := r.readBrief(line[:], "proc", strconv.Itoa(pid), "stat")
		p, ok := parseStat(text)
		return err == nil && ok && p.Name == "ksmd" && isKernelThread(text) // a process may call itself ksmd
	})
	if err != nil {
		return Process{}, err
	}
	if len(found) == 0 {
		return Process{}, fault.New(fault.NotFound, fault.Host, "the kernel has no thread ksmd here: it has no KSM, or this is a container")
	}
	return r.Process(found[0])
}

// isKernelThread reads the flags of a line of /proc/PID/stat.
func isKernelThread(text string) bool {
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) <= statFlags {
		return false
	}
	flags, err := strconv.ParseUint(fields[statFlags], 10, 64)
	return err == nil && flags&kernelThread != 0
}
