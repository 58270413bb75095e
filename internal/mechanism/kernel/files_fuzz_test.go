package kernel

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzHostFiles writes the same text into every text file of /proc and of a control group. Results
// must stay within their bounds, whatever the text is.
func FuzzHostFiles(f *testing.F) {
	for _, text := range []string{
		"MemTotal:       16316412 kB\nMemFree: 1 kB\nSwapTotal: 18446744073709551615 kB\n", "some avg10=0.12 avg60=1e400 avg300=NaN total=9223372036854775807\nfull avg10=-1 total=1\n",
		"0.1 0.2 0.3 4/500 6\n", "usage_usec 9223372036854775807\nuser_usec 12\nsystem_usec -1\nthrottled_usec x\n", "max 100000\n", "default 100\n", "0-3,^2\n", "12 34 5\n",
		"36 35 0:26 / /sys/fs/cgroup/cpu,cpu\\040acct rw - cgroup cgroup rw,cpu,cpuacct\n37 35 0:27 / /c2 rw - cgroup2 none rw\n", "VmRSS:\t   123 kB\nVmSwap: 0 kB\n", "rchar: 1\nread_bytes: -1\n",
	} {
		f.Add(text)
	}
	for _, text := range memoryTexts {
		f.Add(text)
	}
	dir := f.TempDir()
	root := At(dir)
	files := []string{"proc/meminfo", "proc/loadavg", "proc/pressure/cpu", "proc/self/mountinfo", "proc/7/status", "proc/7/io", "proc/7/task/7/schedstat", "proc/7/stat"}
	group := filepath.Join(dir, "group")
	for _, name := range []string{
		"cpu.stat", "cpu.max", "cpu.weight", "memory.current", "memory.max", "memory.swap.max", "memory.swap.current", "memory.high", "pids.max", "pids.current", "io.weight", "cpuset.cpus", "cpuset.mems",
	} {
		files = append(files, filepath.Join("group", name))
	}
	files = append(files, memoryFiles()...)
	// All are hard links to one file, which is written once for each input.
	every := filepath.Join(dir, "every")
	for _, name := range files {
		name = filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(every, nil, 0o600), os.MkdirAll(filepath.Dir(name), 0o700), os.Link(every, name)); err != nil {
			f.Fatal(err)
		}
	}
	trees := map[Controller]string{}
	for _, c := range controllers {
		trees[c] = "/"
	}
	g := &Group{cgroups: &Cgroups{root: root, v2: true, trees: trees}, name: "group"}
	f.Fuzz(func(t *testing.T, text string) {
		if err := os.WriteFile(every, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if m, err := root.Memory(); err != nil || m.Total > 1<<63 && m.Total&1023 != 0 {
			t.Fatalf("%+v, %v", m, err)
		}
		if q, err := root.RunQueue(); err == nil && !strings.Contains(text, "/") {
			t.Fatalf("%+v of %q", q, text)
		}
		if p, err := root.Pressure(CPUPressure); err != nil || !p.Some.sound() || !p.Full.sound() {
			t.Fatalf("%+v, %v", p, err)
		}
		if m, err := root.ProcessMemory(7); err != nil || (m.Resident|m.Swapped|m.Virtual)&1023 != 0 {
			t.Fatalf("%+v, %v", m, err)
		}
		if _, err := root.ProcessIO(7); err != nil {
			t.Fatal(err)
		}
		if s, err := root.Schedule(7, 7); err == nil && (s.Run < 0 || s.Wait < 0) {
			t.Fatalf("%+v", s)
		}
		if p, err := root.Process(7); err == nil && (p.User < 0 || p.System < 0 || !strings.Contains(text, "("+p.Name+")")) {
			t.Fatalf("%+v", p)
		}
		mounts, err := root.cgroupMounts()
		if err != nil {
			t.Fatal(err)
		}
		for c, point := range mounts.v1 {
			if point == "" || trees[c] == "" {
				t.Fatalf("controller %q at %q", c, point)
			}
		}
		if _, err := os.Stat(group); err != nil {
			t.Fatal(err)
		}
		checkMemoryFiles(t, root, g, text)
		if s, err := g.Stats(); err != nil || s.CPU < 0 || s.Throttled < 0 || s.User < 0 || s.System < 0 {
			t.Fatalf("a group has used %+v, %v", s, err)
		}
		if l, err := g.Limits(); err != nil || l.CPUs != nil && l.CPUs.String() == "" && !l.CPUs.IsEmpty() {
			t.Fatalf("a group is held to %+v, %v", l, err)
		}
	})
}

// sound reports whether the shares and the sum are possible values.
func (s Stall) sound() bool { return s.Avg10 >= 0 && s.Avg60 >= 0 && s.Avg300 >= 0 && s.Total >= 0 }

// FuzzPCI reads the configuration space of a device, which may give false values, and an
// address as users write it.
func FuzzPCI(f *testing.F) {
	config := make([]byte, configSize)
	config[configStatus], config[configCapabilities], config[0x40], config[0x41] = 0x10, 0x40, 0x01, 0x50
	config[0x50], config[0x51] = capabilityExpress, 0x40
	f.Add(config, "0000:00:1f.2")
	f.Add(config[:64], "ffff:ff:1f.7")
	config[0x50] = 2 // the chain is a circle
	f.Add(config, "0000:0:1f.2")
	f.Fuzz(func(t *testing.T, config []byte, text string) {
		var d PCIDevice
		d.readConfig(config)
		if d.Link != nil && (d.Link.Width > 63 || d.Link.MaxWidth > 63 || d.Link.Speed > 64 || d.Link.MaxSpeed > 64) {
			t.Fatalf("%+v", d.Link)
		}
		if a, ok := ParsePCIAddress(text); ok {
			if again, ok := ParsePCIAddress(a.String()); !ok || again != a {
				t.Fatalf("%q is %s, and that is %s", text, a, again)
			}
		}
	})
}
