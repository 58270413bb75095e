package seclabel_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel/kerneltest"
	"github.com/lodge-kvm/lodge/internal/mechanism/seclabel"
)

func find(t *testing.T, tree string) *seclabel.Host {
	t.Helper()
	if tree == kerneltest.AppArmor { // its parser must exist, and is not run
		bin := t.TempDir()
		if err := os.WriteFile(filepath.Join(bin, "apparmor_parser"), []byte("#!/bin/sh\n"), 0o700); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
		t.Setenv("PATH", bin)
	}
	h, err := seclabel.Find(kerneltest.Host(t, tree), "")
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func name(t *testing.T, h *seclabel.Host, w seclabel.Request) seclabel.Guest {
	t.Helper()
	g, err := h.AssignLabel(w)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// TestAssignLabel_UniquePairs: labels that are assigned at the same time differ from each other, and from
// those of the host's other processes.
// Promise: I8
func TestAssignLabel_UniquePairs(t *testing.T) {
	h := find(t, kerneltest.SELinux)
	const guests = 3000
	named := make([]seclabel.Guest, guests)
	var all sync.WaitGroup
	for i := range named {
		all.Go(func() {
			g, err := h.AssignLabel(seclabel.Request{UUID: fmt.Sprint(i)})
			if err != nil {
				t.Error(err)
			}
			named[i] = g
		})
	}
	all.Wait()
	seen := map[string]bool{"system_u:system_r:svirt_t:s0:c10,c20": true} // a container's
	for _, g := range named {
		p := g.Pair
		if p == nil || p.A < 0 || p.A >= p.B || p.B > 1023 {
			t.Fatalf("%+v is no pair", p)
		}
		if seen[g.Process] {
			t.Fatalf("two have %s", g.Process)
		}
		seen[g.Process] = true
	}
	g := named[7]
	if want := fmt.Sprintf("s0:c%d,c%d", g.Pair.A, g.Pair.B); g.Process != "system_u:system_r:svirt_t:"+want || g.Image != "system_u:object_r:svirt_image_t:"+want ||
		g.Shared != "system_u:object_r:svirt_image_t:s0" || g.Content != "system_u:object_r:virt_content_t:s0" {
		t.Errorf("a guest is %+v", g)
	}
	if _, err := h.AssignLabel(seclabel.Request{UUID: "x", Label: g.Process}); !fault.Is(err, fault.Busy) {
		t.Errorf("a definition may name the pair of a guest that runs: %v", err)
	}
	h.Release(g, "somebody else")
	if _, err := h.AssignLabel(seclabel.Request{UUID: "x", Label: g.Process}); !fault.Is(err, fault.Busy) {
		t.Errorf("somebody else gave it back: %v", err)
	}
	h.Release(g, "7")
	name(t, h, seclabel.Request{UUID: "x", Label: g.Process})
	if _, err := h.AssignLabel(seclabel.Request{UUID: "7", Label: g.Process}); !fault.Is(err, fault.Busy) {
		t.Errorf("it was given to two: %v", err)
	}
}

func TestPairs_LastFreePair(t *testing.T) {
	pairs := seclabel.NewPairs(nil)
	for a := range 1024 {
		for b := a + 1; b < 1024; b++ {
			if a != 500 || b != 600 {
				pairs.Reserve(seclabel.Pair{A: a, B: b}, "others")
			}
		}
	}
	if p, err := pairs.Take("me"); err != nil || p != (seclabel.Pair{A: 500, B: 600}) {
		t.Errorf("the one that is left is %v, %v", p, err)
	}
	if p, err := pairs.Take("me"); !fault.Is(err, fault.NoCapacity) {
		t.Errorf("none is left, and %v is given (%v)", p, err)
	}
}

func TestAssignLabel_FromDefinition(t *testing.T) {
	h := find(t, kerneltest.SELinux)
	if g := name(t, h, seclabel.Request{UUID: "1", Emulated: true}); !strings.HasPrefix(g.Process, "system_u:system_r:svirt_tcg_t:s0:c") {
		t.Errorf("an emulated guest is %s", g.Process)
	}
	if g := name(t, h, seclabel.Request{UUID: "2", Base: "staff_u:staff_r:own_t:s1"}); !strings.HasPrefix(g.Process, "staff_u:staff_r:own_t:s1:c") || !strings.HasPrefix(g.Image, "system_u:object_r:svirt_image_t:s1:c") {
		t.Errorf("with a base it is %+v", g)
	}
	if g := name(t, h, seclabel.Request{UUID: "3", Label: "u:r:t:s0:c900,c7"}); g.Process != "u:r:t:s0:c900,c7" || *g.Pair != (seclabel.Pair{A: 7, B: 900}) || g.Image != "system_u:object_r:svirt_image_t:s0:c900,c7" {
		t.Errorf("with a label it is %+v", g)
	}
	if g := name(t, h, seclabel.Request{UUID: "4", Label: "u:r:t:s0:c1.c5", Leave: true}); g.Pair != nil || g.Image+g.Content+g.Shared != "" || g.Own != "system_u:object_r:svirt_image_t:s0:c1.c5" {
		t.Errorf("with a label, and files that have theirs, it is %+v", g)
	}
	for _, bad := range []string{"x", "a:b", "::", "a:b:c:", "a:b:c\n:s0", "a:b:c:s0 d", "a:b:c:s0\x00", "a:b:" + strings.Repeat("c", 300), "a b:c:d"} {
		for _, w := range []seclabel.Request{{Label: bad}, {Base: bad}} {
			if g, err := h.AssignLabel(w); !fault.Is(err, fault.Invalid) {
				t.Errorf("%q is taken: %+v, %v", bad, g, err)
			}
		}
	}
}

// Promise: I10
func TestFind_Unsupported(t *testing.T) {
	for why, change := range map[string]func(dir string) error{
		"nnp_transition": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "sys/fs/selinux/access"), []byte("fffffffe ffffffff 0 ffffffff 12 0"), 0o600)
		},
		"virtual_domain_context": func(dir string) error { return os.RemoveAll(filepath.Join(dir, "etc/selinux/targeted")) },
		"label": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "etc/selinux/targeted/contexts/virtual_image_context"), []byte("rubbish\n"), 0o600)
		},
	} {
		dir := kerneltest.Dir(t, kerneltest.SELinux)
		if err := change(dir); err != nil {
			t.Fatal(err)
		}
		if _, err := seclabel.Find(kernel.At(dir), ""); !fault.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), why) {
			t.Errorf("it does not say %s: %v", why, err)
		}
	}
	if _, err := seclabel.Find(kerneltest.Host(t, kerneltest.Laptop), ""); !fault.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), "neither") {
		t.Errorf("a host without either: %v", err)
	}
	t.Setenv("PATH", t.TempDir())
	if _, err := seclabel.Find(kerneltest.Host(t, kerneltest.AppArmor), ""); !fault.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), "apparmor_parser") {
		t.Errorf("a host without a parser: %v", err)
	}
}

func TestAssignLabel_AppArmorProfile(t *testing.T) {
	h := find(t, kerneltest.AppArmor)
	const id = "7a4b9a3e-0000-4000-8000-000000000001"
	g := name(t, h, seclabel.Request{UUID: id})
	if g.Process != "lodge-"+id || !h.HasOwnProfile(g, id) || h.HasOwnProfile(g, "other") {
		t.Errorf("it is %+v", g)
	}
	another, err := seclabel.Find(h.Root, "lab")
	if err != nil {
		t.Fatal(err)
	}
	if g := name(t, another, seclabel.Request{UUID: id}); g.Process != "lodge-lab-"+id {
		t.Errorf("another daemon's is %+v", g)
	}
	if g := name(t, h, seclabel.Request{UUID: id, Label: "made-by-hand"}); g.Process != "made-by-hand" || h.HasOwnProfile(g, id) {
		t.Errorf("with a label it is %+v", g)
	}
	for _, bad := range []string{"not-loaded", "unconfined", "/usr/sbin/chronyd", "a b", "a\nb", `"`, "a//b", "&x", ""} {
		if bad == "" {
			continue
		}
		if g, err := h.AssignLabel(seclabel.Request{UUID: id, Label: bad}); err == nil {
			t.Errorf("%q is taken: %+v", bad, g)
		}
	}
	if _, err := h.AssignLabel(seclabel.Request{UUID: id, Base: "x"}); !fault.Is(err, fault.Unsupported) {
		t.Errorf("a base is taken: %v", err)
	}
}
