package pages

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/lab/record"
)

// arms pairs every arm's loads with the first arm's, of those in guests.
func (f *facts) arms() (pairs []pair) {
	arms := f.run.Plan.InGuests()
	if len(arms) < 2 {
		return nil
	}
	first := arms[0].Name
	for _, w := range f.flows {
		if w.arm == first || w.op != all || !slices.ContainsFunc(arms, func(a record.Arm) bool { return a.Name == w.arm }) {
			continue
		}
		if base := f.find(w.step, first, w.load, w.op); base != nil {
			what := fmt.Sprintf(" of %s at %s, %s%s against %s%s", w.load, w.step, w.arm, f.remark(w.step, w.arm), first, f.remark(w.step, first))
			if w.open && base.open {
				pairs = append(pairs, pair{what: "served of offered" + what, unit: unitPart, a: w.served, b: base.served, family: "throughput"})
			} else {
				pairs = append(pairs, pair{what: "throughput" + what, unit: "1/s", a: w.rates, b: base.rates, family: "throughput"})
			}
			if len(w.slow) > 0 && len(base.slow) > 0 {
				pairs = append(pairs, timed99("p99"+what, w.slow, base.slow))
			}
		}
	}
	return pairs
}

// unitPart is of values that are a part of something.
const unitPart = "part"

// timed99 pairs 99th percentiles. One that lies among operations that failed is no time.
func timed99(what string, a, b []float64) pair {
	p := pair{what: what, unit: "s", a: a, b: b, family: "p99"}
	for _, list := range [][]float64{a, b} {
		if slices.ContainsFunc(list, func(s float64) bool { return math.IsInf(s, 1) }) {
			p.unsound = "more than 1 % of its operations failed"
		}
	}
	return p
}

// weighedArms weighs them once: the verdict and a table tell of them.
func (f *facts) weighedArms() []weighed {
	if f.armsWeighed == nil {
		f.armsWeighed = weigh(f.arms())
	}
	return f.armsWeighed
}

// verdict is what the numbers come to, in sentences.
func (f *facts) verdict() (said []string) {
	if banner := f.mechanism(); banner != "" {
		said = append(said, banner)
	}
	said = append(said, f.ended())
	said = append(said, f.went()...)
	said = append(said, f.sound()...)
	said = append(said, f.stood()...)
	said = append(said, f.fairness()...)
	said = append(said, f.winners()...)
	said = append(said, f.held()...)
	said = append(said, f.addUp()...)
	said = append(said, f.efficient()...)
	said = append(said, f.spans()...)
	said = append(said, f.done()...)
	said = append(said, findings(f.weighedArms())...)
	for i := range said {
		said[i] = plain(said[i])
	}
	return said
}

func (f *facts) ended() string {
	turns, left := len(f.run.Plan.Turns), len(f.undone())
	how := string(f.run.Outcome)
	if how == "" {
		how = "not ended: it runs, or was killed"
	}
	return fmt.Sprintf("The run is %s; %d of %s count.", how, turns-left, plural(turns, "turn"))
}

// went says what did not go well, in the words and with the status with which the command
// ends: no sentence that follows can hide it.
func (f *facts) went() (said []string) {
	told := f.run.Told()
	status := func(number int) string {
		if f.run.Outcome != record.Complete { // it ended with another
			return ""
		}
		return fmt.Sprintf(" (exit status %d)", number)
	}
	if n := len(told.Failed); n > 0 {
		said = append(said, fmt.Sprintf("Not all went well%s: %s: %s.", status(record.StatusFailed), plural(n, "failure"), someOf(told.Failed)))
		status = func(int) string { return "" }
	}
	if n := len(told.Skipped); n > 0 {
		said = append(said, fmt.Sprintf("Something was skipped that cannot be done here%s: %s: %s.", status(record.StatusSkipped), plural(n, "case"), someOf(told.Skipped)))
	}
	return said
}

// operations says how many of them failed, in the windows and beside them.
func (f *facts) operations() (said []string, done float64) {
	failed := 0.0
	for _, w := range f.flows {
		if w.op == all {
			done, failed = done+w.sum.done, failed+w.sum.errors
		}
	}
	switch {
	case failed > 0:
		said = append(said, fmt.Sprintf("%.0f operations of the measured windows failed, beside %.0f that were done. No throughput holds them, and percentiles have them as the longest.", failed, done))
	case done > 0:
		said = append(said, fmt.Sprintf("None of the %.0f operations of the measured windows failed.", done))
	}
	if f.failedBefore > 0 {
		said = append(said, fmt.Sprintf("%.0f operations failed outside of the measured windows, most likely in the warm-up. No figure holds them.", f.failedBefore))
	}
	return said, done
}

// sound says whether the figures may be believed.
func (f *facts) sound() []string {
	said, done := f.operations()
	said = append(said, f.warmth()...)
	if n := len(f.events(record.Bad, "books")); n > 0 {
		said = append(said, fmt.Sprintf("The books do not agree in %s: those figures are not to be believed.", plural(n, "case")))
	} else if len(f.books().Rows) > 0 {
		said = append(said, "Loads and servers have counted the same, but for what failed.")
	}
	for _, one := range []struct {
		kind       record.Kind
		what, text string
	}{
		{record.Bad, "clock", "%s of a guest's clock that went wrong."},
		{record.Failed, "boot", "%s of a guest that did not boot."},
		{record.Failed, "service", "%s of a service or a guest that died."},
		{record.Failed, "tuning", "%s of a setting of the host that could not be changed: that arm was not measured."},
		{record.Bad, "tuning", "%s of a setting of the host that somebody else changed meanwhile, and that was left."},
	} {
		if found := f.events(one.kind, one.what); len(found) > 0 {
			said = append(said, fmt.Sprintf(one.text, plural(len(found), "case")))
		}
	}
	return append(said, f.kept(done)...)
}

// kept says whether the scenario's bounds were.
func (f *facts) kept(done float64) []string {
	switch broken := len(f.events(record.Bad, "bound")); {
	case broken > 0:
		return []string{fmt.Sprintf("A bound was broken in %s.", plural(broken, "window"))}
	case len(f.run.Plan.Bounds) > 0 && done > 0:
		return []string{"All bounds were kept in the measured windows."}
	}
	return nil
}

// mostReasons are said of many; a table has all of them.
const mostReasons = 3

// someOf has the first of many reasons, each once.
func someOf(reasons []string) string {
	var words []string
	for _, one := range reasons {
		if !slices.Contains(words, one) {
			words = append(words, one)
		}
	}
	if more := len(words) - mostReasons; more > 0 {
		words = append(words[:mostReasons:mostReasons], fmt.Sprintf("and %d more", more))
	}
	return strings.TrimSuffix(strings.Join(words, "; "), ".")
}

// what lists the facts that figures depend on.
func (f *facts) what() (all []fact) {
	r := f.run
	add := func(name, value string) {
		if value != "" {
			all = append(all, fact{plain(name), plain(value)})
		}
	}
	add("scenario", r.Scenario.Name+", profile "+r.Scenario.Profile+", sha256 "+r.Scenario.SHA256)
	add("title", r.Scenario.Title)
	add("started", r.Started.UTC().Format("2006-01-02 15:04:05 MST"))
	if r.Ended != nil {
		add("ended", r.Ended.UTC().Format("2006-01-02 15:04:05 MST"))
	}
	add("plan", fmt.Sprintf("%s, %s, %s, %s of %s after %s", plural(len(r.Plan.Arms), "arm"), plural(len(r.Plan.Steps), "step"),
		plural(r.Plan.Repetitions, "repetition"), plural(r.Plan.Windows, "window"), seconds(r.Plan.Measure), rule(r.Plan)))
	kind := "hardware"
	if r.Host.Virtual {
		kind = "a virtual machine"
	}
	add("host", fmt.Sprintf("%s with %s (%s), %.0f GiB, Linux %s", kind, plural(r.Host.Processors, "processor"), r.Host.Processor, float64(r.Host.Memory)/(1<<30), cmp.Or(r.Host.Kernel, "of a version that its daemon does not tell")))
	for _, t := range r.Targets {
		add("target "+t.Name, described(t)+", "+t.URI)
	}
	if r.To != nil {
		add("migrated to", described(*r.To)+", "+r.To.URI)
	}
	for _, l := range r.Plan.Loads {
		add("load "+l.Name, loadWords(l))
	}
	for _, a := range r.Plan.Arms {
		where := a.Target
		if a.Native {
			where = outsideWords
		}
		add("arm "+a.Name, strings.TrimSpace(where+" "+record.Labels(a.Set).Key()))
	}
	add("image", r.Image.Digest)
	add("lab", r.Version)
	add("seed", fmt.Sprint(r.Seed))
	add("made by", r.Header.Command)
	return all
}

// loadWords explain a load.
func loadWords(l record.PlannedLoad) string {
	words := l.About
	if words == "" {
		words = fmt.Sprintf("%s, asked by %s of %s", l.Kind, l.From, l.To)
	}
	if l.Open {
		return words + "; open: by a schedule that no server slows down"
	}
	return words + "; closed: each user waits for an answer before the next operation"
}

// outsideWords say what an arm is that is at no target.
const outsideWords = "outside of a guest, on the lab's own host: no daemon, no QEMU, no accelerator"

// described says what a target is, wherever it is.
func described(t record.Target) string {
	return fmt.Sprintf("%s, libvirt %s, QEMU %s, %s", known(t.Daemon), known(t.Library), known(t.Hypervisor), known(t.Accelerator))
}

type fact struct{ Name, Value string }
