package kernel

import (
	"slices"
	"strings"
	"testing"
)

// memoryTexts are seeds of FuzzHostFiles for the files about memory.
var memoryTexts = []string{
	"1\n", "none [scan-time]\n", "Y\n", "-1\n", "18446744073709551615\n",
	"ksm_rmap_items 12\nksm_process_profit -9223372036854775808\nksm_merge_any: no\nksm_mergeable: yes\n",
	"pswpin 1\nallocstall_dma 18446744073709551615\nallocstall_normal 1\npgmajfault -1\n",
	"Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n/dev/sda\\0402                         partition\t8388604\t\t0\t\t-2\n",
	"7f0050000000-7f0070000000 rw-p 00000000 00:00 0 [anon:x]\nRss: 4 kB\nKSM: 18446744073709551615 kB\nVmFlags: rd mg\nffff-0 rw-p 0 0 0\n",
	"anon 1\nfile 2\nlow 3\noom_kill 4\n",
}

// memoryFiles are those of FuzzHostFiles that checkMemoryFiles reads.
func memoryFiles() []string {
	files := []string{
		"proc/vmstat", "proc/swaps", "proc/sys/vm/swappiness", "proc/7/ksm_stat", "proc/7/smaps", "proc/7/smaps_rollup",
		zswapDir + "/enabled", zswapDir + "/compressor", zswapDir + "/max_pool_percent",
		"group/memory.low", "group/memory.stat", "group/memory.events", "group/memory.pressure",
	}
	for _, f := range new(KSM).files() {
		files = append(files, ksmDir+"/"+f.name)
	}
	for _, name := range []string{"nr_hugepages", "free_hugepages", "surplus_hugepages"} {
		files = append(files, nodeDir+"/node0/hugepages/hugepages-2048kB/"+name)
	}
	return files
}

// checkMemoryFiles reads the files about memory, which all hold this text.
func checkMemoryFiles(t *testing.T, root Root, g *Group, text string) {
	t.Helper()
	if k, err := root.KSM(); err == nil && (k.Sleep < 0 || k.AdvisorTargetScanTime < 0 || len(k.Absent) > 0 || !strings.Contains(text, k.AdvisorMode)) {
		t.Fatalf("%+v", k)
	}
	if p, err := root.KSMProcess(7); err == nil && len(p.Absent) == 0 && !strings.Contains(text, "ksm_mergeable") {
		t.Fatalf("%+v", p)
	}
	if _, err := root.VMCounters(); err != nil {
		t.Fatal(err)
	}
	if areas, err := root.SwapAreas(); err == nil && len(areas) > min(maxSwapAreas, strings.Count(text, "\n")+1) {
		t.Fatalf("%d areas", len(areas))
	}
	if n, err := root.Swappiness(); err == nil && n > maxSwappiness {
		t.Fatalf("swappiness %d", n)
	}
	if z, err := root.Zswap(); err == nil && z.Compressor == "" {
		t.Fatalf("%+v", z)
	}
	if m, err := root.MemoryRollup(7); err != nil || (m.Resident|m.Swap|m.Locked)&1023 != 0 {
		t.Fatalf("%+v, %v", m, err)
	}
	if all, err := root.AnonymousMappings(7, 3); err == nil && (len(all) > 3 || !slices.IsSortedFunc(all, largerFirst)) {
		t.Fatalf("%+v", all)
	}
	if pools, err := root.HugePools(); err == nil && len(pools) != 1 {
		t.Fatalf("%+v", pools)
	}
	m, err := g.MemoryGroup()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Memory(); err == nil && strings.TrimSpace(text) == "" {
		t.Fatal("an empty file is a number")
	}
	if _, err := m.Counters(); err != nil {
		t.Fatal(err)
	}
	if p, err := m.Pressure(); err != nil || !p.Some.sound() || !p.Full.sound() {
		t.Fatalf("%+v, %v", p, err)
	}
}
