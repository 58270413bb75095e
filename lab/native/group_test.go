package native

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// tree writes files as a kernel shows them.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// Both versions of control groups, as files that a kernel has shown: what a place may
// hold, and what it takes.
// Promise: L46
func TestAPlaceIsBoundedAndCountedUnderBothVersions(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"2": {
			"cgroup.subtree_control": "cpu io memory pids\n", "lodge-lab-x/memory.max": "max\n", "lodge-lab-x/memory.swap.max": "max\n",
			"lodge-lab-x/memory.current": "700\n", "lodge-lab-x/memory.stat": "anon 500\ninactive_file 100\n",
			"lodge-lab-x/cpu.stat": "usage_usec 5000000\nuser_usec 3000000\nsystem_usec 2000000\n",
		},
		"1": {
			"memory/memory.limit_in_bytes": "9223372036854771712\n", "memory/lodge-lab-x/memory.limit_in_bytes": "9223372036854771712\n",
			"memory/lodge-lab-x/memory.usage_in_bytes": "700\n", "memory/lodge-lab-x/memory.stat": "inactive_file 5\ntotal_inactive_file 100\n",
			"cpuacct/cpuacct.usage_user": "1\n", "cpuacct/lodge-lab-x/cpuacct.usage_user": "3000000000\n", "cpuacct/lodge-lab-x/cpuacct.usage_sys": "2000000000\n",
		},
	} {
		c, err := find(tree(t, files))
		if err != nil {
			t.Fatal(err)
		}
		g := group{controllers: c, dirs: c.dirs("x"), memory: 1000}
		if err := g.bound(); err != nil {
			t.Fatal(err)
		}
		bound, err := figure(filepath.Join(g.dirs[0], c.bounds[0]), "")
		if err != nil || bound != 1000 {
			t.Errorf("version %s is bounded to %d, %v", name, bound, err)
		}
		if swap, err := figure(filepath.Join(g.dirs[0], c.bounds[1]), ""); name == "2" && (err != nil || swap != 0) {
			t.Errorf("it may swap %d out, %v", swap, err)
		}
		u, err := (&Place{group: g}).Usage()
		if want := (Usage{3 * time.Second, 2 * time.Second, 1000, 400}); err != nil || u != want {
			t.Errorf("version %s: %+v, %v", name, u, err)
		}
	}
	if _, err := find(tree(t, map[string]string{"cgroup.subtree_control": "cpu pids\n"})); !fault.Is(err, fault.Unsupported) {
		t.Errorf("without bounds of memory: %v", err)
	}
}
