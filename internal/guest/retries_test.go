package guest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/guest/blockjob"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// No other update runs while the state of an interrupted one is unknown. Otherwise two records would describe how
// the guest should be.
// Promise: F36
func TestUpdate_WaitsForOneThatWasCutOff(t *testing.T) {
	r := machine.NewInstance(machine.RunRecord{Name: "owing"}, t.TempDir(), kernel.Root{}, slog.New(slog.DiscardHandler))
	payload, err := json.Marshal(hotplug.UpdateOp{OfActive: fuzzedGuest, Active: fuzzedGuest})
	if err != nil {
		t.Fatal(err)
	}
	cutOff := operation.Record{ID: "a", Kind: hotplug.UpdateKind.Name, Version: hotplug.UpdateKind.Version, Objects: []string{"settings"}, Payload: payload}
	if err := bareRegistry(t).SetOperations(r, []operation.Record{cutOff}); err != nil {
		t.Fatal(err)
	}
	if err := r.Perform(t.Context(), scope.Daemon("a test"), hotplug.UpdateKind.Name, &hotplug.UpdateOp{R: r, NextActive: &domain.Definition{}}, "settings"); !fault.Is(err, fault.Busy) {
		t.Errorf("the next one is begun: %v", err)
	}
}

// The cleanup of a save after its guest's end runs only together with the release of the guest's resources. Alone
// it could hit a new run of the guest that has saved to the same path. Other cleanups are tried as before.
func TestOwed_IsNotTriedBesideTheNextRun(t *testing.T) {
	for kind, work := range map[string]operation.Work{savestate.SaveKind.Name: &savestate.SaveOp{}, hotplug.CleanupKind.Name: &hotplug.CleanupOp{}} {
		payload, err := json.Marshal(work)
		if err != nil {
			t.Fatal(err)
		}
		r := machine.NewInstance(machine.RunRecord{Name: "ended"}, t.TempDir(), kernel.Root{}, slog.New(slog.DiscardHandler))
		if err := bareRegistry(t).SetOperations(r, []operation.Record{{ID: "a", Kind: kind, Version: 1, Payload: payload}}); err != nil {
			t.Fatal(err)
		}
		tried := 0
		try := func() error { tried++; return nil }
		if err := r.Ops.Turn(t.Context(), try); err != nil || tried != 1 {
			t.Errorf("%s, while it runs: tried %d times, %v", kind, tried, err)
		}
		r.Settling.Store(true)
		if err := r.Ops.Turn(t.Context(), try); (err != nil) != (kind == savestate.SaveKind.Name) {
			t.Errorf("%s, when it has ended: tried %d times, %v", kind, tried, err)
		}
	}
}

// QEMU does not answer a reset, as when the host's storage hangs for a while. The reset is repeated by a new
// session. Otherwise the guest would be reported as running, and nothing would resume it.
// Promise: F8
func TestReset_UnansweredClosesSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, qemus := net.Pipe()
		go func() {
			fmt.Fprintln(qemus, `{"QMP":{}}`)
			for lines := bufio.NewScanner(qemus); lines.Scan(); {
				if strings.Contains(lines.Text(), "qmp_capabilities") {
					fmt.Fprintln(qemus, `{"return":{},"id":1}`)
				}
			}
		}()
		log := slog.New(slog.DiscardHandler)
		s, err := qmp.New(t.Context(), ours, log)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		r := machine.NewInstance(machine.RunRecord{Name: "stopped"}, t.TempDir(), kernel.Root{}, log)
		r.Connect(s)
		g := &machine.Guest{Reg: &machine.Registry{Life: t.Context()}, Log: log, Instance: r}
		resetMachine(g)
		late := time.After(time.Hour)
		select {
		case <-s.Done():
		case <-late:
			t.Error("the session stays, and the guest stopped")
		}
	})
}

// A save that is aborted when its image is complete is complete or none: its record says
// that it goes forward exactly where its client is told that it was done.
// Promise: F36
func TestSave_AbortedAtCompletion(t *testing.T) {
	ctx, abort := context.WithCancelCause(t.Context())
	s := &savestate.SaveOp{}
	if err := s.Complete(ctx); err != nil {
		t.Errorf("it is not complete before: %v", err)
	}
	aborted := errors.New("aborted")
	abort(aborted)
	if err := s.Complete(ctx); !errors.Is(err, aborted) {
		t.Errorf("it is complete after it was aborted: %v", err)
	}
}

// A managed save image is removed in its guest's turn. During a start from it, or at the end of a save, the image
// would reappear.
// Promise: F31
func TestRemoveImage_WaitsForGuest(t *testing.T) {
	meanwhile(t, func(t *testing.T, g *taken) {
		g.now(func() { g.Record.ManagedSave = true })
		end := g.busy(domain.JobStart)
		removed := make(chan error, 1)
		go func() { removed <- savestate.RemoveManagedSave(context.Background(), g.Guest, scope.Daemon("a test")) }()
		synctest.Wait()
		g.now(func() {
			if !g.Record.ManagedSave {
				t.Error("it is removed before")
			}
		})
		end()
		if err := <-removed; err != nil || g.View().ManagedSave {
			t.Errorf("it is there still: %v", err)
		}
	})
}

// A guest that an interrupted operation will resume is not reported as paused. A client that suspends it must wait
// for that; otherwise the guest would run after the suspend.
// Promise: F36
func TestView_WillResume(t *testing.T) {
	root := t.TempDir()
	reg := takenHost(t, root)
	for name, owe := range map[string]func(*machine.Guest){
		"a save":    func(g *machine.Guest) { cutOffSave(g) },
		"a restore": func(g *machine.Guest) { g.Instance.Resuming = true },
		"a restart": func(g *machine.Guest) { g.State.Restarting = true },
		"a panic":   func(g *machine.Guest) { g.State.Dumping = true },
		"space":     func(g *machine.Guest) { g.Instance.FullDisks = []string{"/a"} },
		"nothing":   func(*machine.Guest) {},
	} {
		synctest.Test(t, func(t *testing.T) {
			g := takeOver(t, root, reg)
			_ = g.Change(t.Context(), scope.Daemon("a test"), "", func() error {
				owe(g.Guest)
				g.Advance(lifecycle.Found{Phase: domain.Paused, Reason: domain.ReasonUser})
				return nil
			})
			if v := g.View(); v.State != domain.Paused || IsPaused(v) != (name == "nothing") {
				t.Errorf("with %s owed it is %s, and stays so: %v", name, v.State, IsPaused(v))
			}
			g.end()
		})
	}
}

// A guest to which others give other UEFI variables, as it is about to be undefined with those it has, keeps both.
// Promise: F36
func TestUndefine_OtherNVRAM(t *testing.T) {
	g := &machine.Guest{Inactive: &domain.Definition{}}
	g.Inactive.OS.NVRAM.Path = "/now"
	if err := admitUndefine(g, UndefineOptions{NVRAM: true}, "/before"); !fault.Is(err, fault.WrongState) {
		t.Errorf("it goes with those that it had: %v", err)
	}
	if err := admitUndefine(g, UndefineOptions{NVRAM: true}, "/now"); err != nil {
		t.Errorf("it does not go with those that it has: %v", err)
	}
}

// cutOffSave has a guest owe what an earlier daemon's save left. It runs in the loop.
func cutOffSave(g *machine.Guest) {
	payload, err := json.Marshal(savestate.SaveOp{MemoryImage: savestate.MemoryImage{Path: filepath.Join(g.Instance.Dir, "image"), WasRunning: true}})
	if err == nil {
		err = g.Reg.SetOperations(g.Instance, []operation.Record{{ID: "s", Kind: savestate.SaveKind.Name, Version: 1, Boot: g.Reg.Boot, Payload: payload}})
	}
	if err != nil {
		panic(err)
	}
}

// A step that is tried again and again leaves one cleanup.
func TestCleanup_IsBegunOnce(t *testing.T) {
	r := machine.NewInstance(machine.RunRecord{Name: "owing"}, t.TempDir(), kernel.Root{}, slog.New(slog.DiscardHandler))
	if err := bareRegistry(t).SetOperations(r, nil); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		c := &hotplug.CleanupOp{R: r, Release: func(context.Context) error { return errors.New("not now") }}
		if err := blockjob.BeginCleanup(r, c, blockjob.ImageObject(1)); err != nil {
			t.Fatal(err)
		}
	}
	if all := r.Ops.Operations(); len(all) != 1 {
		t.Errorf("%d cleanups are open", len(all))
	}
}
