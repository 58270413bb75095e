package lab

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/lab/machine"
	"github.com/lodge-kvm/lodge/lab/stats"
)

// Report is what some runs say, ready to be shown.
type Report struct {
	Tables []Table
	Notes  []string // what the figures depend on, and what is missing
}

// NewReport works runs up. The first is the one that others are compared with.
func NewReport(runs []*Run) Report {
	r := Report{Tables: []Table{times(runs)}}
	if others := comparable(runs); len(others) > 0 {
		r.Tables = append(r.Tables, comparison(runs[0], others))
	}
	for _, run := range runs {
		if slices.ContainsFunc(run.Samples, func(s Sample) bool { return s.Metric == Resident }) {
			r.Tables = append(r.Tables, memory(runs))
			break
		}
	}
	for _, run := range runs {
		r.Notes = append(r.Notes, notes(run)...)
	}
	return r
}

// actions are the metrics that measure a wait, with their names in tables.
var actions = []struct {
	metric Metric
	name   string
}{
	{StartGuest, "start of a guest"},
	{EndGuest, "destroy of a guest"},
	{DefineDisks, fmt.Sprintf("define, %d disks", disks)},
	{UndefineDisks, fmt.Sprintf("undefine, %d disks", disks)},
}

func times(runs []*Run) Table {
	t := Table{
		Title: "Time of one call, in milliseconds",
		Head:  []string{"", "values", "median", "p95", "bare QEMU: median", "p95", "ratio (95 % interval)"},
	}
	for _, action := range actions {
		for _, run := range runs {
			daemon, bare := run.Values(action.metric, ByDaemon, 0), run.Values(action.metric, ByBare, 0)
			if len(daemon) == 0 {
				continue
			}
			row := []string{action.name + ", " + run.Name, fmt.Sprint(len(daemon)), milliseconds(daemon, 0.5), milliseconds(daemon, 0.95)}
			if len(bare) == 0 {
				row = append(row, "", "", "")
			} else {
				row = append(row, milliseconds(bare, 0.5), milliseconds(bare, 0.95), ratio(stats.MedianRatio(daemon, bare)))
			}
			t.Rows = append(t.Rows, row)
		}
	}
	return t
}

// comparable gives the runs that may be compared with the first: those of the
// same host, QEMU and accelerator.
func comparable(runs []*Run) []*Run {
	if len(runs) == 0 {
		return nil
	}
	key := func(r *Run) string {
		h := r.Host
		h.Load = 0
		return fmt.Sprint(h, r.Server.Hypervisor)
	}
	return slices.DeleteFunc(slices.Clone(runs[1:]), func(r *Run) bool { return key(r) != key(runs[0]) })
}

func comparison(first *Run, others []*Run) Table {
	t := Table{Title: "The same call to another daemon: how many times that of " + first.Name, Head: []string{""}}
	for _, other := range others {
		t.Head = append(t.Head, other.Name+" (95 % interval)")
	}
	for _, action := range actions {
		mine := first.Values(action.metric, ByDaemon, 0)
		if len(mine) == 0 {
			continue
		}
		row := []string{action.name}
		for _, other := range others {
			cell := ""
			if theirs := other.Values(action.metric, ByDaemon, 0); len(theirs) > 0 {
				cell = ratio(stats.MedianRatio(theirs, mine))
			}
			row = append(row, cell)
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

func memory(runs []*Run) Table {
	t := Table{
		Title: "The daemon itself, with paused guests",
		Head:  []string{"", "guests", "memory, MiB", "not backed by files, MiB", "per guest, KiB", "threads"},
	}
	for _, run := range runs {
		var counts []int
		for _, s := range run.Samples {
			if s.Metric == Resident {
				counts = append(counts, s.Guests)
			}
		}
		slices.SortFunc(counts, cmp.Compare)
		for _, n := range slices.Compact(counts) {
			value := func(m Metric, n int) float64 { return stats.Median(run.Values(m, ByDaemon, n)) }
			each := ""
			if n > 0 {
				each = fmt.Sprintf("%.0f", (value(Resident, n)-value(Resident, 0))/float64(n)/(1<<10))
			}
			t.Rows = append(t.Rows, []string{
				run.Name, fmt.Sprint(n), fmt.Sprintf("%.1f", value(Resident, n)/(1<<20)),
				fmt.Sprintf("%.1f", value(Private, n)/(1<<20)), each, fmt.Sprintf("%.0f", value(Threads, n)),
			})
		}
	}
	return t
}

func notes(r *Run) []string {
	all := []string{
		fmt.Sprintf("%s: measured %s in %.0f s by `%s`, on %s. Load average %.2f before and %.2f after; %.1f %% of the processors' time was taken by the host above. "+
			"Bare starts, a measure of the host's noise: half of them within ±%s of their median.",
			r.Name, r.Started.Format("2006-01-02 15:04 MST"), r.End.Took, r.Command, where(r.Host), r.Host.Load, r.End.Load, 100*r.End.Steal, noise(r)),
		fmt.Sprintf("%s: process %s, which says it is libvirt %s and has QEMU %s; accelerator %s; %d other domains.",
			r.Name, cmp.Or(r.Server.Process, "unknown"), r.Server.Library, r.Server.Hypervisor, cmp.Or(r.Host.Accelerator, "unknown"), r.Server.Domains),
	}
	if r.Host.Load > float64(r.Host.Processors)/2 {
		all = append(all, r.Name+": other work was going on on the host. The figures are too high and too wide; the ratios to bare QEMU, which was run in turns, hold better.")
	}
	for _, s := range r.Skipped {
		all = append(all, fmt.Sprintf("%s: not measured: %s, because %s.", r.Name, s.What, s.Reason))
	}
	return all
}

func where(h machine.Host) string {
	what := "hardware"
	if h.Virtual {
		what = "a virtual machine"
	}
	return fmt.Sprintf("%s with %d processors (%s), %.0f GiB, Linux %s", what, h.Processors, h.Processor, float64(h.Memory)/(1<<30), h.Kernel)
}

// noise is half the distance of the quartiles of bare starts, which do the
// same work each time, in percent of their median: how noisy the host was.
func noise(r *Run) string {
	bare := r.Values(StartGuest, ByBare, 0)
	half := (stats.Quantile(bare, 0.75) - stats.Quantile(bare, 0.25)) / 2
	if math.IsNaN(half) {
		return " (unknown)"
	}
	return fmt.Sprintf("%.0f %%", 100*half/stats.Median(bare))
}

func milliseconds(values []float64, quantile float64) string {
	ms := 1000 * stats.Quantile(values, quantile)
	if ms < 10 {
		return fmt.Sprintf("%.2f", ms)
	}
	return fmt.Sprintf("%.1f", ms)
}

func ratio(r stats.Ratio) string { return fmt.Sprintf("%.2f (%.2f–%.2f)", r.Value, r.Low, r.High) }

// Text shows the report on a terminal.
func (r Report) Text() string {
	var parts []string
	for _, t := range r.Tables {
		parts = append(parts, t.Text())
	}
	for _, n := range r.Notes {
		parts = append(parts, n+"\n")
	}
	return strings.Join(parts, "\n")
}

// Markdown shows the report on a page.
func (r Report) Markdown() string {
	var out strings.Builder
	for _, t := range r.Tables {
		out.WriteString(t.Markdown() + "\n")
	}
	for _, n := range r.Notes {
		out.WriteString("- " + n + "\n")
	}
	return out.String()
}
