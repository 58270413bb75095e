package pages

import (
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/lab"
	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/stats"
)

// Compare shows what parts the run in the directory b from that in a, arm by arm
// of the same name. Runs that measured other work, or on other hosts, are refused
// with the reasons.
func Compare(a, b string, text io.Writer) error {
	first, err := load(a)
	if err != nil {
		return err
	}
	second, err := load(b)
	if err != nil {
		return err
	}
	if err := comparable(first.run, second.run); err != nil {
		return err
	}
	_, err = io.WriteString(text, beside(first, second))
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot show the comparison")
}

// comparable refuses two runs with every reason there is.
func comparable(a, b *record.Run) error {
	var why []string
	for _, reason := range record.Incomparable(&a.Header, &b.Header) {
		why = append(why, plain(reason.String()))
	}
	for _, r := range []*record.Run{a, b} {
		if r.Outcome != record.Complete {
			why = append(why, r.Dir+" is not complete")
		}
	}
	if len(why) > 0 {
		return fault.New(fault.Invalid, fault.Call, "%s and %s cannot be compared: %s", a.Dir, b.Dir, strings.Join(why, "; "))
	}
	return nil
}

// metrics pairs all that both runs have measured, the second run's first: what is
// said is of it.
func metrics(a, b *facts) (pairs []pair) {
	for _, w := range b.flows {
		base := a.find(w.step, w.arm, w.load, w.op)
		if w.op != all || base == nil {
			continue
		}
		what := fmt.Sprintf(" of %s at %s, %s", w.load, w.step, w.arm)
		pairs = append(pairs, pair{"throughput" + what, "1/s", w.rates, base.rates})
		if len(w.slow) > 0 && len(base.slow) > 0 {
			pairs = append(pairs, pair{"p99" + what, "s", w.slow, base.slow})
		}
	}
	return pairs
}

func beside(a, b *facts) string {
	var out strings.Builder
	if banner := b.mechanism(); banner != "" {
		out.WriteString(plain(banner) + "\n")
	}
	compared := weigh(metrics(a, b))
	if len(compared) == 0 {
		out.WriteString("The runs have no load in common: there is nothing to compare.\n")
	}
	for _, sentence := range findings(compared) {
		out.WriteString(plain(sentence) + "\n")
	}
	fmt.Fprintf(&out, "\nA  %s\nB  %s\n\n%s", a.about(), b.about(), compareTable(compared).Text())
	return out.String()
}

// about names a run by what may differ.
func (f *facts) about() string {
	words := []string{f.run.Dir, f.run.Started.UTC().Format("2006-01-02 15:04:05 MST")}
	for _, t := range f.run.Targets {
		words = append(words, fmt.Sprintf("%s: %s, libvirt %s, QEMU %s", t.Name, known(t.Daemon), known(t.Library), known(t.Hypervisor)))
	}
	return plain(strings.Join(words, "; "))
}

func compareTable(all []weighed) lab.Table {
	t := lab.Table{Title: "B beside A", Head: []string{"what", "A", "B", "B/A", "95 %", "effect", "p, corrected", "noise", "finding"}}
	for _, w := range all {
		show := seconds
		if w.unit != "s" {
			show = number
		}
		effect, p, finding := fmt.Sprintf("%+.2f", w.Effect), fmt.Sprintf("%.2g", w.P), w.finding.String()
		if w.why != "" {
			effect, p, finding = "–", "–", "no verdict: "+w.why
		}
		noise := "–"
		if !math.IsNaN(w.noise) {
			noise = percent(w.noise)
		}
		t.Rows = append(t.Rows, []string{
			plain(w.what), show(stats.Median(w.b)), show(stats.Median(w.a)),
			number(w.Ratio.Value), interval(w.Ratio), effect, p, noise, finding,
		})
	}
	return t
}
