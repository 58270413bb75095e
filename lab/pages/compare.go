package pages

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab"
	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/stats"
)

// Comparing says how runs are compared.
type Comparing struct {
	// AcrossHosts sets runs of different hosts beside each other, too: their ratios
	// alone, because the hosts may be what parts them.
	AcrossHosts bool
	// All shows every figure, also where there is a verdict on none of them.
	All  bool
	Page string // file of a page into which it is put, between the scenario's marks; may be empty
}

// Compare shows every figure of one side beside the same of another: of two runs,
// the second beside the first; of one run, its other targets beside the first one,
// repetition by repetition. A target that has the first one's address is the first
// one measured again, and tells the noise. What ran outside of a guest is on no side;
// of two runs it tells how the host itself has changed. What measured other work, or
// on other hosts, is refused with the reasons.
func Compare(dirs []string, how Comparing, text io.Writer) error {
	var runs []*facts
	for _, dir := range dirs {
		f, err := load(dir)
		if err != nil {
			return err
		}
		runs = append(runs, f)
	}
	said := comparison{all: how.All}
	var err error
	if len(runs) == 1 {
		err = said.within(runs[0])
	} else {
		err = said.apart(runs[0], runs[1], how.AcrossHosts)
	}
	if err != nil {
		return err
	}
	if _, err := io.WriteString(text, said.text()); err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot show the comparison")
	}
	if how.Page == "" {
		return nil
	}
	return lab.IntoPage(how.Page, runs[0].run.Scenario.Name, said.markdown())
}

// comparison is what is said: sentences, and tables with every figure, or with the
// main ones where no more can be said of any.
type comparison struct {
	all    bool // every figure in any case
	said   []string
	what   []fact
	tables []lab.Table
}

func (c *comparison) text() string {
	var out strings.Builder
	for _, sentence := range c.said {
		out.WriteString(plain(sentence) + "\n")
	}
	out.WriteString("\n")
	for _, one := range c.what {
		fmt.Fprintf(&out, "%-12s  %s\n", one.Name, one.Value)
	}
	for _, t := range c.tables {
		out.WriteString("\n" + t.Text())
	}
	return explained(out.String())
}

func (c *comparison) markdown() string {
	var out strings.Builder
	for _, sentence := range c.said {
		out.WriteString("- " + lab.Inline(plain(sentence)) + "\n")
	}
	out.WriteString("\n")
	for _, one := range c.what {
		fmt.Fprintf(&out, "- %s: %s\n", lab.Inline(one.Name), lab.Inline(one.Value))
	}
	for _, t := range c.tables {
		out.WriteString("\n" + t.Markdown())
	}
	return out.String()
}

// refuse makes an error of every reason there is.
func refuse(a, b string, why []string) error {
	if len(why) == 0 {
		return nil
	}
	return fault.New(fault.Invalid, fault.Call, "%s and %s cannot be compared: %s", a, b, strings.Join(why, "; "))
}

// comparable refuses two runs with every reason there is. Whether only their hosts
// differ is told where that is allowed.
func comparable(a, b *record.Run, acrossHosts bool) (hosts []string, err error) {
	var why []string
	for _, reason := range record.Incomparable(&a.Header, &b.Header) {
		if reason.Host && acrossHosts {
			hosts = append(hosts, plain(reason.String()))
			continue
		}
		why = append(why, plain(reason.String()))
	}
	for _, r := range []*record.Run{a, b} {
		if r.Outcome != record.Complete {
			why = append(why, r.Dir+" is not complete")
		}
	}
	return hosts, refuse(a.Dir, b.Dir, why)
}

// apart compares the run b with the run a, arm by arm of the same name.
func (c *comparison) apart(a, b *facts, acrossHosts bool) error {
	hosts, err := comparable(a.run, b.run, acrossHosts)
	if err != nil {
		return err
	}
	c.begin(b)
	for _, one := range []struct {
		words string
		arms  func(*facts) []record.Arm
	}{
		{"", func(f *facts) []record.Arm { return f.run.Plan.InGuests() }},
		{" outside of guests", func(f *facts) []record.Arm { return f.run.Plan.Outside() }},
	} {
		if len(one.arms(a))+len(one.arms(b)) == 0 {
			continue
		}
		first, err := a.whole("A"+one.words, one.arms(a))
		if err != nil {
			return err
		}
		second, err := b.whole("B"+one.words, one.arms(b))
		if err != nil {
			return err
		}
		pairs, alone := contrast(first, second, nil, false)
		c.add(pairs, alone, strings.Join(hosts, "; "), first, second)
	}
	c.said = append(c.said, a.busy("A"), b.busy("B"))
	c.said = slices.DeleteFunc(c.said, func(s string) bool { return s == "" })
	c.what = append(c.what, fact{"A", a.about()}, fact{"B", b.about()})
	return nil
}

// within compares the targets of a run with the first of them.
func (c *comparison) within(f *facts) error {
	if f.run.Outcome != record.Complete {
		return fault.New(fault.Invalid, fault.Call, "the run in %s is not complete", f.run.Dir)
	}
	targets := f.run.Targets
	if len(targets) < 2 {
		return fault.New(fault.Invalid, fault.Call, "the run in %s has one target: name another run, or run it with another --target beside", f.run.Dir)
	}
	sides, err := f.sides()
	if err != nil {
		return err
	}
	var again *side
	for i, t := range targets[1:] {
		if t.URI == targets[0].URI {
			again = sides[i+1]
		}
	}
	c.begin(f)
	if outside := f.run.Plan.Outside(); len(outside) > 0 {
		c.said = append(c.said, fmt.Sprintf("Left out of it is %s, which ran outside of a guest and is no daemon's: lodge lab report tells the efficiency.", outside[0].Name))
	}
	if again == nil {
		c.said = append(c.said, fmt.Sprintf("No target was measured twice: the noise is what halves of the figures differ by. A target more with the address of %s would tell it better.", targets[0].Name))
	} else {
		c.said = append(c.said, fmt.Sprintf("%s is %s measured once more: how the two differ is the noise, below which nothing is a finding.", again.name, targets[0].Name))
	}
	for i, t := range targets[1:] {
		if why := record.Apart(targets[0], t); len(why) > 0 {
			return refuse(targets[0].Name, t.Name, why)
		}
		noise := again
		if sides[i+1] == again {
			noise = nil // it is not its own measure
		}
		pairs, alone := contrast(sides[0], sides[i+1], noise, true)
		c.add(pairs, alone, "", sides[0], sides[i+1])
	}
	if busy := f.busy("the run"); busy != "" {
		c.said = append(c.said, busy)
	}
	c.what = append(c.what, f.what()...)
	return nil
}

func (c *comparison) begin(f *facts) {
	if banner := f.mechanism(); banner != "" {
		c.said = append(c.said, banner)
	}
}

// add puts what came of pairs into words and tables, one for each step. Across
// hosts there are ratios and no verdict.
func (c *comparison) add(pairs []pair, alone []string, hosts string, first, second *side) {
	for i := range pairs {
		if hosts != "" {
			pairs[i].unsound = "the hosts differ (" + hosts + ")"
		}
	}
	title, compared := second.name+" beside "+first.name, weigh(pairs)
	table := compareTable
	switch why := undecided(compared); {
	case len(compared) == 0:
		c.said = append(c.said, title+": nothing was measured on both sides.")
	case why != "" && !c.all:
		c.said = append(c.said, fmt.Sprintf("%s: No verdict on any of %s: %s. The main ones follow; --all shows every one.", title, plural(len(compared), "figure"), why))
		table = func(title string, all []weighed) lab.Table { return mainTable(title, first.name, second.name, all) }
		compared = notable(compared)
	default:
		for _, sentence := range findings(compared) {
			c.said = append(c.said, title+": "+sentence)
		}
		if left := len(compared) - len(notable(compared)); left > 0 && !c.all {
			c.said = append(c.said, fmt.Sprintf("%s: %s without a verdict are not shown, but with --all.", title, plural(left, "figure")))
			compared = notable(compared)
		}
	}
	if len(alone) > 0 {
		c.said = append(c.said, fmt.Sprintf("%s: %s measured on one side only: %s.", title, plural(len(alone), "figure"), strings.Join(alone[:min(len(alone), 5)], "; ")))
	}
	c.said = append(c.said, restless(title, first, second)...)
	c.tables = append(c.tables, stepTables(title, compared, table)...)
}

// notable are the figures that have a verdict, and the main ones.
func notable(all []weighed) (some []weighed) {
	for _, w := range all {
		if w.main || w.why == "" {
			some = append(some, w)
		}
	}
	return some
}

// undecided is the one reason for which there is a verdict on none of many figures;
// empty if there are several, or a verdict. That some have no ratio is no reason.
func undecided(all []weighed) (why string) {
	for _, w := range all {
		switch {
		case w.why == noRatio:
		case w.why == "" || why != "" && w.why != why:
			return ""
		default:
			why = w.why
		}
	}
	return why
}

// restless says on which side loads were measured that still changed.
func restless(title string, sides ...*side) (said []string) {
	for _, s := range sides {
		if len(s.remarks) > 0 {
			said = append(said, fmt.Sprintf("%s: at %s the loads never became steady in %s.", title, s.name, plural(len(s.remarks), "step")))
		}
	}
	return said
}

// busy tells whether other work was going on when a run began.
func (f *facts) busy(what string) string {
	h := f.run.Host
	if h.Load <= float64(h.Processors)/2 {
		return ""
	}
	return fmt.Sprintf("The machine was busy: when %s began, %.1f processes wanted its %s already. Times are too long and noise is large.", what, h.Load, plural(h.Processors, "processor"))
}

// about names a run by what may differ.
func (f *facts) about() string {
	words := []string{f.run.Dir, f.run.Started.UTC().Format("2006-01-02 15:04:05 MST")}
	for _, t := range f.run.Targets {
		words = append(words, fmt.Sprintf("%s: %s, libvirt %s, QEMU %s", t.Name, known(t.Daemon), known(t.Library), known(t.Hypervisor)))
	}
	return plain(strings.Join(words, "; "))
}

// spelt writes a value with its unit.
func spelt(value float64, unit string) string {
	switch unit {
	case "s":
		return seconds(value)
	case "bytes":
		return number(value/(1<<20)) + " MiB"
	case "bytes/s":
		return number(value/(1<<20)) + " MiB/s"
	case unitPart:
		return percent(value)
	}
	return strings.TrimSpace(number(value) + " " + unit)
}

// compareTable has a row for each that was compared.
func compareTable(title string, all []weighed) lab.Table {
	t := lab.Table{Title: title, Head: []string{"what", "A", "B", "B/A", "95 %", "effect", "p, corrected", "noise", "finding"}}
	for _, w := range all {
		t.Rows = append(t.Rows, w.cells())
	}
	return t
}

// mainTable is one for where there is no verdict: what was measured, and no more.
func mainTable(title, first, second string, all []weighed) lab.Table {
	t := lab.Table{Title: title, Head: []string{"what", plain(first), plain(second), "quotient"}}
	for _, w := range all {
		t.Rows = append(t.Rows, w.cells()[:4])
	}
	return t
}

// stepTables are one for each step.
func stepTables(title string, all []weighed, table func(string, []weighed) lab.Table) (tables []lab.Table) {
	for len(all) > 0 {
		step := all[0].step
		end := slices.IndexFunc(all, func(w weighed) bool { return w.step != step })
		if end < 0 {
			end = len(all)
		}
		tables = append(tables, table(plain(title+", "+step), all[:end]))
		all = all[end:]
	}
	return tables
}

func (w weighed) cells() []string {
	effect, p, noise := "–", "–", "–"
	if w.Effect != 0 || w.P != 0 {
		effect, p = fmt.Sprintf("%+.2f", w.Effect), fmt.Sprintf("%.2g", w.P)
	}
	if !math.IsNaN(w.noise) {
		noise = "±" + percent(w.noise)
	}
	return []string{
		plain(cmp.Or(w.row, w.what)), spelt(stats.Median(w.b), w.unit), spelt(stats.Median(w.a), w.unit),
		number(w.Ratio.Value), interval(w.Ratio), effect, p, noise, w.outcome(),
	}
}

// outcome is the last word on a pair.
func (w weighed) outcome() string {
	switch {
	case w.why != "":
		return "no verdict: " + w.why
	case w.finding == stats.Same && w.Ratio.Beyond(stats.Matters) && !w.Ratio.Beyond(w.noise):
		return "not settled: below the noise"
	case w.finding == stats.Same && w.settled():
		return "none above " + percent(stats.Matters)
	case w.finding == stats.Same:
		return "not settled"
	}
	return w.finding.String()
}
