package guest

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// What a guest, its agent and its QEMU do while the daemon is at something else of that guest's.

// meanwhile has something looked at of a guest that runs.
func meanwhile(t *testing.T, look func(*testing.T, *taken)) {
	t.Helper()
	root := t.TempDir()
	c := takenHost(t, root)
	synctest.Test(t, func(t *testing.T) {
		g := takeOver(t, root, c)
		look(t, g)
		g.end()
	})
}

// now runs a check in the guest's loop.
func (g *taken) now(look func()) {
	_ = g.Change(context.Background(), scope.Daemon("a test"), "", func() error { look(); return nil })
}

// busy keeps the guest's turn until it is told to end.
func (g *taken) busy(kind domain.JobKind) (end func()) {
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		err := g.MoveMemory(context.Background(), scope.Daemon("a test"), lifecycle.Change, kind, func(*machine.Progress) (machine.Work, error) {
			return func(context.Context, scope.Scope) (machine.Settle, error) { <-over; return nil, nil }, nil
		})
		if err != nil {
			g.t.Error(err)
		}
	}()
	synctest.Wait()
	return func() { close(over); <-done }
}

// says has its QEMU say something, and waits until it is heard.
func (g *taken) says(event, data string) {
	g.play(`{"event":"` + event + `","data":` + data + `,"timestamp":{"seconds":1,"microseconds":1}}`)
	synctest.Wait()
}

// A guest that its user suspends stays so also where a disk that is full has paused it by then: it does not
// go on when there is space.
// Promise: S11
func TestSuspend_WhileDiskFull(t *testing.T) {
	meanwhile(t, func(t *testing.T, g *taken) {
		end := g.busy(domain.JobDump)
		suspended := make(chan error, 1)
		go func() { suspended <- Suspend(context.Background(), g.Guest, scope.Daemon("a test")) }()
		synctest.Wait()
		g.says("BLOCK_IO_ERROR", `{"device":"","node-name":"libvirt-1-format","action":"stop","nospace":true}`)
		g.says("STOP", "{}")
		end()
		if err := <-suspended; err != nil {
			t.Fatal(err)
		}
		provision.ResumeWithSpace(t.Context(), g.Guest, scope.Daemon("a test"))
		g.now(func() {
			if g.State.ResumeFor != "" || len(g.run.FullDisks) > 0 {
				t.Errorf("it is let go on (%q), or waits for space: %q", g.State.ResumeFor, g.run.FullDisks)
			}
		})
	})
}

// A guest that is being restarted, and runs then, is not said to be suspended.
// Promise: F36
func TestSuspend_WhileRestarted(t *testing.T) {
	meanwhile(t, func(t *testing.T, g *taken) {
		g.now(func() { g.State.Rebooting = true })
		g.says("SHUTDOWN", `{"guest":true,"reason":"guest-shutdown"}`) // and is told to go on
		if err := Suspend(context.Background(), g.Guest, scope.Daemon("a test")); !fault.Is(err, fault.Busy) {
			t.Errorf("its user is told: %v", err)
		}
		g.says("RESUME", "{}")
		if err := Suspend(context.Background(), g.Guest, scope.Daemon("a test")); err != nil {
			t.Errorf("after that: %v", err)
		}
	})
}

// Nor is one that has panicked, and is restarted when that has been dumped.
// Promise: F36
func TestSuspend_AfterPanicBeforeRestart(t *testing.T) {
	meanwhile(t, func(t *testing.T, g *taken) {
		g.now(func() { g.State.Policy.OnCrash = "coredump-restart" })
		end := g.busy(domain.JobModify) // the dump waits, and the steps after it
		g.says("GUEST_PANICKED", `{"action":"pause"}`)
		suspended := make(chan error, 1)
		go func() { suspended <- Suspend(context.Background(), g.Guest, scope.Daemon("a test")) }()
		synctest.Wait()
		end()
		if err := <-suspended; !fault.Is(err, fault.Busy) {
			t.Errorf("its user is told: %v", err)
		}
	})
}

// Who waits for the guest's agent in vain, as another's command takes its time, leaves that its answer.
// Promise: F36
func TestAgent_SecondCommandKeepsFirst(t *testing.T) {
	meanwhile(t, func(t *testing.T, g *taken) {
		g.play("guest-fsfreeze-freeze ") // it does not answer
		g.attend()
		line, frozen := g.run.Agent.LoadOrStore(nil), make(chan error, 1)
		go func() {
			_, err := provision.Freeze(context.Background(), g.Guest, scope.Daemon("a test"), nil)
			frozen <- err
		}()
		synctest.Wait()
		if _, err := provision.AgentHostname(context.Background(), g.Guest, scope.Daemon("a test")); !fault.Is(err, fault.Busy) {
			t.Errorf("another is told: %v", err)
		}
		if len(frozen) > 0 || g.run.Agent.LoadOrStore(nil) != line {
			t.Error("the command that was under way has lost its agent")
		}
		if err := <-frozen; !fault.Is(err, fault.Unresponsive) {
			t.Errorf("it ended with: %v", err)
		}
	})
}

// A guest that has panicked is not restarted during a save, however long the save takes. A restart would change
// its disks after the image was written.
// Promise: F31
func TestPanic_DuringSave(t *testing.T) {
	meanwhile(t, func(t *testing.T, g *taken) {
		g.now(func() { g.State.Policy.OnCrash = "coredump-restart" })
		end := g.busy(domain.JobSave)
		g.says("GUEST_PANICKED", `{"action":"pause"}`)
		pass(time.Hour)
		g.now(func() {
			if !g.State.Dumping || g.State.Restarting {
				t.Error("it is restarted")
			}
		})
		end()
		pass(2 * machine.MaxReleasePause)
		g.now(func() {
			if g.State.Dumping || !g.State.Restarting {
				t.Error("it is not restarted after that")
			}
		})
	})
}

// A device is not attached under the name of one that QEMU has not released yet. A repeated removal would remove
// the backend of the new device.
// Promise: F36
func TestAttach_AliasStillInCleanup(t *testing.T) {
	meanwhile(t, func(t *testing.T, g *taken) {
		if _, err := g.Reg.Emulators.Known(takenEmulator); err != nil {
			t.Skip("no QEMU: ", err)
		}
		var left *operation.Operation
		g.now(func() {
			rest := &hotplug.CleanupOp{R: g.run, Alias: "net1", Objects: []hotplug.UndoCommand{{Command: "netdev_del", Args: json.RawMessage(`{"id":"hostnet1"}`)}}}
			op, err := g.run.Ops.ForceBegin(scope.Daemon("a test"), hotplug.CleanupKind.Name, rest, operation.Record{Objects: rest.QEMUObjects()})
			if err != nil {
				t.Error(err)
			}
			left = op
		})
		plugged := make(chan error, 1)
		go func() { plugged <- requests["plug-net"](context.Background(), g) }()
		synctest.Wait()
		if has := g.View().Active.Devices.ByAlias("net1") != nil; has {
			t.Error("one is plugged in")
		}
		if err := left.Run(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-plugged; err != nil {
			t.Errorf("QEMU has let go, and none is plugged in: %v", err)
		}
	})
}

// crashed is a guest that is to be started again after a crash.
func crashed(r *machine.Registry, name string) *machine.Guest {
	g := newGuest(r, name, claimedUUID)
	g.Inactive = &domain.Definition{OnCrash: "restart"}
	r.Boot = "this"
	recordCrash(r, g.UUID)
	startLoop(r, g)
	return g
}

// A guest that is to be started again after a crash is that also where something else is done to it as its
// daemon begins.
// Promise: F36
func TestRestart_AfterOtherWork(t *testing.T) {
	r := bareRegistry(t)
	g := crashed(r, "crashed")
	over, done := make(chan struct{}), make(chan error, 1)
	begun := make(chan struct{})
	go func() {
		done <- g.Perform(t.Context(), scope.Daemon("a test"), "", domain.JobModify, machine.ModifyLimit, func() (machine.Work, error) {
			return func(context.Context, scope.Scope) (machine.Settle, error) { close(begun); <-over; return nil, nil }, nil
		})
	}()
	<-begun
	autostartGuest(t.Context(), g, scope.Daemon("a test"))
	waits := false
	_ = g.Change(t.Context(), scope.Daemon("a test"), "", func() error {
		waits = g.Restarts.Cancel != nil
		g.CancelRestart()
		return nil
	})
	close(over)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if !waits {
		t.Error("it is not started again")
	}
}

// A guest is destroyed just as its start fails. The start must not be repeated.
// Promise: F36
func TestRestart_CancelledWhileStarting(t *testing.T) {
	r := bareRegistry(t)
	g := crashed(r, "failing")
	begun, over, started, destroyed := make(chan struct{}), make(chan struct{}), make(chan error, 1), make(chan error, 1)
	go func() {
		started <- g.Perform(t.Context(), scope.Daemon("a test"), "", domain.JobStart, 0, func() (machine.Work, error) {
			restartGuest(g, "it crashed")
			return func(context.Context, scope.Scope) (machine.Settle, error) {
				close(begun)
				<-over
				return nil, machine.ErrReleaseFailed
			}, nil
		})
	}()
	<-begun
	go func() { destroyed <- Destroy(t.Context(), g, scope.Daemon("a test"), false) }()
	for asked := 0; asked == 0; {
		_ = g.Change(t.Context(), scope.Daemon("a test"), "", func() error { asked = len(g.Destroyers); return nil })
	}
	close(over)
	if err := <-started; !errors.Is(err, machine.ErrReleaseFailed) {
		t.Fatal(err)
	}
	if err := <-destroyed; err != nil {
		t.Fatal(err)
	}
	if _, due := r.IsStartPending(g.UUID); due || g.View().StartPending {
		t.Error("it was destroyed, and is to be started again")
	}
}
