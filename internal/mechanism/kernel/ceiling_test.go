package kernel_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
)

func TestCeilings(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"proc/loadavg":                "0.50 0.40 0.30 3/812 12345\n",
		"proc/sys/fs/aio-max-nr":      "65536\n",
		"proc/sys/fs/aio-nr":          "64512\n",
		"proc/sys/fs/file-max":        "9223372036854775807\n",
		"proc/sys/fs/file-nr":         "2048\t0\t9223372036854775807\n",
		"proc/sys/kernel/threads-max": "1000\n",
		"proc/sys/kernel/pid_max":     "700\n", // lower than the usage: it was lowered since
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all, err := kernel.At(dir).Ceilings()
	if err != nil {
		t.Fatal(err)
	}
	left := map[string]uint64{}
	for _, c := range all {
		left[c.Name] = c.Left()
	}
	want := map[string]uint64{
		"fs.aio-max-nr": 1024, "fs.file-max": 9223372036854775807 - 2048,
		"kernel.threads-max": 188, "kernel.pid_max": 0,
	}
	if len(left) != len(want) {
		t.Fatalf("ceilings %v, want those of %v: a host without ptys has none for them", left, want)
	}
	for name, n := range want {
		if left[name] != n {
			t.Errorf("%s has %d left, want %d", name, left[name], n)
		}
	}
}

func TestCeilings_ThisHost(t *testing.T) {
	all, err := kernel.Root{}.Ceilings()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 4 {
		t.Fatalf("only %d ceilings found", len(all))
	}
	for _, c := range all {
		if c.Max == 0 {
			t.Errorf("%s is 0", c.Name)
		}
	}
}
