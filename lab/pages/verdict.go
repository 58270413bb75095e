package pages

import (
	"cmp"
	"fmt"
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
			pairs = append(pairs, pair{what: "throughput" + what, unit: "1/s", a: w.rates, b: base.rates, family: "throughput"})
			if len(w.slow) > 0 && len(base.slow) > 0 {
				pairs = append(pairs, pair{what: "p99" + what, unit: "s", a: w.slow, b: base.slow, family: "p99"})
			}
		}
	}
	return pairs
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
	said = append(said, f.sound()...)
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

// sound says whether the figures may be believed.
func (f *facts) sound() (said []string) {
	done, failed := 0.0, 0.0
	for _, w := range f.flows {
		if w.op == all {
			done, failed = done+w.sum.done, failed+w.sum.errors
		}
	}
	switch {
	case failed > 0:
		said = append(said, fmt.Sprintf("%.0f operations failed beside %.0f that were done; no throughput holds them.", failed, done))
	case done > 0:
		said = append(said, fmt.Sprintf("None of %.0f operations failed.", done))
	}
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
		{record.Bad, "bound", "%s of a bound that was broken."},
		{record.Skipped, "", "%s of something that could not be done here and was skipped."},
		{record.Failed, "boot", "%s of a guest that did not boot."},
		{record.Failed, "service", "%s of a service or a guest that died."},
		{record.Failed, "tuning", "%s of a setting of the host that could not be changed: that arm was not measured."},
		{record.Bad, "tuning", "%s of a setting of the host that somebody else changed meanwhile, and that was left."},
	} {
		if found := f.events(one.kind, one.what); len(found) > 0 {
			sentence := fmt.Sprintf(one.text, plural(len(found), "case"))
			if one.kind == record.Skipped {
				sentence = strings.TrimSuffix(sentence, ".") + ": " + reasons(found) + "."
			}
			said = append(said, sentence)
		}
	}
	if len(f.run.Plan.Bounds) > 0 && done > 0 && len(f.events(record.Bad, "bound")) == 0 {
		said = append(said, "All bounds were kept.")
	}
	return said
}

// mostReasons are said of many; a table has all of them.
const mostReasons = 3

// reasons are the words of events, each once.
func reasons(events []record.Event) string {
	var words []string
	for _, e := range events {
		if !slices.Contains(words, e.Text) {
			words = append(words, e.Text)
		}
	}
	if more := len(words) - mostReasons; more > 0 {
		words = append(words[:mostReasons], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(words, "; ")
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

// outsideWords say what an arm is that is at no target.
const outsideWords = "outside of a guest, on the lab's own host: no daemon, no QEMU, no accelerator"

// described says what a target is, wherever it is.
func described(t record.Target) string {
	return fmt.Sprintf("%s, libvirt %s, QEMU %s, %s", known(t.Daemon), known(t.Library), known(t.Hypervisor), known(t.Accelerator))
}

type fact struct{ Name, Value string }
