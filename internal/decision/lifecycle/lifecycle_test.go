package lifecycle

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"

	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// facts are the facts by the names that the scripts use.
var facts = map[string]Fact{
	"started":         Started{Reason: domain.ReasonBooted},
	"started-paused":  Started{Reason: domain.ReasonBooted, Paused: true},
	"restored":        Started{Reason: domain.ReasonRestored},
	"restored-paused": Started{Reason: domain.ReasonRestored, Paused: true},
	"pausing-user":    Pausing{domain.ReasonUser},
	"pausing-save":    Pausing{domain.ReasonSave},
	"resuming":        Resuming{domain.ReasonUnpaused},
	"save-canceled":   Resuming{domain.ReasonSaveCanceled},
	"stopped":         Stopped{},
	"resumed":         Resumed{},
	"io-error":        Failing{domain.ReasonIOError},
	"watchdog":        Failing{domain.ReasonWatchdog},
	"destroying":      Ending{domain.ReasonDestroyed},
	"saved":           Ending{domain.ReasonSaved},
	"reboot-asked":    RebootAsked{},
	"shutdown-asked":  ShutdownAsked{},
	"powered-down":    PoweredDown{},
	"host-powerdown":  PoweredDown{ByHost: true},
	"reset-as-end":    PoweredDown{ByReset: true},
	"was-reset":       WasReset{},
	"panicked":        Panicked{},
	"dumped":          Dumped{},
	"slept":           Slept{},
	"woke":            Woke{},
	"ended":           Ended{},
	"found-running":   Found{Phase: domain.Running},
	"found-paused":    Found{Phase: domain.Paused, Reason: domain.ReasonUnknown},
	"found-full":      Found{Phase: domain.Paused, Reason: domain.ReasonIOError},
	"found-asleep":    Found{Phase: domain.PMSuspended},
}

// TestStep_Scripts follows guests through their lives: "guest" begins one, with its
// policy, and "facts" lists facts, one a line.
// Promise: F4
func TestStep_Scripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		var s State
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "guest":
				s = State{
					Phase: domain.ShutOff, Reason: domain.ReasonUnknown, Persistent: !d.HasArg("transient"),
					Policy: Policy{OnPoweroff: "destroy", OnReboot: "restart", OnCrash: "destroy"},
				}
				d.MaybeScanArgs(t, "poweroff", &s.Policy.OnPoweroff)
				d.MaybeScanArgs(t, "reboot", &s.Policy.OnReboot)
				d.MaybeScanArgs(t, "crash", &s.Policy.OnCrash)
				return show(s)
			case "facts":
				var b strings.Builder
				for name := range strings.FieldsSeq(d.Input) {
					f, ok := facts[name]
					if !ok {
						d.Fatalf(t, "unknown fact %q", name)
					}
					var effects []Effect
					s, effects = Step(s, f)
					fmt.Fprintf(&b, "%s: %s", name, show(s))
					for _, e := range effects {
						fmt.Fprintf(&b, "  %s\n", showEffect(e))
					}
				}
				return b.String()
			case "admit":
				var b strings.Builder
				for line := range strings.Lines(d.Input) {
					v := strings.TrimSpace(line)
					if err := Admit(s, Verb(v)); err != nil {
						fmt.Fprintf(&b, "%s: %v\n", v, err)
					} else {
						fmt.Fprintf(&b, "%s: yes\n", v)
					}
				}
				return b.String()
			}
			d.Fatalf(t, "unknown command %q", d.Cmd)
			return ""
		})
	})
}

func show(s State) string {
	text := fmt.Sprintf("%s (%s)", s.Phase, s.Reason)
	if s.EndFor != "" {
		text += ", ending: " + string(s.EndFor)
	}
	return text + "\n"
}

func showEffect(e Effect) string {
	switch e := e.(type) {
	case Announce:
		return fmt.Sprintf("event %s, %s", e.Change, e.Detail)
	case AnnounceReboot:
		return "event reboot"
	}
	return strings.ToLower(strings.TrimPrefix(fmt.Sprintf("%T", e), "lifecycle."))
}

// TestStep_Properties feeds guests any facts in any order.
func TestStep_Properties(t *testing.T) {
	var names []string
	for name := range facts {
		if !strings.HasPrefix(name, "found-") {
			names = append(names, name)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		policy := rapid.SampledFrom([]string{"destroy", "restart", "preserve"})
		dumping := rapid.SampledFrom([]string{"coredump-destroy", "coredump-restart"})
		s := State{
			Phase: domain.ShutOff, Reason: domain.ReasonUnknown, Persistent: rapid.Bool().Draw(t, "persistent"),
			Policy: Policy{policy.Draw(t, "poweroff"), policy.Draw(t, "reboot"), rapid.OneOf(policy, dumping).Draw(t, "crash")},
		}
		for _, name := range rapid.SliceOf(rapid.SampledFrom(names)).Draw(t, "facts") {
			before := s
			next, effects := Step(s, facts[name])
			s = next
			_, isStart := facts[name].(Started)
			if !before.Phase.Active() && !isStart && (s != before || len(effects) > 0) {
				t.Fatalf("%s did something to a guest that is shut off: %v %v", name, show(s), effects)
			}
			if _, isEnd := facts[name].(Ended); isEnd && s.Phase.Active() {
				t.Fatalf("a guest without a process is %s", s.Phase)
			}
			forgets := false
			for _, e := range effects {
				if _, ok := e.(Forget); ok {
					forgets = true
				}
				if _, ok := e.(End); ok && s.EndFor == "" {
					t.Fatalf("%s ends the process without a reason", name)
				}
			}
			if forgets && (s.Persistent || s.Phase.Active()) {
				t.Fatalf("%s forgets a guest that is %s, persistent %v", name, s.Phase, s.Persistent)
			}
			if s.Phase == domain.ShutOff && s.Reason == "" {
				t.Fatalf("%s: shut off for no reason", name)
			}
		}
	})
}
