package resources

import (
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

// roomy is a host with the kernel's default for native I/O and 63 guests on it; its other limits have room.
var roomy = map[string]string{
	"proc/loadavg": "0 0 0 1/1000 1", "proc/sys/fs/aio-max-nr": "65536", "proc/sys/fs/aio-nr": "64512",
	"proc/sys/fs/file-max": "9223372036854775807", "proc/sys/fs/file-nr": "2048 0 9223372036854775807",
	"proc/sys/kernel/threads-max": "100000", "proc/sys/kernel/pid_max": "32768",
	"proc/sys/kernel/pty/max": "4096", "proc/sys/kernel/pty/nr": "10",
	"proc/sys/vm/max_map_count": "65530", "proc/meminfo": "MemTotal: 16777216 kB\nMemFree: 16777216 kB\n",
}

// unified is such a host where systemd and a container bound threads and huge pages in version 2.
var unified = map[string]string{
	"proc/self/cgroup":                     "0::/system.slice/lodged.service\n",
	"proc/self/mountinfo":                  "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n",
	"sys/fs/cgroup/cgroup.subtree_control": "cpu cpuset memory io pids hugetlb", "sys/fs/cgroup/lodge/cgroup.subtree_control": "cpu cpuset memory io pids hugetlb",
	"sys/fs/cgroup/system.slice/lodged.service/pids.max": "120\n", "sys/fs/cgroup/system.slice/lodged.service/pids.current": "100\n",
	"sys/fs/cgroup/system.slice/pids.max": "max\n", "sys/fs/cgroup/system.slice/pids.current": "200\n",
	"sys/fs/cgroup/lodge/pids.max": "1000\n", "sys/fs/cgroup/lodge/pids.current": "900\n",
	"sys/fs/cgroup/lodge/hugetlb.2MB.max": "4194304\n", "sys/fs/cgroup/lodge/hugetlb.2MB.current": "2097152\n",
	"sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "100\n",
}

// split is the same in version 1, where a container shows only a part of the trees.
var split = map[string]string{
	"proc/self/cgroup": "8:pids:/docker/f00/inner\n4:hugetlb:/docker/f00\n0::/\n",
	"proc/self/mountinfo": "33 23 0:29 /docker/f00 /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n" +
		"34 23 0:30 /docker/f00 /sys/fs/cgroup/hugetlb rw - cgroup cgroup rw,hugetlb\n35 23 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
	"sys/fs/cgroup/pids/inner/pids.max": "max\n", "sys/fs/cgroup/pids/inner/pids.current": "5\n",
	"sys/fs/cgroup/pids/pids.max": "64\n", "sys/fs/cgroup/pids/pids.current": "60\n",
	"sys/fs/cgroup/hugetlb/hugetlb.2MB.limit_in_bytes": "4194304\n", "sys/fs/cgroup/hugetlb/hugetlb.2MB.usage_in_bytes": "2097152\n",
	"sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "100\n",
}

func tree(t *testing.T, parts ...map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, part := range parts {
		for name, content := range part {
			put(t, dir, name, content)
		}
	}
	return dir
}

func put(t *testing.T, dir, name, content string) {
	t.Helper()
	file := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func limitsOf(dir string) *Limits {
	root := kernel.At(dir)
	return NewLimits(root, kernel.OpenCgroups(root, ""), slog.New(slog.DiscardHandler))
}

// Promise: W7
func TestLimits_RefusalNamesRemedy(t *testing.T) {
	pages := func(count uint64) []topology.PageDemand {
		return []topology.PageDemand{{Size: 2 << 20, Cell: topology.AnyCell, Count: count}}
	}
	for name, c := range map[string]struct {
		host        []map[string]string
		fits, above Need
		says        []string
	}{
		"native I/O": {
			fits: Need{Threads: 8, PTYs: 1, AIO: AIOContext}, above: Need{AIO: 2 * AIOContext},
			says: []string{"2048 of fs.aio-max-nr", "which is 65536", "64512 in use", "sysctl -w fs.aio-max-nr="},
		},
		"threads": {
			fits: Need{Threads: 30000}, above: Need{Threads: 32000},
			says: []string{"32000 of kernel.pid_max, which is 32768", "sysctl -w kernel.pid_max="},
		},
		"ptys":         {fits: Need{PTYs: 4086}, above: Need{PTYs: 4087}, says: []string{"kernel.pty.max", "sysctl -w kernel.pty.max="}},
		"memory areas": {fits: Need{Maps: 65530}, above: Need{Maps: 65531}, says: []string{"vm.max_map_count is 65530", "sysctl -w vm.max_map_count=131062"}},
		"a service's TasksMax": {
			host: []map[string]string{unified}, fits: Need{Threads: 20}, above: Need{Threads: 21},
			says: []string{"/sys/fs/cgroup/system.slice/lodged.service/pids.max", "which is 120", "systemctl set-property lodged.service TasksMax="},
		},
		"the guests' group": {
			host: []map[string]string{unified, {"sys/fs/cgroup/system.slice/lodged.service/pids.max": "max"}},
			fits: Need{Threads: 100}, above: Need{Threads: 101},
			says: []string{"/sys/fs/cgroup/lodge/pids.max, which is 1000", "echo ", " > /sys/fs/cgroup/lodge/pids.max"},
		},
		"huge pages of the guests' group": {
			host: []map[string]string{unified}, fits: Need{Pages: pages(1)}, above: Need{Pages: pages(2)},
			says: []string{"4194304 of /sys/fs/cgroup/lodge/hugetlb.2MB.max", "echo ", " > /sys/fs/cgroup/lodge/hugetlb.2MB.max"},
		},
		"a container's threads": {
			host: []map[string]string{split}, fits: Need{Threads: 4}, above: Need{Threads: 5},
			says: []string{"/sys/fs/cgroup/pids/pids.max, which is 64", "> /sys/fs/cgroup/pids/pids.max"},
		},
		"a container's huge pages": {
			host: []map[string]string{split}, fits: Need{Pages: pages(1)}, above: Need{Pages: pages(2)},
			says: []string{"/sys/fs/cgroup/hugetlb/hugetlb.2MB.limit_in_bytes, which is 4194304"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := limitsOf(tree(t, append([]map[string]string{roomy}, c.host...)...))
			if err := l.reserve("fits", c.fits); err != nil {
				t.Errorf("what fits is refused: %v", err)
			}
			l.release("fits")
			err := l.reserve("above", c.above)
			if !fault.Is(err, fault.NoCapacity) {
				t.Fatalf("got %v, want no capacity", err)
			}
			for _, says := range c.says {
				if !strings.Contains(err.Error(), says) {
					t.Errorf("%q does not say %q", err, says)
				}
			}
			if len(l.held)+len(l.starting) != 0 {
				t.Errorf("what was refused is held: %v", l.held)
			}
		})
	}
}

// The last port of a bridge is granted once, however many ask at the same time.
func TestLimits_BridgePorts(t *testing.T) {
	ports := map[string]string{}
	for i := range maxBridgePorts - 2 {
		ports[fmt.Sprintf("sys/class/net/br0/brif/tap%d", i)] = ""
	}
	l := limitsOf(tree(t, roomy, ports))
	if err := l.reserve("both", Need{Bridges: []string{"br0", "br1", "br0"}}); err != nil {
		t.Fatal(err)
	}
	err := l.reserve("one more", Need{Bridges: []string{"br0"}})
	if !fault.Is(err, fault.NoCapacity) || !strings.Contains(err.Error(), "1 of the ports of bridge br0, which is 1023") || !strings.Contains(err.Error(), "ip link add") {
		t.Fatalf("got %v", err)
	}
	l.release("both")
	if err := l.reserve("one more", Need{Bridges: []string{"br0", "br0"}}); err != nil {
		t.Errorf("what was given back is not there: %v", err)
	}
}

// Concurrent starts together never get more than there is, and are refused nothing that is available, wherever
// the kernel begins to count them.
func TestLimits_GrantCountsUntilTaken(t *testing.T) {
	dir := tree(t, roomy, map[string]string{"proc/sys/fs/aio-nr": "2048"})
	synctest.Test(t, func(t *testing.T) {
		l := limitsOf(dir)
		used := 2 // of the rest of the host
		take := func(i int) error {
			return l.reserve(fmt.Sprint(i), Need{AIO: AIOContext})
		}
		for i := range 62 {
			if i > 0 && i%3 == 0 { // a third have opened their contexts, and half of those have reported it
				used++
				put(t, dir, "proc/sys/fs/aio-nr", fmt.Sprint(used*AIOContext))
				<-time.After(limitsAge)
				if i%2 == 0 {
					l.started(fmt.Sprint(i - 1))
				}
			}
			if err := take(i); err != nil {
				t.Fatalf("guest %d of 62: %v", i, err)
			}
		}
		if err := take(62); !fault.Is(err, fault.NoCapacity) {
			t.Fatalf("one more than fit: %v", err)
		}
		// All of them run, and then one ends.
		for guest := range maps.Clone(l.starting) {
			l.started(guest)
		}
		l.release("7")
		put(t, dir, "proc/sys/fs/aio-nr", fmt.Sprint(63*AIOContext))
		<-time.After(limitsAge)
		if err := take(7); err != nil {
			t.Error(err)
		}
		if err := take(63); !fault.Is(err, fault.NoCapacity) {
			t.Errorf("one more than fit at the end: %v", err)
		}
	})
}

// Many starts at once share one reading of the limits.
func TestLimits_ReadTenTimesASecondAtMost(t *testing.T) {
	dir := tree(t, roomy)
	synctest.Test(t, func(t *testing.T) {
		l := limitsOf(dir)
		if err := l.reserve("a", Need{PTYs: 1}); err != nil {
			t.Fatal(err)
		}
		put(t, dir, "proc/sys/kernel/pty/max", "10")
		if err := l.reserve("b", Need{PTYs: 1}); err != nil {
			t.Errorf("fresh limits were read again: %v", err)
		}
		<-time.After(limitsAge)
		if err := l.reserve("c", Need{PTYs: 1}); !fault.Is(err, fault.NoCapacity) {
			t.Errorf("old limits were not read again: %v", err)
		}
	})
}

func TestLimits_PrepareWarns(t *testing.T) {
	warnings, err := limitsOf(tree(t, roomy, unified)).Prepare(1000)
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(warnings, "\n")
	for _, says := range []string{
		"fs.aio-max-nr is 65536 (64512 in use): it stops this host after about 1 more guests; raise it with: sysctl -w fs.aio-max-nr=1088512",
		"lodged.service/pids.max is 120 (100 in use): it stops this host after about 2 more guests; raise it with: systemctl set-property lodged.service TasksMax=8100",
		"/sys/fs/cgroup/lodge/pids.max",
	} {
		if !strings.Contains(all, says) {
			t.Errorf("%s\ndo not say %q", all, says)
		}
	}
	if len(warnings) != 3 {
		t.Errorf("%d warnings:\n%s", len(warnings), all)
	}
}

// After Prepare the daemon's own limits suffice, or a warning says what to do.
func TestLimits_DaemonRaisesOwnLimits(t *testing.T) {
	before, hard, err := kernel.OpenFiles.Get()
	if err != nil {
		t.Fatal(err)
	}
	l := NewLimits(kernel.Root{}, nil, slog.New(slog.DiscardHandler))
	warnings, err := l.Prepare(1)
	if err != nil {
		t.Fatal(err)
	}
	now, _, err := kernel.OpenFiles.Get()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("open files: %d of %d before, %d now; %q", before, hard, now, warnings)
	if now < min(hard, minOpenFiles) {
		t.Errorf("%d open files are allowed, of %d", now, hard)
	}
	if err := l.reserve("a", Need{Files: 100, DaemonFiles: 8}); err != nil {
		t.Error(err)
	}
	// More than the kernel allows for any process.
	err = l.reserve("b", Need{DaemonFiles: 1 << 40})
	if !fault.Is(err, fault.NoCapacity) || !strings.Contains(err.Error(), "nofile") || !strings.Contains(err.Error(), "raise it with: ") {
		t.Errorf("got %v", err)
	}
}

// A process with the capability to lock memory meets no limit; one without it is told what to raise.
func TestLimits_LockedMemory(t *testing.T) {
	need := Need{Locked: 1 << 60}
	may := limitsOf(tree(t, roomy, map[string]string{"proc/self/status": "Name:\tlodged\nCapEff:\t0000000000004000\n"}))
	if err := may.reserve("a", need); err != nil {
		t.Error(err)
	}
	soft, _, err := kernel.LockedMemory.Get()
	if err != nil {
		t.Fatal(err)
	}
	if soft >= need.Locked {
		t.Skip("this process may lock any amount of memory")
	}
	mayNot := limitsOf(tree(t, roomy, map[string]string{"proc/self/status": "CapEff:\t0000000000000400\n"}))
	err = mayNot.reserve("a", need)
	if now, _, e := kernel.LockedMemory.Get(); e != nil || err == nil && now < need.Locked {
		t.Errorf("nothing refused, and the limit is %d: %v", now, e)
	}
	if err != nil && (!fault.Is(err, fault.NoCapacity) || !strings.Contains(err.Error(), "prlimit --pid")) {
		t.Error(err)
	}
}

// A guest whose monitor has answered is still added to counters that were read before its start, and a release
// since then counts at once.
func TestLimits_StaleCounters(t *testing.T) {
	ports := map[string]string{}
	for i := range maxBridgePorts - 1 {
		ports[fmt.Sprintf("sys/class/net/br0/brif/tap%d", i)] = ""
	}
	dir := tree(t, roomy, ports) // room for one more guest with native I/O, and for one more port
	synctest.Test(t, func(t *testing.T) {
		l := limitsOf(dir)
		need := Need{AIO: AIOContext, Bridges: []string{"br0"}}
		if err := l.reserve("a", need); err != nil {
			t.Fatal(err)
		}
		put(t, dir, "proc/sys/fs/aio-nr", "65536")
		put(t, dir, "sys/class/net/br0/brif/last", "")
		l.started("a")
		for _, n := range []Need{{AIO: AIOContext}, {Bridges: []string{"br0"}}} {
			if err := l.reserve("b", n); !fault.Is(err, fault.NoCapacity) {
				t.Fatalf("one more than fit: %v", err)
			}
			<-time.After(limitsAge)
		}
		if err := l.reserve("b", need); err == nil {
			t.Fatal("one more than fit")
		}
		<-time.After(time.Millisecond)
		put(t, dir, "proc/sys/fs/aio-nr", "64512")
		if err := os.Remove(filepath.Join(dir, "sys/class/net/br0/brif/last")); err != nil {
			t.Fatal(err)
		}
		if err := l.reserve("c", need); err == nil {
			t.Fatal("the counters were read anew without a reason")
		}
		l.release("a")
		if err := l.reserve("c", need); err != nil {
			t.Errorf("what was just given back is refused: %v", err)
		}
	})
}

// Adopted guests are counted once, by the kernel, whatever was read before they were known, and their share is
// free when they end.
func TestLimits_AdoptedGuestsCountedOnce(t *testing.T) {
	dir := tree(t, roomy, map[string]string{"proc/sys/fs/aio-nr": fmt.Sprint(60 * AIOContext)})
	synctest.Test(t, func(t *testing.T) {
		l := limitsOf(dir)
		if _, err := l.Prepare(1); err != nil {
			t.Fatal(err)
		}
		need := Need{AIO: AIOContext}
		for i := range 50 {
			l.restore(fmt.Sprint("old ", i), need)
		}
		// Each of the four has taken its need before the next one asks.
		for i := range 4 {
			if err := l.reserve(fmt.Sprint("new ", i), need); err != nil {
				t.Fatalf("guest %d of 4: %v", i+1, err)
			}
			put(t, dir, "proc/sys/fs/aio-nr", fmt.Sprint((61+i)*AIOContext))
			<-time.After(limitsAge)
		}
		if err := l.reserve("above", need); !fault.Is(err, fault.NoCapacity) {
			t.Fatalf("one more than fit: %v", err)
		}
		l.release("old 7")
		put(t, dir, "proc/sys/fs/aio-nr", fmt.Sprint(63*AIOContext))
		if err := l.reserve("instead", need); err != nil {
			t.Errorf("what an adopted guest had is not there: %v", err)
		}
	})
}
