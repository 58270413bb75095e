package pages

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/lab"
	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/stats"
)

// tables are all that a page of the run's own has.
func (f *facts) tables() []lab.Table {
	every, deeds := append(f.winnerTables(), f.loadTables(false)...), f.deeds()
	return filled(append(every, f.addedUp(), f.efficiencyTable(), f.armTable(), f.bounds(), f.deedTable(deeds), f.aroundTable(deeds), f.books(), f.guests(), f.hostTable(), f.insideTable(), f.missing()))
}

// filled are the tables that have a row, with plain words.
func filled(every []lab.Table) (some []lab.Table) {
	for _, t := range every {
		for _, row := range t.Rows {
			for i := range row {
				row[i] = plain(row[i])
			}
		}
		t.Title = plain(t.Title)
		if len(t.Rows) > 0 {
			some = append(some, t)
		}
	}
	return some
}

// name is that of a flow's row.
func (w *flow) name() string {
	if w.op == all {
		return w.load + ", " + w.arm
	}
	return w.load + " " + w.op + ", " + w.arm
}

// mostTables is how many steps have tables of their own; of more, each load has one,
// and only the step with the most tiles says how they share.
const mostTables = 6

// loadTables have the loads with their single operations, or as wholes alone.
func (f *facts) loadTables(whole bool) (tables []lab.Table) {
	if len(f.run.Plan.Steps) <= mostTables {
		for _, step := range f.run.Plan.Steps {
			tables = append(tables, f.loads("Loads, "+step.Name, func(w *flow) (string, bool) { return w.name(), w.step == step.Name && (w.op == all || !whole) }), f.shares(step.Name))
		}
		return tables
	}
	most := map[string]int{}
	last := ""
	for _, load := range f.loadNames() {
		tables = append(tables, f.loads("Load "+load, func(w *flow) (string, bool) {
			return strings.TrimSpace(w.step + strings.TrimPrefix(w.name(), w.load)), w.load == load && (w.op == all || w.op == f.measure(load).op)
		}))
	}
	for _, w := range f.flows {
		if most[w.step] = max(most[w.step], len(w.tiles)); last == "" || most[w.step] > most[last] {
			last = w.step
		}
	}
	return append(tables, f.shares(last))
}

// loads has a row for each flow that is chosen, by the name that it gets.
func (f *facts) loads(title string, choose func(*flow) (string, bool)) lab.Table {
	t := lab.Table{
		Title: title,
		Head:  []string{"load, arm", "1/s", "95 %", "repetitions", "done", "errors", "MiB/s", "mean", "p50", "p95", "p99", "p99.9"},
	}
	for _, w := range f.flows {
		if name, ok := choose(w); ok {
			t.Rows = append(t.Rows, w.row(name+f.remark(w.step, w.arm)))
		}
	}
	return t
}

// row is a flow's in the table of loads, by a name.
func (w *flow) row(name string) []string {
	rate, flood := w.rate, "–"
	if w.sum.bytes > 0 && w.sum.done > 0 {
		flood = number(rate.Value * w.sum.bytes / w.sum.done / (1 << 20))
	}
	row := []string{name, number(rate.Value), interval(rate), fmt.Sprint(len(w.rates)), fmt.Sprintf("%.0f", w.sum.done), fmt.Sprintf("%.0f", w.sum.errors), flood}
	return append(row, w.percentiles()...)
}

// percentiles are the mean of what was done, and the quantiles of all, in which those
// that failed are the longest.
func (w *flow) percentiles() []string {
	if w.times == nil {
		return []string{"–", "–", "–", "–", "–"}
	}
	cells := []string{seconds(w.times.Mean() * micro)}
	for _, q := range []float64{50, 95, 99, 99.9} {
		cells = append(cells, tookOr(quantile(w.times, w.sum.errors, q)))
	}
	return cells
}

// tookOr writes a time, or that it is among what failed.
func tookOr(s float64) string {
	if math.IsInf(s, 1) {
		return "failed"
	}
	return seconds(s)
}

// shares says what each tile was offered and what it got.
func (f *facts) shares(step string) lab.Table {
	t := lab.Table{Title: "Tiles, " + step, Head: []string{"load, arm", "tile", "offered, 1/s", "done, 1/s", "served of offered", "share"}}
	for _, w := range f.flows {
		if w.step != step || w.op != all || len(w.tiles) < 2 {
			continue
		}
		got, sum := f.yields(w), 0.0
		for _, one := range got {
			sum += one
		}
		for _, tile := range slices.SortedFunc(maps.Keys(w.tiles), byNumber) {
			share := "–"
			if got != nil {
				share = percent(got[tile] / sum)
			}
			offered, served := f.offering(w, w.offers[tile], w.parts[tile])
			t.Rows = append(t.Rows, []string{w.name(), tile, offered, number(stats.Median(w.tiles[tile])), served, share})
		}
	}
	return t
}

// offering writes what was offered in a second and what was served of it.
func (f *facts) offering(w *flow, offers, served []float64) (string, string) {
	switch {
	case f.unoffered[w.load]:
		return "not kept", "–"
	case !w.open:
		return "closed", "–"
	}
	return number(stats.Median(offers)), percent(stats.Median(served))
}

func percent(part float64) string {
	if math.IsNaN(part) || math.IsInf(part, 0) {
		return "–"
	}
	return number(100*part) + " %"
}

// addedUp says how tiles add up, and how evenly.
func (f *facts) addedUp() lab.Table {
	t := lab.Table{Title: "Tiles together", Head: []string{"load, arm", "step", "tiles", "offered, 1/s", "done, 1/s", "served of offered", "of linear", "by chance", "Jain's index"}}
	for _, w := range f.flows {
		if w.op != all || len(w.tiles) < 2 {
			continue
		}
		offered, served := f.offering(w, w.offered(), w.served)
		index, luck := "–", "–"
		if jain := f.jain(w); !math.IsNaN(jain) {
			index = fmt.Sprintf("%.3f", jain)
		}
		if alone := f.one(w); alone != nil && !w.open && !f.unoffered[w.load] {
			luck = "±" + percent(chance(w.sum.done, alone.sum.done))
		}
		t.Rows = append(t.Rows, []string{w.name(), w.step, fmt.Sprint(len(w.tiles)), offered, number(stats.Median(w.rates)), served, percent(f.linear(w)), luck, index})
	}
	return t
}

// offered is what all tiles together were offered in a second, of each repetition.
func (w *flow) offered() []float64 {
	all := make([]float64, len(w.turns))
	for _, offers := range w.offers {
		for i, one := range offers {
			all[i] += one
		}
	}
	return all
}

// armTable sets every arm beside the first.
func (f *facts) armTable() lab.Table {
	arms := f.run.Plan.InGuests()
	if len(arms) < 2 {
		return lab.Table{}
	}
	first := arms[0].Name
	t := compareTable("Arms beside "+first, f.weighedArms())
	t.Head[1], t.Head[2], t.Head[3] = first, "other arm", "quotient"
	return t
}

// boundName says a bound in words.
func boundName(b record.Bound) string {
	words := b.Metric
	if load := b.Labels["load"]; load != "" {
		words += " of " + load
	}
	if b.Below != nil {
		words += fmt.Sprintf(" below %g", *b.Below)
	}
	if b.Above != nil {
		words += fmt.Sprintf(" above %g", *b.Above)
	}
	return strings.TrimSpace(words + " " + b.Unit)
}

func (f *facts) bounds() lab.Table {
	t := lab.Table{Title: "Bounds", Head: []string{"bound", "step", "arm", "windows that keep it", ""}}
	for _, b := range f.run.Plan.Bounds {
		for _, step := range f.run.Plan.Steps {
			for _, arm := range f.run.Plan.Arms {
				broken, of := f.broken(b, step.Name, arm.Name)
				if of == 0 {
					continue
				}
				word := "kept"
				if broken > 0 {
					word = "broken"
				}
				t.Rows = append(t.Rows, []string{boundName(b), step.Name, arm.Name, fmt.Sprintf("%d of %d", of-broken, of), word})
			}
		}
	}
	return t
}

// books sets what loads have counted beside what servers have.
func (f *facts) books() lab.Table {
	t := lab.Table{Title: "Books: done, as the load and as the server count it", Head: []string{"load, operation", "step", "arm", "load", "server", "differ"}}
	type line struct{ step, arm, load, op string }
	sent, served := map[line]float64{}, map[line]float64{}
	for _, s := range f.run.Samples {
		key := line{s.Step, s.Arm, s.Labels["load"], s.Labels["op"]}
		switch s.Metric {
		case record.MetricSent:
			sent[key] += s.Value
		case record.MetricServed:
			served[key] += s.Value
		}
	}
	keys := slices.SortedFunc(maps.Keys(sent), func(a, b line) int {
		return cmp.Or(cmp.Compare(a.load, b.load), cmp.Compare(a.op, b.op), cmp.Compare(f.place(a.step), f.place(b.step)), cmp.Compare(a.arm, b.arm))
	})
	for _, key := range keys {
		t.Rows = append(t.Rows, []string{
			key.load + " " + key.op, key.step, key.arm,
			fmt.Sprintf("%.0f", sent[key]), fmt.Sprintf("%.0f", served[key]), fmt.Sprintf("%+.0f", served[key]-sent[key]),
		})
	}
	return t
}

// place is that of a step in the plan.
func (f *facts) place(step string) int {
	return slices.IndexFunc(f.run.Plan.Steps, func(s record.Step) bool { return s.Name == step })
}

// guests are figures that are of guests and not of loads.
func (f *facts) guests() lab.Table {
	t := lab.Table{Title: "Guests and events", Head: []string{"what", "step", "arm", "median", "longest", "values"}}
	for _, step := range f.run.Plan.Steps {
		for _, arm := range f.run.Plan.Arms {
			values := map[string][]float64{}
			for _, s := range f.run.Samples {
				if s.Step != step.Name || s.Arm != arm.Name {
					continue
				}
				switch s.Metric {
				case record.MetricBoot:
					values["boot of "+s.Labels["guest"]] = append(values["boot of "+s.Labels["guest"]], s.Value)
				case record.MetricDuration:
					values[s.Labels["event"]+" of "+s.Labels["guest"]] = append(values[s.Labels["event"]+" of "+s.Labels["guest"]], s.Value)
				case record.MetricOutage:
					values["outage of "+s.Labels["load"]] = append(values["outage of "+s.Labels["load"]], s.Value)
				}
			}
			for _, what := range slices.Sorted(maps.Keys(values)) {
				v := values[what]
				t.Rows = append(t.Rows, []string{what, step.Name, arm.Name, seconds(stats.Median(v)), seconds(slices.Max(v)), fmt.Sprint(len(v))})
			}
		}
	}
	return t
}

// missing lists what was skipped, what failed, what does not hold and what else is
// worth knowing, once each.
func (f *facts) missing() lab.Table {
	t := lab.Table{Title: "Skipped, failed, bad and left out", Head: []string{"reason", "what", "step", "arm", "times"}}
	type line struct{ text, what, step, arm string }
	times := map[line]int{}
	var order []line
	add := func(l line) {
		if times[l] == 0 {
			order = append(order, l)
		}
		times[l]++
	}
	for _, text := range f.run.Deviations {
		add(line{text, "left out", "", ""})
	}
	for _, turn := range f.undone() {
		add(line{"the run ended before", "not done", turn.Step, turn.Arm})
	}
	for _, kind := range []record.Kind{record.Skipped, record.Failed, record.Bad, record.Note} {
		for _, e := range f.events(kind, "") {
			if e.What != "bound" { // they have a table
				add(line{e.Text, strings.TrimSpace(string(kind) + " " + e.What), e.Step, e.Arm})
			}
		}
	}
	for _, l := range order {
		t.Rows = append(t.Rows, []string{l.text, l.what, l.step, l.arm, fmt.Sprint(times[l])})
	}
	return t
}

// undone are the turns of the plan that have not ended.
func (f *facts) undone() (left []record.Turn) {
	done := map[record.Turn]bool{}
	for _, e := range f.events(record.Done, "") {
		done[e.Turn] = true
	}
	for _, turn := range f.run.Plan.Turns {
		if !done[turn] {
			left = append(left, turn)
		}
	}
	return left
}
