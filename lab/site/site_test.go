package site

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/remote"
	"github.com/lodge-kvm/lodge/lab/experiment"
	"github.com/lodge-kvm/lodge/lab/image"
	"github.com/lodge-kvm/lodge/lab/scenario"
	"github.com/lodge-kvm/lodge/lab/target"
	"github.com/lodge-kvm/lodge/lab/target/targettest"
	"github.com/lodge-kvm/lodge/lab/workload"
)

// begin makes a site at a daemon, with its guests' files below a directory.
func begin(t *testing.T, d *targettest.Daemon) (s *Site, dir string) {
	t.Helper()
	at, err := target.Connect(t.Context(), "x", d.Listen(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(at.Close)
	dir = t.TempDir()
	return New(at, 1, nil, image.Image{Kernel: "/i/vmlinuz", Initrd: "/i/initrd", Usr: "/i/usr.erofs", Root: "/i/root.raw"}, dir), dir
}

var spec = experiment.Spec{
	Name: "lab-x-t1-web", Number: 1, Tile: 1,
	Guest: scenario.Guest{Role: "web", Count: 1, Memory: 128 * scenario.MiB, VCPUs: 1, MaxVCPUs: 1, TBCache: 64 * scenario.MiB},
}

func open(t *testing.T, s *Site) {
	t.Helper()
	if err := s.Open(t.Context(), "lab-x"); err != nil {
		t.Fatal(err)
	}
}

func TestAGuestIsSteeredByItsAgentAndLeavesNothing(t *testing.T) {
	d := &targettest.Daemon{}
	s, dir := begin(t, d)
	open(t, s)
	g, err := s.Boot(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(g.Definition(), "<name>lab-x-t1-web</name>") || g.Address() == "" {
		t.Errorf("%s: %s", g.Address(), g.Definition())
	}
	clock, err := g.Clock(t.Context())
	if err != nil || clock.At.IsZero() || clock.Up <= 0 {
		t.Errorf("its clock says %+v, %v", clock, err)
	}
	counters, err := g.Counters(t.Context())
	if err != nil || counters["cpus"] < 1 || counters["memory_total_bytes"] <= 0 {
		t.Errorf("its counters are %v, %v", counters, err)
	}
	done := int64(0)
	config := json.RawMessage(`{"duration": "200ms", "interval": "100ms"}`)
	count := func(i workload.Interval) bool {
		for _, c := range i.Ops {
			done += c.Done
		}
		return true
	}
	if err := g.Load(t.Context(), "mix-cpu", config, count); err != nil || done == 0 {
		t.Errorf("its load did %d, %v", done, err)
	}
	told := 0
	long := json.RawMessage(`{"duration": "24h", "interval": "100ms"}`)
	if err := g.Load(t.Context(), "mix-cpu", long, func(workload.Interval) bool { told++; return told < 3 }); err != nil || told < 3 {
		t.Errorf("a load of which no more was wanted told %d times, %v", told, err)
	}
	if err := g.Load(t.Context(), "none", nil, count); err == nil || !strings.Contains(err.Error(), `no load "none"`) {
		t.Errorf("a load that there is not: %v", err)
	}
	if err := g.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if left := d.Left(); len(left) > 0 {
		t.Errorf("the daemon still has %v", left)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("files are left: %v", left)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Errorf("closed twice: %v", err)
	}
}

func TestWhatADaemonDoesNotDoIsUnavailable(t *testing.T) {
	d := &targettest.Daemon{Refuse: map[int32]*remote.Error{
		xdr.ProcDomainCreateXML: {Code: 67, Message: "no such machine"}, xdr.ProcDomainSetVCPUsFlags: {Code: 67, Message: "no processors"},
	}}
	s, _ := begin(t, d)
	open(t, s)
	_, err := s.Boot(t.Context(), spec)
	if u, ok := errors.AsType[*experiment.Unavailable](err); !ok || !strings.Contains(u.Reason, "no such machine") {
		t.Errorf("a machine that it has not: %v", err)
	}
	delete(d.Refuse, xdr.ProcDomainCreateXML)
	g, err := s.Boot(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	_, err = g.Change(t.Context(), scenario.Event{Do: scenario.DoVCPUs, Guest: "web", To: "2"})
	if u, ok := errors.AsType[*experiment.Unavailable](err); !ok || !strings.Contains(u.Reason, "no processors") {
		t.Errorf("processors that it does not add: %v", err)
	}
	if err := errors.Join(g.Close(t.Context()), s.Close(t.Context())); err != nil {
		t.Error(err)
	}
}

func TestAGuestWithoutALineIsDestroyedWithItsDisks(t *testing.T) {
	d := &targettest.Daemon{Refuse: map[int32]*remote.Error{xdr.ProcDomainOpenChannel: {Code: 1, Message: "no such channel"}}}
	s, _ := begin(t, d)
	open(t, s)
	_, err := s.Boot(t.Context(), spec)
	if err == nil || !strings.Contains(err.Error(), "no such channel") {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{"DOMAIN_DESTROY lab-x-t1-web", "STORAGE_VOL_DELETE lab-x-t1-web-root.qcow2"} {
		if !slices.Contains(d.Calls(), want) {
			t.Errorf("no %s among %v", want, d.Calls())
		}
	}
}

func TestASiteThatCannotOpenLeavesNothing(t *testing.T) {
	d := &targettest.Daemon{Refuse: map[int32]*remote.Error{xdr.ProcNetworkCreateXML: {Code: 9, Message: "the bridge is taken"}}}
	s, dir := begin(t, d)
	if err := s.Open(t.Context(), "lab-x"); err == nil || !strings.Contains(err.Error(), "the bridge is taken") {
		t.Fatalf("got %v", err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 || len(d.Left()) > 0 {
		t.Errorf("left: %v and %v", left, d.Left())
	}
}

// Promise: L42
func TestCleanTakesTheRunsFilesAndNoOthers(t *testing.T) {
	d := &targettest.Daemon{Domains: []xdr.Domain{{Name: "lab-x-t1-web"}, {Name: "mine"}}}
	s, dir := begin(t, d)
	for _, name := range []string{"lab-x/1/disk.raw", "lab-y/1/disk.raw"} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for _, bad := range []string{"", ".", "..", "../lab-x", "lab-a/b", "mine"} {
		if err := Clean(t.Context(), s.target, bad, 1, filepath.Join(dir, "inner")); !fault.Is(err, fault.Invalid) {
			t.Errorf("a run named %q: %v", bad, err)
		}
	}
	if err := Clean(context.WithoutCancel(t.Context()), s.target, "lab-x", 1, dir); err != nil {
		t.Fatal(err)
	}
	left, _ := os.ReadDir(dir)
	if len(left) != 1 || left[0].Name() != "lab-y" || !slices.Equal(d.Left(), []string{"domain mine"}) {
		t.Errorf("left: %v and %v", left, d.Left())
	}
}

func TestRoomIsThatOfThisHost(t *testing.T) {
	s, dir := begin(t, &targettest.Daemon{})
	s.dir = filepath.Join(dir, "made")
	room, err := s.Room(t.Context())
	if err != nil || room.Memory == 0 || room.Disk == 0 || room.Processors != 4 || room.Translated {
		t.Errorf("%+v, %v", room, err)
	}
	if s.Describe()[0].Name != "x" {
		t.Errorf("%+v", s.Describe())
	}
}
