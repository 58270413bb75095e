package kernel_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel/kerneltest"
)

// Promise: S12
func TestSetOOMScore_Value(t *testing.T) {
	dir := t.TempDir()
	kerneltest.Write(t, dir, "proc/42/oom_score_adj = 0\n")
	root := kernel.At(dir)
	if err := root.SetOOMScore(42, -900); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, "proc/42/oom_score_adj"))
	if err != nil || string(got) != "-900" {
		t.Errorf("the kernel was told %q (%v)", got, err)
	}
	if err := root.SetOOMScore(43, 0); err == nil {
		t.Error("a process that is not there was set")
	}
}
