package storm

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/lodge-kvm/lodge/lab/histogram"
	"github.com/lodge-kvm/lodge/lab/stats"
)

// row is a line of a table: what targets are compared in.
type row struct {
	scenario      Scenario
	name          Case
	guests, disks int
	metric        Metric
	outcome       Outcome
}

func (c Cell) row(m Metric, o Outcome) row {
	return row{c.Scenario, c.Case, c.Guests, c.Disks, m, o}
}

func (r row) String() string {
	text := fmt.Sprintf("%s\t%d\t%d\t%s", r.scenario, r.guests, r.disks, r.metric)
	if r.name != "" {
		text += ", " + string(r.name)
	}
	if r.outcome != "" && r.outcome != Done {
		text += ": " + string(r.outcome)
	}
	return text
}

func compareRows(a, b row) int {
	return cmp.Or(cmp.Compare(a.scenario, b.scenario), cmp.Compare(a.disks, b.disks), cmp.Compare(a.guests, b.guests),
		cmp.Compare(a.name, b.name), cmp.Compare(a.metric, b.metric), cmp.Compare(a.outcome, b.outcome))
}

// Text is the run in tables for a terminal: whole storms, single calls, the
// daemons, and what was not as it should be.
func (r *Run) Text() string {
	var out strings.Builder
	r.storms(&out, "Whole storms in seconds, median of the repetitions", false)
	r.storms(&out, "The daemon: what it takes, and how much it does, median of the repetitions", true)
	r.calls(&out)
	r.troubles(&out)
	return out.String()
}

// ofDaemon reports whether a sample is about the daemon's process rather than
// about a storm's time.
func (s Sample) ofDaemon() bool {
	return s.Unit != Seconds || strings.HasSuffix(string(s.Metric), string("."+MetricProcessor))
}

// brief leaves out marks of a rising number of guests, but for the first and the
// last.
func (r *Run) brief(c Cell) bool {
	if c.Scenario != Thousand {
		return true
	}
	for _, step := range r.Plan {
		if step.Scenario == Thousand && (c.Guests == step.Guests || c.Guests == max(1, step.Guests/parts)) {
			return true
		}
	}
	return false
}

// storms draws samples, a column for each target.
func (r *Run) storms(out *strings.Builder, title string, ofDaemon bool) {
	values := map[row]map[string][]float64{}
	units := map[row]Unit{}
	for _, s := range r.Samples {
		if s.ofDaemon() != ofDaemon || !r.brief(s.Cell) {
			continue
		}
		key := s.row(s.Metric, "")
		if values[key] == nil {
			values[key] = map[string][]float64{}
		}
		values[key][s.Target] = append(values[key][s.Target], s.Value)
		units[key] = s.Unit
	}
	r.table(out, title, keys(values), func(key row, target Target) string {
		all := values[key][target.Name]
		if len(all) == 0 {
			return ""
		}
		median := stats.Median(all)
		bare := slices.IndexFunc(r.Targets, func(t Target) bool { return t.Of == target.Name })
		if bare < 0 || len(values[key][r.Targets[bare].Name]) == 0 {
			return amount(median, units[key])
		}
		return fmt.Sprintf("%s (%.2fx bare)", amount(median, units[key]), median/stats.Median(values[key][r.Targets[bare].Name]))
	})
}

func amount(v float64, u Unit) string {
	switch u {
	case Bytes:
		return fmt.Sprintf("%.1f MiB", v/(1<<20))
	case Count:
		return fmt.Sprintf("%.0f", v)
	case Share:
		return fmt.Sprintf("%.2f %% of a core", 100*v)
	case Rate:
		return fmt.Sprintf("%.0f/s", v)
	default:
		return fmt.Sprintf("%.4g", v)
	}
}

// calls draws the single calls, all repetitions together.
func (r *Run) calls(out *strings.Builder) {
	times := map[row]map[string]*hdrhistogram.Histogram{}
	for _, c := range r.Calls {
		h, err := c.Times()
		if err != nil || !r.brief(c.Cell) {
			continue // what cannot be read is not shown
		}
		key := c.row(c.Metric, c.Outcome)
		if times[key] == nil {
			times[key] = map[string]*hdrhistogram.Histogram{}
		}
		if times[key][c.Target] == nil {
			times[key][c.Target] = histogram.New()
		}
		times[key][c.Target].Merge(h)
	}
	r.table(out, "Single calls: median, p99 and longest in ms, and their number", keys(times), func(key row, target Target) string {
		h := times[key][target.Name]
		if h == nil {
			return ""
		}
		ms := func(µs int64) float64 { return float64(µs) / float64(time.Millisecond/time.Microsecond) }
		return fmt.Sprintf("%.4g  %.4g  %.4g  #%d", ms(h.ValueAtQuantile(50)), ms(h.ValueAtQuantile(99)), ms(h.Max()), h.TotalCount())
	})
}

func keys[V any](of map[row]V) []row {
	var all []row
	for key := range of {
		all = append(all, key)
	}
	slices.SortFunc(all, compareRows)
	return all
}

func (r *Run) table(out *strings.Builder, title string, rows []row, cell func(row, Target) string) {
	if len(rows) == 0 {
		return
	}
	fmt.Fprintf(out, "%s\n\n", title)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "scenario\tguests\tdisks\twhat")
	for _, t := range r.Targets {
		fmt.Fprintf(w, "\t%s", t.Name)
	}
	fmt.Fprintln(w)
	for _, key := range rows {
		fmt.Fprint(w, key)
		for _, t := range r.Targets {
			fmt.Fprintf(w, "\t%s", cell(key, t))
		}
		fmt.Fprintln(w)
	}
	_ = w.Flush() // a builder takes everything
	out.WriteString("\n")
}

// troubles lists what blocked, was refused, or could not be done.
func (r *Run) troubles(out *strings.Builder) {
	for _, b := range r.Blocked {
		fmt.Fprintf(out, "%s: still blocked after %.0f s: %s\n", b.describe(b.Metric), b.After, b.Text)
	}
	said := map[string]bool{}
	for _, c := range r.Calls {
		line := fmt.Sprintf("%s: %s, error %d: %s\n", c.describe(c.Metric), c.Outcome, c.Code, c.Text)
		if c.Text != "" && !said[c.Target+string(c.Metric)+string(c.Outcome)] {
			said[c.Target+string(c.Metric)+string(c.Outcome)] = true
			out.WriteString(line)
		}
	}
	for _, s := range r.Skipped {
		fmt.Fprintf(out, "%s: not finished: %s\n", s.describe(""), s.Reason)
	}
	if r.End.Interrupted != "" {
		fmt.Fprintf(out, "The run was interrupted: %s\n", r.End.Interrupted)
	}
}

func (c Cell) describe(m Metric) string {
	text := fmt.Sprintf("%s, %s of %d guests with %d disks", c.Target, c.Scenario, c.Guests, c.Disks)
	if m != "" {
		text += ", " + string(m)
	}
	if c.Case != "" {
		text += " (" + string(c.Case) + ")"
	}
	return text
}
