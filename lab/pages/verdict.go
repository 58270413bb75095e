package pages

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/stats"
)

// pair is one metric on two sides, each value of a repetition.
type pair struct {
	what, unit string
	a, b       []float64
	step, row  string       // where it stands in tables
	family     string       // those of one are read together
	main       bool         // it is shown where no more can be said than what was measured
	beside     bool         // each a[i] was measured beside its b[i]
	again      *stats.Ratio // of b measured a second time, by the first: A/A
	unsound    string       // why its values are not to be believed; empty if they may be
	picked     int          // out of so many pairs, for being the farthest apart; 0: it was not picked
	counted    string       // what its values are each of: "" is a repetition
}

// weighed is what came of a pair.
type weighed struct {
	pair
	stats.Comparison         // with p after Holm's correction
	why              string  // there is no verdict; empty if there is one
	noise            float64 // part by which a side differs from itself
	finding          stats.Finding
}

// weigh compares every pair. Those of a family are read together: p is Holm's.
// Where a side has too few values, or one that is zero, there is no verdict; nor
// below the noise.
func weigh(pairs []pair) []weighed {
	all := make([]weighed, len(pairs))
	families := map[string][]int{}
	for i, p := range pairs {
		all[i] = weighed{pair: p, noise: math.NaN()}
		if all[i].why = p.unable(); all[i].why != "" {
			all[i].Ratio = p.ratio()
			continue
		}
		all[i].Comparison, all[i].noise = p.compare(), p.noise()
		families[p.family] = append(families[p.family], i)
	}
	for _, members := range families {
		var p []float64
		for _, i := range members {
			p = append(p, min(1, all[i].P*float64(max(1, all[i].picked))))
		}
		for rank, corrected := range stats.Holm(p) {
			w := &all[members[rank]]
			w.P = corrected
			if w.why = w.hopeless(len(members) * max(1, w.picked)); w.why == "" {
				w.finding = w.Find(max(stats.Matters, w.noise))
			}
		}
	}
	return all
}

// unable says why a pair cannot be tested.
func (p pair) unable() string {
	wanted := enough
	if p.beside {
		wanted = enoughPairs
	}
	switch {
	case p.unsound != "":
		return p.unsound
	case len(p.a) < wanted && p.counted != "":
		return fmt.Sprintf("%s, %d are wanted", plural(len(p.a), p.counted), wanted)
	case len(p.a) < wanted || len(p.b) < wanted:
		return fmt.Sprintf("%d and %d repetitions, %d each are wanted", len(p.a), len(p.b), wanted)
	case slices.Min(p.a) <= 0 || slices.Min(p.b) <= 0:
		return "a repetition has none"
	}
	return ""
}

// hopeless says why no difference, however large, could be told from luck among
// so many that are read together.
func (p pair) hopeless(together int) string {
	least := stats.LeastUnpaired(len(p.a), len(p.b))
	if p.beside {
		least = stats.LeastPaired(len(p.a))
	}
	if p.family == "" || float64(together)*least < stats.Surely {
		return ""
	}
	return plural(len(p.a), cmp.Or(p.counted, "repetition")) + " are too few to tell luck among so many figures of a kind: repeat more often, or compare fewer steps"
}

func (p pair) compare() stats.Comparison {
	if p.beside {
		return stats.ComparePairs(p.a, p.b)
	}
	return stats.Compare(p.a, p.b)
}

func (p pair) ratio() stats.Ratio {
	if p.beside && len(p.a) == len(p.b) {
		return stats.PairedRatio(p.a, p.b)
	}
	return stats.MedianRatio(p.a, p.b)
}

// noise is the part by which a thing differs from itself. Where it was measured
// twice, that is the farther end of the interval of its ratio to itself; else
// what halves of one side differ by.
func (p pair) noise() float64 {
	switch {
	case p.again != nil:
		return max(p.again.High, 1/p.again.Low) - 1
	case p.beside:
		quotients := make([]float64, len(p.a))
		for i := range quotients {
			quotients[i] = p.a[i] / p.b[i]
		}
		return stats.Noise(quotients)
	}
	return max(stats.Noise(p.a), stats.Noise(p.b))
}

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

// words says a finding.
func (w weighed) words() string {
	return fmt.Sprintf("%s is %s: %s times (95 %% %s), p %.2g.", w.what, w.finding, number(w.Ratio.Value), interval(w.Ratio), w.P)
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

// findings says those that were found, and how many were not or could not be.
func findings(all []weighed) (said []string) {
	same := 0
	var reasons []string
	few := map[string]int{}
	for _, w := range all {
		switch {
		case w.why != "":
			if few[w.why] == 0 {
				reasons = append(reasons, w.why)
			}
			few[w.why]++
		case w.finding == stats.Same:
			same++
		default:
			said = append(said, w.words())
		}
	}
	if same > 0 {
		said = append(said, fmt.Sprintf("No difference worth a word was shown in %s of %d.", plural(same, "comparison"), len(all)))
	}
	for _, why := range reasons {
		said = append(said, fmt.Sprintf("No verdict on %s of %d: %s.", plural(few[why], "comparison"), len(all), why))
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
