package storm

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/remote"
)

func options(t *testing.T, plan []Step, targets ...Target) Options {
	return Options{
		Targets: targets, Plan: plan, Repeats: 1, Clients: 3, Patience: 20 * time.Second, Window: 20 * time.Millisecond,
		Seed: 42, Directory: t.TempDir(), Command: "go test", Log: slog.New(slog.DiscardHandler),
	}
}

// do makes a run and looks that nothing of it is left in its directory.
func do(ctx context.Context, t *testing.T, o Options) (*Run, error) {
	t.Helper()
	run, err := Do(ctx, o)
	if left, failure := os.ReadDir(o.Directory); failure != nil || len(left) > 0 {
		t.Errorf("left in the directory: %v, %v", left, failure)
	}
	return run, err
}

func TestTargetsTakeTurnsInAnOrderThatTheSeedGives(t *testing.T) {
	const repeats, guests = 6, 2
	order := func(seed uint64) []string {
		a, b, c := newFake(t, "a"), newFake(t, "b"), newFake(t, "c")
		b.turns, c.turns = a.turns, a.turns
		o := options(t, []Step{{Start, guests, 0}}, a.target(), b.target(), c.target())
		o.Repeats, o.Seed = repeats, seed
		if _, err := do(t.Context(), t, o); err != nil {
			t.Fatal(err)
		}
		for _, f := range []*fake{a, b, c} {
			f.leftAlone()
		}
		started := (*a.turns)[3*warmUps:]
		var turns []string
		for i := 0; i < len(started); i += guests {
			if started[i] != started[i+1] {
				t.Errorf("the turns of %s and %s overlap", started[i], started[i+1])
			}
			turns = append(turns, started[i])
		}
		return turns
	}
	first := order(1)
	if len(first) != 3*repeats {
		t.Fatalf("turns %v", first)
	}
	repetitions := map[string]bool{}
	for one := range slices.Chunk(first, 3) {
		repetitions[strings.Join(one, "")] = true
		if all := slices.Sorted(slices.Values(one)); !slices.Equal(all, []string{"a", "b", "c"}) {
			t.Errorf("in one repetition: %v", one)
		}
	}
	if len(repetitions) < 2 {
		t.Errorf("every repetition has the same order %v", first)
	}
	if again := order(1); !slices.Equal(again, first) {
		t.Errorf("the same seed gives %v and then %v", first, again)
	}
	if other := order(2); slices.Equal(other, first) {
		t.Error("another seed gives the same order")
	}
}

func TestEveryStormIsRecordedWholeAndCallByCall(t *testing.T) {
	f := newFake(t, "a")
	o := options(t, []Step{{Start, 5, 0}, {Define, 3, 2}, {Save, 4, 0}, {Same, 1, 0}, {Connect, 1, 0}}, f.target())
	run, err := do(t.Context(), t, o)
	if err != nil || run.End.Interrupted != "" || run.Skipped != nil || run.Blocked != nil {
		t.Fatalf("%v, skipped %v, blocked %v", err, run.Skipped, run.Blocked)
	}
	f.leftAlone()
	for _, want := range []struct {
		scenario Scenario
		metric   Metric
		calls    int
	}{
		{Start, MetricDefine, 5},
		{Start, MetricStart, 5},
		{Start, MetricDestroy, 5},
		{Start, MetricUndefine, 5},
		{Define, MetricDefine, 3},
		{Define, MetricUndefine, 3},
		{Save, MetricSave, 4},
		{Save, MetricRestore, 4},
	} {
		i := slices.IndexFunc(run.Samples, func(s Sample) bool { return s.Scenario == want.scenario && s.Metric == want.metric })
		if i < 0 || run.Samples[i].Value <= 0 || run.Samples[i].Unit != Seconds || run.Samples[i].Target != "a" || run.Samples[i].Repeat != 1 {
			t.Errorf("%s: no time of all of %s: %+v", want.scenario, want.metric, run.Samples)
		}
		i = slices.IndexFunc(run.Calls, func(c Calls) bool { return c.Scenario == want.scenario && c.Metric == want.metric })
		if i < 0 || len(run.Calls[i].Took) != want.calls || run.Calls[i].Outcome != Done {
			t.Errorf("%s: not each time of %s", want.scenario, want.metric)
		}
	}
	conflicts := slices.ContainsFunc(run.Calls, func(c Calls) bool {
		return c.Scenario == Same && c.Outcome == Conflict && c.Code == codeOperationInvalid
	})
	if refused := slices.ContainsFunc(run.Calls, func(c Calls) bool { return c.Outcome == Refused }); !conflicts || refused {
		t.Errorf("rivals for a guest: conflicts %v, refused %v", conflicts, refused)
	}
	for _, path := range []string{"run.ndjson", "run.ndjson.gz"} {
		path = filepath.Join(t.TempDir(), path)
		if err := run.Save(path); err != nil {
			t.Fatal(err)
		}
		back, err := Load(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(run, back); diff != "" {
			t.Errorf("%s differs: %s", path, diff)
		}
	}
	if text := run.Text(); !strings.Contains(text, "start     5       0      destroy") {
		t.Errorf("the table says\n%s", text)
	}
}

func TestABlockedDaemonIsRecordedAndTheRestGoesOn(t *testing.T) {
	stuck, well := newFake(t, "stuck"), newFake(t, "well")
	released := make(chan struct{})
	stuck.before = func(proc int32, guest string) error {
		if proc == xdr.ProcDomainManagedSave && strings.HasSuffix(guest, "-0001") {
			<-released
			return &remote.Error{Code: codeOperationAborted, Domain: 10, Message: "too late"}
		}
		return nil
	}
	o := options(t, []Step{{Save, 3, 0}, {Start, 3, 0}}, stuck.target(), well.target())
	t.Cleanup(func() { close(released) }) // before the daemons' end is awaited
	o.Patience = 300 * time.Millisecond
	run, err := do(t.Context(), t, o)
	if err != nil {
		t.Fatal(err)
	}
	stuck.leftAlone()
	well.leftAlone()
	if len(run.Blocked) != 1 || run.Blocked[0].Target != "stuck" || run.Blocked[0].Metric != MetricSave || run.Blocked[0].After < 0.3 {
		t.Errorf("blocked %+v", run.Blocked)
	}
	if !slices.ContainsFunc(run.Calls, func(c Calls) bool { return c.Target == "stuck" && c.Outcome == Cut && c.Took[0] >= 300_000 }) {
		t.Error("the time of the call that was cut is not kept")
	}
	for _, target := range []string{"stuck", "well"} {
		if !slices.ContainsFunc(run.Samples, func(s Sample) bool { return s.Target == target && s.Scenario == Start && s.Metric == MetricDestroy }) {
			t.Errorf("%s had no more turns", target)
		}
	}
	if !strings.Contains(run.Text(), "stuck, save of 3 guests with 0 disks, save: still blocked after 0 s") {
		t.Errorf("the table says\n%s", run.Text())
	}
}

// Whoever interrupts does so during a call, which the daemon still ends.
func TestNothingIsLeftAfterAnInterrupt(t *testing.T) {
	for name, proc := range map[string]int32{
		"define": xdr.ProcDomainDefineXML, "start": xdr.ProcDomainCreateWithFlags, "destroy": xdr.ProcDomainDestroy, "save": xdr.ProcDomainManagedSave,
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, "a")
			ctx, cancel := context.WithCancelCause(t.Context())
			enough := errors.New("enough")
			f.before = func(called int32, guest string) error {
				if called == proc && strings.HasSuffix(guest, "-0003") {
					cancel(enough)
				}
				return nil
			}
			run, err := do(ctx, t, options(t, []Step{{Save, 6, 0}, {Start, 6, 0}}, f.target()))
			if !errors.Is(err, enough) || run == nil || run.End.Interrupted == "" {
				t.Errorf("got %v, %+v", err, run)
			}
			f.leftAlone()
			if slices.ContainsFunc(run.Samples, func(s Sample) bool { return s.Scenario == Start }) {
				t.Error("the run went on")
			}
		})
	}
}

func TestRefusalsAreKeptWithTheirReason(t *testing.T) {
	f := newFake(t, "a")
	f.before = func(proc int32, guest string) error {
		if proc == xdr.ProcDomainCreateWithFlags && strings.HasSuffix(guest, "-0002") {
			return &remote.Error{Code: 1, Domain: 10, Message: "broken on purpose"}
		}
		return nil
	}
	run, err := do(t.Context(), t, options(t, []Step{{Start, 4, 0}}, f.target()))
	if err != nil {
		t.Fatal(err)
	}
	f.leftAlone()
	i := slices.IndexFunc(run.Calls, func(c Calls) bool { return c.Outcome == Refused })
	if i < 0 || run.Calls[i].Code != 1 || !strings.Contains(run.Calls[i].Text, "broken on purpose") {
		t.Errorf("calls %+v", run.Calls)
	}
	if len(run.Skipped) != 1 || !strings.Contains(run.Skipped[0].Reason, "3 of them well") {
		t.Errorf("skipped %+v", run.Skipped)
	}
	if slices.ContainsFunc(run.Samples, func(s Sample) bool { return s.Metric == MetricStart }) {
		t.Error("a storm that did not go well has a time")
	}
}

func TestATargetThatKeepsGuestsHasNoMoreTurns(t *testing.T) {
	f := newFake(t, "a")
	f.before = func(proc int32, guest string) error {
		if proc == xdr.ProcDomainUndefineFlags && strings.HasSuffix(guest, "-0003") {
			return &remote.Error{Code: 1, Domain: 10, Message: "broken on purpose"}
		}
		return nil
	}
	o := options(t, []Step{{Define, 4, 0}, {Start, 2, 0}}, f.target())
	run, err := do(t.Context(), t, o)
	if !errors.Is(err, errLeft) || !strings.Contains(err.Error(), "broken on purpose") {
		t.Errorf("got %v", err)
	}
	if len(run.Skipped) != 2 || slices.ContainsFunc(run.Samples, func(s Sample) bool { return s.Scenario == Start }) {
		t.Errorf("skipped %+v", run.Skipped)
	}
}

func TestWhatAHostCannotCarryIsRefusedWithTheSum(t *testing.T) {
	f := newFake(t, "a")
	run, err := do(t.Context(), t, options(t, []Step{{Save, 1 << 20, 0}, {Start, 1, 0}}, f.target()))
	if err != nil {
		t.Fatal(err)
	}
	if len(run.Skipped) != 1 || !strings.Contains(run.Skipped[0].Reason, "1048576 guests of 100 MiB each and a reserve of 1024 MiB need") {
		t.Errorf("skipped %+v", run.Skipped)
	}
	f.leftAlone()
}
