package experiment

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/scenario"
	"github.com/lodge-kvm/lodge/lab/workload"
)

// warming is the warm-up of a turn, which is that of all its loads together: the
// windows that count begin for all of them once all are steady, or once the most that
// is allowed has passed. Loads are told apart by their names: what one does on many
// tiles is one figure, because that of a single tile is mostly chance.
//
// Times are since a load's first interval began, by its own clock: loads begin
// together. A load tells of the past, so the windows begin no earlier than what any
// has told already.
type warming struct {
	rule scenario.Warmup

	mu     sync.Mutex
	loads  []*warmed
	told   time.Duration  // the farthest that any has told
	looked int            // windows that were judged
	over   chan struct{}  // closed once it is over, when what follows is known
	length time.Duration  // of it
	said   []record.Event // what it came to, unless that was known beforehand
}

// warmed is one load of one tile in its warm-up.
type warmed struct {
	name    string
	open    bool             // it is told when to begin its operations
	told    time.Duration    // up to where it has told what it does
	gone    bool             // it has ended, and tells no more
	windows []workload.Total // of the warm-up
}

func newWarming(rule scenario.Warmup) *warming {
	w := &warming{rule: rule, over: make(chan struct{})}
	if rule.Fixed() {
		w.length = rule.Least
		close(w.over)
	}
	return w
}

// join has one more load watched, before any begins.
func (w *warming) join(load scenario.Load) *warmed {
	one := &warmed{name: load.Name, open: load.Config["mode"] == "open"}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.loads = append(w.loads, one)
	return one
}

// hear takes what a load has done from a moment on, and gives the length of the
// warm-up, once it is known: what is heard before belongs to it as a whole.
func (w *warming) hear(load *warmed, since time.Duration, i workload.Interval) (length time.Duration, over bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.isOver() {
		return w.length, true, nil
	}
	number := max(0, int((since+i.Length/2)/w.rule.Window))
	for len(load.windows) <= number && time.Duration(len(load.windows))*w.rule.Window <= w.rule.Most {
		load.windows = append(load.windows, workload.Total{})
	}
	if number < len(load.windows) {
		err = load.windows[number].Add(i)
	}
	load.told = max(load.told, since+i.Length)
	w.told = max(w.told, load.told)
	w.judge()
	return 0, false, err
}

// leave is called for a load that has ended: nobody waits for it.
func (w *warming) leave(load *warmed) {
	w.mu.Lock()
	defer w.mu.Unlock()
	load.gone = true
	if !w.isOver() {
		w.judge()
	}
}

func (w *warming) isOver() bool {
	select {
	case <-w.over:
		return true
	default:
		return false
	}
}

// judge ends the warm-up if it is time; with the lock held. Where no load is left it
// never ends.
func (w *warming) judge() {
	whole := w.whole()
	switch {
	case !slices.ContainsFunc(w.loads, func(l *warmed) bool { return !l.gone }):
	case whole > w.looked && time.Duration(whole)*w.rule.Window >= w.rule.Least:
		w.looked = whole
		if readings := w.readings(whole); w.told >= w.rule.Most || len(w.unsteady(readings)) == 0 {
			w.end(readings)
		}
	case w.told >= w.rule.Most:
		w.end(w.readings(whole))
	}
}

// whole is how many windows all loads have told of.
func (w *warming) whole() int {
	least := w.told
	for _, l := range w.loads {
		if !l.gone {
			least = min(least, l.told)
		}
	}
	return int(least / w.rule.Window)
}

// readings are those of every load by its name, of the last windows that are whole.
func (w *warming) readings(whole int) map[string][]reading {
	all := map[string][]reading{}
	for number := max(0, whole-scenario.SteadyWindows); number < whole; number++ {
		sums, open := map[string]workload.Total{}, map[string]bool{}
		for _, l := range w.loads {
			if l.gone {
				continue
			}
			var one workload.Count
			if number < len(l.windows) {
				one = l.windows[number].All()
			}
			sum := sums[l.name]
			_ = sum.Add(workload.Interval{Ops: map[string]workload.Count{"all": one}})
			sums[l.name], open[l.name] = sum, l.open
		}
		for name, sum := range sums {
			read := readRate
			if open[name] {
				read = readTime
			}
			all[name] = append(all[name], read(sum.All()))
		}
	}
	for _, l := range w.loads { // one may have told of no whole window
		if !l.gone && all[l.name] == nil {
			all[l.name] = []reading{}
		}
	}
	return all
}

// unsteady are the loads that are not steady yet, in order.
func (w *warming) unsteady(readings map[string][]reading) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(readings)) {
		if !steady(readings[name], w.rule.Steady) {
			names = append(names, name)
		}
	}
	return names
}

// end has the windows begin with whatever nobody has told of yet, and says what the
// warm-up came to; with the lock held.
func (w *warming) end(readings map[string][]reading) {
	values := map[string]float64{record.ValueWarmup: w.told.Seconds(), record.ValueSteady: 1}
	for name, all := range readings {
		if part, chance := apart(all); part <= tellable {
			values[name+" apart_share"], values[name+" chance_share"] = part, chance
		}
	}
	begins := record.Event{Kind: record.Window, Window: 1, What: record.WhatWarmup, Values: values}
	length := w.told.Round(time.Second / 10)
	begins.Text = fmt.Sprintf("steady after %s", length)
	w.said = append(w.said, begins)
	if names := w.unsteady(readings); len(names) > 0 {
		values[record.ValueSteady] = 0
		w.said[0].Text = fmt.Sprintf("not steady after %s", length)
		for i, name := range names {
			part, chance := apart(readings[name])
			names[i] = name + " by " + percent(part)
			if chance > mostChance {
				names[i] += fmt.Sprintf(" (chance makes %s of so few operations: longer windows tell more)", percent(chance))
			}
		}
		w.said = append(w.said, record.Event{Kind: record.Bad, What: record.WhatWarmup, Text: fmt.Sprintf(
			"not steady after %s: the last %d windows of %s differ by more than %s: %s",
			length, scenario.SteadyWindows, w.rule.Window, percent(w.rule.Steady), strings.Join(names, ", "))})
	}
	for _, l := range w.loads {
		l.windows = nil
	}
	w.length = w.told
	close(w.over)
}

// tell is what came of it, for the record: nothing where its length was fixed.
func (w *warming) tell() []record.Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.isOver() && len(w.loads) > 0 {
		return []record.Event{{Kind: record.Bad, What: record.WhatWarmup, Text: "no load has lived until its warm-up was over: nothing was measured"}}
	}
	return w.said
}

// tellable bounds what a record tells: it holds no infinity.
const tellable = 1e6

func percent(part float64) string {
	if part > tellable {
		return "more than can be told"
	}
	return fmt.Sprintf("%.3g %%", 100*part)
}
