package guest

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard/mounttest"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/event"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

const claimedUUID = "c0ffee00-0000-4000-8000-0000000000a6"

func bareRegistry(t *testing.T) *machine.Registry {
	t.Helper()
	dir := t.TempDir()
	records, err := store.Open(dir)
	if err == nil {
		err = errors.Join(records.Settle(), records.Close())
	}
	if err == nil {
		records, err = store.Open(dir) // one that is new might have lost something
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = records.Close() })
	r := newRegistry(machine.Config{Store: records, Events: event.NewLog(), Log: slog.New(slog.DiscardHandler), RunDir: t.TempDir()})
	t.Cleanup(func() { r.Stop(nil); r.Loops.Wait() })
	return r
}

func TestWhoeverAsksAGuestThatHasJustGoneIsGivenTheNext(t *testing.T) {
	r, asked := bareRegistry(t), 0
	var first *machine.Guest
	g, err := claimed(t.Context(), r, "passing", claimedUUID, func(g *machine.Guest) error {
		if asked++; asked == 1 {
			first = g
			if err := g.Change(t.Context(), scope.Daemon("a test"), "", func() error { forget(g); return nil }); err != nil {
				t.Fatal(err)
			}
		}
		return g.Change(t.Context(), scope.Daemon("a test"), "", func() error { return nil })
	})
	if err != nil || asked != 2 || g == first {
		t.Errorf("asked %d times, it answers %v", asked, err)
	}
	if found, err := r.ByUUID(claimedUUID); err != nil || found != g {
		t.Errorf("it is not the one that is there: %v", err)
	}
}

// A request that waits for its turn on the guest is authorized again when its turn comes. Steps that it has started
// continue.
// Promise: A1
func TestARequestIsJudgedWhenItsTurnComes(t *testing.T) {
	r := bareRegistry(t)
	g := guestOf(t, r, claimedUUID, "")
	var denied atomic.Bool
	held := scope.Daemon("a test").WithAuthorize(func(uuid string) error {
		if uuid != claimedUUID || denied.Load() {
			return fault.New(fault.Denied, fault.Call, "no")
		}
		return nil
	})
	ask := func(do machine.Work) <-chan error {
		answer := make(chan error, 1)
		go func() {
			answer <- g.Perform(t.Context(), held, "", domain.JobModify, machine.ModifyLimit, func() (machine.Work, error) { return do, nil })
		}()
		return answer
	}
	begun, end := make(chan struct{}), make(chan struct{})
	first := ask(func(ctx context.Context, sc scope.Scope) (machine.Settle, error) {
		close(begun)
		<-end
		return nil, g.Change(ctx, sc, "", func() error { return nil })
	})
	<-begun
	second := ask(func(context.Context, scope.Scope) (machine.Settle, error) {
		t.Error("what is not allowed any more is begun")
		return nil, nil
	})
	for late, waits := time.After(time.Minute), 0; waits == 0; {
		select {
		case <-late:
			t.Fatal("the second one does not wait")
		case <-time.After(time.Millisecond):
		}
		if err := g.Change(t.Context(), scope.Daemon("a test"), "", func() error { waits = len(g.Waiting); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	denied.Store(true)
	close(end)
	if err := <-first; err != nil {
		t.Errorf("the request that has begun: %v", err)
	}
	if err := <-second; !fault.Is(err, fault.Denied) {
		t.Errorf("what waited: %v", err)
	}
}

// The files of a guest that was undefined go before the next one of its UUID can make its
// own in their place.
// Promise: F24
func TestTheNextGuestWaitsForTheFilesOfTheLast(t *testing.T) {
	r := bareRegistry(t)
	dead := filepath.Join(t.TempDir(), "dead")
	if err := os.Mkdir(dead, 0o700); err != nil {
		t.Fatal(err)
	}
	leaveUndefined(r, t, undefinition{UUID: claimedUUID, NVRAM: filepath.Join(dead, "vars")})
	release, visits := mounttest.Hang(t, dead), mounttest.Visits(t, dead)
	if err := recoverUndefinitions(r); err != nil {
		t.Fatal(err)
	}
	for late := time.After(time.Minute); visits() == 0; { // the removal has not come so far
		select {
		case <-late:
			t.Fatal("the files of the last guest are not removed")
		case <-time.After(time.Millisecond):
		}
	}
	nothing := func(*machine.Guest) error { return nil }
	hurried, stop := context.WithCancelCause(t.Context())
	stop(nil)
	if _, err := claimed(hurried, r, "next", claimedUUID, nothing); err == nil {
		t.Error("the next guest is there before the files of the last have gone")
	}
	release()
	if _, err := claimed(t.Context(), r, "next", claimedUUID, nothing); err != nil {
		t.Error(err)
	}
}

// A guest that crashed and was undefined before it was started again leaves no start to the
// next one of its UUID.
func TestAnUndefinedGuestLeavesNoStartBehind(t *testing.T) {
	r := bareRegistry(t)
	noteCrash(r, claimedUUID)
	g, err := claimed(t.Context(), r, "crashed", claimedUUID, func(g *machine.Guest) error {
		return g.Change(t.Context(), scope.Daemon("a test"), "", func() error {
			g.State.Persistent = true
			return provision.Redefine(g, &domain.Definition{Name: "crashed", UUID: claimedUUID})
		})
	})
	if err == nil {
		err = Undefine(t.Context(), g, scope.Daemon("a test"), UndefineOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	var d machine.PendingStart
	if err := r.Store.Get(machine.PendingStartKind, claimedUUID, &d); !fault.Is(err, fault.NotFound) || len(r.PendingStarts.Left) > 0 {
		t.Errorf("it is still to be started: %+v, %v", d, err)
	}
}

// A start from a managed save image fails, and the store says at once that the image was not used. The start's
// resources are released after that, which may take longer than its daemon lives.
// Promise: F31
func TestAnImageThatWasNotGoneOnFromIsNotNobodysMeanwhile(t *testing.T) {
	r := bareRegistry(t)
	g := guestOf(t, r, claimedUUID, "")
	run := machine.NewInstance(machine.InstanceRecord{UUID: claimedUUID, FromManaged: true}, t.TempDir(), r.Kernel, r.Log)
	run.SaveConsumed = true
	var rec machine.Record
	run.Hold("what takes long", func(context.Context) error { return r.Store.Get(machine.Domains, claimedUUID, &rec) })
	l := &launch.Launch{Guest: g, Instance: run, From: &savestate.SavedImage{Managed: true}}
	l.Unwind(t.Context(), scope.Daemon("a test"))
	if !rec.ManagedSave {
		t.Error("the store does not know it while the rest is given back")
	}
	if err := savestate.RemoveManagedSave(t.Context(), g, scope.Daemon("a test")); err != nil {
		t.Fatal(err)
	}
	_ = g.Change(t.Context(), scope.Daemon("a test"), "", func() error {
		if savestate.SettleImage(g, run); g.Record.ManagedSave {
			t.Error("an image that was removed in between is back")
		}
		return nil
	})
}

// A start from a managed save image that ends with its daemon undoes itself before that: the image is the guest's again.
// Promise: F31
func TestAStartThatEndsWithItsDaemonKeepsTheImage(t *testing.T) {
	r := bareRegistry(t)
	g := guestOf(t, r, claimedUUID, "")
	run := machine.NewInstance(machine.InstanceRecord{UUID: claimedUUID, FromManaged: true}, t.TempDir(), r.Kernel, r.Log)
	run.SaveConsumed = true
	var undone bool
	run.Hold("something", func(context.Context) error { undone = true; return nil })
	begun := make(chan struct{})
	go func() {
		_ = g.Perform(context.WithoutCancel(t.Context()), scope.Daemon("a test"), "", domain.JobStart, 0, func() (machine.Work, error) {
			return func(ctx context.Context, sc scope.Scope) (machine.Settle, error) {
				close(begun)
				<-ctx.Done()
				(&launch.Launch{Guest: g, Instance: run, From: &savestate.SavedImage{Managed: true}}).Unwind(ctx, sc)
				return nil, context.Cause(ctx)
			}, nil
		})
	}()
	<-begun
	r.Stop(nil)
	<-g.Ended
	if !undone {
		t.Error("the daemon has ended before the start was undone")
	}
	var rec machine.Record
	if err := r.Store.Get(machine.Domains, claimedUUID, &rec); err != nil || !rec.ManagedSave {
		t.Errorf("the image has no guest: %v", err)
	}
}

// guestOf is a guest that is defined with a file of UEFI variables.
func guestOf(t *testing.T, r *machine.Registry, uuid, vars string) *machine.Guest {
	t.Helper()
	g, err := claimed(t.Context(), r, "of "+uuid, uuid, func(g *machine.Guest) error {
		return g.Change(t.Context(), scope.Daemon("a test"), "", func() error {
			g.State.Persistent = true
			d := &domain.Definition{Name: "of " + uuid, UUID: uuid}
			d.OS.NVRAM.Path = vars
			return provision.Redefine(g, d)
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// nailed makes variables that cannot be removed, not even by root.
func nailed(t *testing.T) string {
	t.Helper()
	vars := filepath.Join(t.TempDir(), "vars")
	if err := os.MkdirAll(filepath.Join(vars, "nail"), 0o700); err != nil {
		t.Fatal(err)
	}
	return vars
}

// leaveUndefined leaves what a daemon that was killed did not come to.
func leaveUndefined(r *machine.Registry, t *testing.T, u undefinition) {
	t.Helper()
	payload, err := json.Marshal(&u)
	if err != nil {
		t.Fatal(err)
	}
	rec := operation.Record{
		ID: "left", Kind: undefineKind.Name, Version: undefineKind.Version, Owner: undefinitionsOwner + u.UUID,
		Objects: []string{uuidObject(u.UUID)}, Payload: payload,
	}
	if err := (operation.Stored{Store: r.Store}).Write(rec); err != nil {
		t.Fatal(err)
	}
}

// undefinitionsLeft counts what the next daemon would find.
func undefinitionsLeft(r *machine.Registry, t *testing.T) (n int) {
	t.Helper()
	all, err := operation.Stored{Store: r.Store}.ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	for owner, its := range all {
		if strings.HasPrefix(owner, undefinitionsOwner) {
			n += len(its.Records)
		}
	}
	return n
}

// awaitUndefined waits until the next daemon would find nothing.
func awaitUndefined(r *machine.Registry, t *testing.T) {
	t.Helper()
	for late := time.After(time.Minute); undefinitionsLeft(r, t) > 0; {
		select {
		case <-late:
			t.Fatal("an undefinition is still open")
		case <-time.After(time.Millisecond):
		}
	}
}

// Promise: F24
func TestVariablesThatCannotBeRemovedAreTold(t *testing.T) {
	r := bareRegistry(t)
	vars := nailed(t)
	err := Undefine(t.Context(), guestOf(t, r, claimedUUID, vars), scope.Daemon("a test"), UndefineOptions{NVRAM: true})
	if err == nil || !strings.Contains(err.Error(), "is undefined, but its UEFI variables were not removed") || !strings.Contains(err.Error(), "remove "+vars) {
		t.Errorf("the answer is %v", err)
	}
	if g, err := r.ByUUID(claimedUUID); err == nil {
		t.Errorf("%s is still there", g.Name())
	}
	if undefinitionsLeft(r, t) > 0 {
		t.Error("the next daemon would remove files that were reported as left")
	}
}

// A client that goes just as its guest is undefined takes the variables along, as it asked.
// Promise: F24
func TestVariablesGoWithAGuestWhoseClientGoes(t *testing.T) {
	r := bareRegistry(t)
	vars := filepath.Join(t.TempDir(), "vars")
	if err := os.WriteFile(vars, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	g := guestOf(t, r, claimedUUID, vars)
	ctx, leave := context.WithCancelCause(t.Context())
	leaving := scope.Daemon("a test").WithAuthorize(func(string) error { leave(nil); return nil })
	_ = Undefine(ctx, g, leaving, UndefineOptions{NVRAM: true}) // no client waits for the answer
	awaitUndefined(r, t)
	if _, err := os.Stat(vars); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the variables are left: %v", err)
	}
	if g, err := r.ByUUID(claimedUUID); err == nil {
		t.Errorf("%s is still there", g.Name())
	}
}

// What a daemon that was killed could not remove the next one removes as soon as it can,
// unless another guest has it, or it is a new guest's of that UUID.
// Promise: F24
func TestUndefine_VariablesThatCannotBeRemovedYet(t *testing.T) {
	const otherUUID = "11111111-2222-3333-4444-555555555555"
	for name, owner := range map[string]string{"nobody has them": "", "another guest has them": otherUUID, "its successor has them": claimedUUID} {
		t.Run(name, func(t *testing.T) {
			r := bareRegistry(t)
			vars := nailed(t)
			leaveUndefined(r, t, undefinition{UUID: claimedUUID, NVRAM: vars, Held: []string{filepath.Dir(vars)}})
			if err := recoverUndefinitions(r); err != nil {
				t.Fatal(err)
			}
			leave, err := r.Removing.Lock(t.Context(), claimedUUID) // the first try has been made
			if err != nil {
				t.Fatal(err)
			}
			leave()
			if undefinitionsLeft(r, t) == 0 {
				t.Fatal("what could not be removed is forgotten")
			}
			if owner != "" {
				guestOf(t, r, owner, vars)
			}
			if err := os.Remove(filepath.Join(vars, "nail")); err != nil {
				t.Fatal(err)
			}
			awaitUndefined(r, t)
			if _, err := os.Stat(vars); (err == nil) != (owner != "") {
				t.Errorf("the variables are left: %v", err == nil)
			}
		})
	}
}

// What an earlier undefinition, which is not settled, would have removed stays when a
// later one keeps it.
// Promise: F24
func TestUndefine_KeepsWhatAnEarlierOneWouldRemove(t *testing.T) {
	r := bareRegistry(t)
	vars := nailed(t)
	leaveUndefined(r, t, undefinition{UUID: claimedUUID, NVRAM: vars})
	if err := recoverUndefinitions(r); err != nil {
		t.Fatal(err)
	}
	if err := Undefine(t.Context(), guestOf(t, r, claimedUUID, vars), scope.Daemon("a test"), UndefineOptions{KeepNVRAM: true}); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(vars, "nail")); err != nil {
		t.Fatal(err)
	}
	awaitUndefined(r, t)
	if _, err := os.Stat(vars); err != nil {
		t.Errorf("the variables have gone: %v", err)
	}
}

// A partial file of an interrupted start is removed from where it was created. A client that is restricted to
// folders may have put a symbolic link there since; the removal must not follow it.
// Promise: A3
func TestHalfVariablesAreRemovedBehindNoLink(t *testing.T) {
	r := bareRegistry(t)
	folder, others := t.TempDir(), t.TempDir()
	vars := filepath.Join(folder, "way", "vars")
	for _, dir := range []string{filepath.Dir(vars), others} {
		if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(savestate.Partial(filepath.Join(dir, "vars")), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	g := guestOf(t, r, claimedUUID, vars)
	g.Record.Fences = map[string][]string{vars: {folder}}
	g.Publish()
	cutOff := func() {
		rec := &machine.InstanceRecord{UUID: claimedUUID}
		run := machine.NewInstance(*rec, t.TempDir(), r.Kernel, r.Log)
		run.Definition = g.Inactive.Clone()
		run.Definition.OS.NVRAM.Template = "/template"
		bury(r, run, rec, false)
	}
	cutOff()
	if _, err := os.Lstat(savestate.Partial(vars)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a half-made file stays: %v", err)
	}
	if err := errors.Join(os.Remove(filepath.Dir(vars)), os.Symlink(others, filepath.Dir(vars))); err != nil {
		t.Fatal(err)
	}
	cutOff()
	if _, err := os.Lstat(savestate.Partial(filepath.Join(others, "vars"))); err != nil {
		t.Errorf("another's file was removed: %v", err)
	}
}

// A request is not executed if its client has gone before its turn. It could run after the client's next request.
func TestNothingIsDoneForWhoHasGone(t *testing.T) {
	r := bareRegistry(t)
	g, err := claimed(t.Context(), r, "busy", claimedUUID, func(*machine.Guest) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	held, hold, holder := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		holder <- g.Change(t.Context(), scope.Daemon("a test"), "", func() error { close(held); <-hold; return nil })
	}()
	<-held
	ctx, leave := context.WithCancelCause(t.Context())
	done, gone := false, make(chan error, 1)
	go func() { gone <- g.Change(ctx, scope.Daemon("a test"), "", func() error { done = true; return nil }) }()
	for late := time.After(time.Minute); len(g.Mailbox) == 0; {
		select {
		case <-late:
			t.Fatal("the request never comes")
		case <-time.After(time.Millisecond):
		}
	}
	leave(errors.New("the client has gone"))
	if err := <-gone; err == nil {
		t.Error("it is done already")
	}
	close(hold)
	if err := errors.Join(<-holder, g.Change(t.Context(), scope.Daemon("a test"), "", func() error { return nil })); err != nil {
		t.Error(err)
	}
	if done {
		t.Error("it is done although no client waits for it")
	}
}

// Until the store has one of them both names of a guest that is being renamed are its own.
func TestNobodyTakesANameAmidARename(t *testing.T) {
	r := bareRegistry(t)
	g, err := claim(r, "from", claimedUUID, true)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.AddName(g, "to"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"from", "to"} {
		if _, err := claim(r, name, "c0ffee00-0000-4000-8000-0000000000a7", true); !fault.Is(err, fault.Exists) {
			t.Errorf("another is given the name %q: %v", name, err)
		}
	}
	r.DropName("to")
	if _, err := r.ByName("to"); !fault.Is(err, fault.NotFound) {
		t.Errorf("the name is taken: %v", err)
	}
}

// What QEMU has told since it was asked counts for more than its answer.
func TestAnAnswerDoesNotOutdateWhatWasToldSince(t *testing.T) {
	r := bareRegistry(t)
	g := newGuest(r, "asked", claimedUUID)
	g.Instance = machine.NewInstance(machine.InstanceRecord{Name: "asked", UUID: claimedUUID}, t.TempDir(), r.Kernel, g.Log)
	g.Instance.Definition = &domain.Definition{Name: "asked", UUID: claimedUUID}
	g.State = lifecycle.State{Phase: domain.Paused, Reason: domain.ReasonIOError}
	meet(g, &inquiry{status: "running"}, domain.Running)
	if g.State.Phase != domain.Paused || g.State.Reason != domain.ReasonIOError {
		t.Errorf("a guest that was paused since is said to be %s (%s)", g.State.Phase, g.State.Reason)
	}
	meet(g, &inquiry{status: "running"}, domain.Paused)
	if g.State.Phase != domain.Running {
		t.Errorf("a guest that runs is said to be %s", g.State.Phase)
	}
}

// A client destroys a transient guest during its start. The answer must be that the guest has gone, as requested.
func TestATransientGuestIsDestroyedWhileItStarts(t *testing.T) {
	r := bareRegistry(t)
	g, err := claim(r, "starting", claimedUUID, true)
	if err != nil {
		t.Fatal(err)
	}
	begun, started := make(chan struct{}), make(chan error, 1)
	go func() {
		started <- g.Perform(t.Context(), scope.Daemon("a test"), lifecycle.Start, domain.JobStart, 0, func() (machine.Work, error) {
			return func(ctx context.Context, sc scope.Scope) (machine.Settle, error) {
				close(begun)
				<-ctx.Done()
				return nil, context.Cause(ctx)
			}, nil
		})
	}()
	<-begun
	if err := Destroy(t.Context(), g, scope.Daemon("a test"), false); err != nil {
		t.Errorf("who destroys it is told: %v", err)
	}
	if err := <-started; !fault.Is(err, fault.Aborted) {
		t.Errorf("who starts it is told: %v", err)
	}
	if _, err := r.ByUUID(claimedUUID); !fault.Is(err, fault.NotFound) {
		t.Errorf("it is still there: %v", err)
	}
}

// What waits for its turn with a guest that is forgotten first is not begun: the next guest of its UUID may be there.
// Promise: F36
func TestNothingIsBegunOfAGuestThatIsForgotten(t *testing.T) {
	g, begun := newGuest(bareRegistry(t), "forgotten", claimedUUID), 0
	for range 2 {
		g.Waiting = append(g.Waiting, &machine.Task{Ctx: t.Context(), Sc: scope.Daemon("a test"), Kind: domain.JobModify, Reply: make(chan error, 1), Plan: func() (machine.Work, error) {
			begun++
			forgetIfNothing(g)
			return nil, nil
		}})
	}
	if continueAfter(g); begun != 1 || len(g.Waiting) != 1 {
		t.Errorf("%d are begun, and %d wait", begun, len(g.Waiting))
	}
}

// endsLate is a context that has ended when it is asked for the second time, after the request was answered.
type endsLate struct {
	context.Context

	asked    int
	answered chan struct{}
}

func (c *endsLate) Done() <-chan struct{} {
	if c.asked++; c.asked == 1 {
		return nil
	}
	<-c.answered
	return c.answered
}

// A completed request is answered with success, and nothing is undone, even if the client's context has just
// ended.
// Promise: F36
func TestWhatIsDoneIsNoFailure(t *testing.T) {
	g := newGuest(bareRegistry(t), "asked", claimedUUID)
	for range 64 { // which of the two is seen is chance
		ctx := &endsLate{t.Context(), 0, make(chan struct{})}
		go func() {
			(<-g.Mailbox).Answer(nil)
			close(ctx.answered)
		}()
		if err := g.Change(ctx, scope.Daemon("a test"), "", func() error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
}
