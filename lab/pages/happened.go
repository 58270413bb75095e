package pages

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/lab"
	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/stats"
)

// deed is one thing that was done to the guests of one role, in an arm's step.
type deed struct {
	step, arm, what, role string
	times                 int
	values                map[string][]float64            // of each time; names end in their unit
	loads                 map[string]map[string][]float64 // what it meant for each load, by the record's metrics
}

// deeds lists what was done, in the order of the plan and of time.
func (f *facts) deeds() (all []*deed) {
	for _, step := range f.run.Plan.Steps {
		for _, arm := range f.run.Plan.Arms {
			known := map[string]*deed{}
			for _, e := range f.events(record.Change, "") {
				if e.Step != step.Name || e.Arm != arm.Name || e.Guest == "" {
					continue
				}
				role := roleOf(e)
				d := known[e.Text+"\x00"+role]
				if d == nil {
					d = &deed{step: step.Name, arm: arm.Name, what: e.Text, role: role, values: map[string][]float64{}, loads: map[string]map[string][]float64{}}
					known[e.Text+"\x00"+role], all = d, append(all, d)
				}
				d.add(e)
			}
		}
	}
	return all
}

// add takes what the record says of one time.
func (d *deed) add(e record.Event) {
	d.times++
	for name, value := range e.Values {
		blank := strings.LastIndex(name, " ")
		if blank < 0 {
			d.values[name] = append(d.values[name], value)
			continue
		}
		load, figure := name[:blank], name[blank+1:]
		if d.loads[load] == nil {
			d.loads[load] = map[string][]float64{}
		}
		d.loads[load][figure] = append(d.loads[load][figure], value)
	}
}

// roleOf is the role of the guest that an event is of. A guest's name ends in it.
func roleOf(e record.Event) string {
	if role := e.Labels["guest"]; role != "" {
		return role
	}
	return e.Guest[strings.LastIndex(e.Guest, "-")+1:]
}

// nameOf says what was done, and where, if there is more than one place.
func (f *facts) nameOf(d *deed) string {
	words := []string{d.what + " of " + d.role}
	if len(f.run.Plan.Steps) > 1 {
		words = append(words, "at "+d.step)
	}
	if len(f.run.Plan.InGuests()) > 1 {
		words = append(words, d.arm)
	}
	return strings.Join(words, ", ")
}

// deedTable says how long what was done took, and all else that its record says of
// it, such as the pause of a migration.
func (f *facts) deedTable(deeds []*deed) lab.Table {
	t := lab.Table{Title: "What was done to guests, medians", Head: []string{"what", "step", "arm", "times"}}
	names := map[string]bool{}
	for _, d := range deeds {
		for name := range d.values {
			names[name] = true
		}
	}
	columns := slices.Sorted(maps.Keys(names))
	for _, name := range columns {
		head, _ := withUnit(name, 0)
		t.Head = append(t.Head, head)
	}
	for _, d := range deeds {
		row := []string{d.what + " of " + d.role, d.step, d.arm, fmt.Sprint(d.times)}
		for _, name := range columns {
			cell := "–"
			if values := d.values[name]; len(values) > 0 {
				_, cell = withUnit(name, stats.Median(values))
			}
			row = append(row, cell)
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// withUnit gives the words of a value's name without the unit that it ends in, and
// the value with it.
func withUnit(name string, value float64) (words, text string) {
	for _, unit := range []struct {
		end  string
		show func(float64) string
	}{
		{"_s", seconds},
		{"_ms", func(v float64) string { return seconds(v / 1e3) }},
		{"_bytes", size},
		{"_share", percent},
	} {
		if short, ok := strings.CutSuffix(name, unit.end); ok {
			return strings.ReplaceAll(short, "_", " "), unit.show(value)
		}
	}
	return strings.ReplaceAll(name, "_", " "), number(value)
}

// aroundTable says what loads did before, meanwhile and after.
func (f *facts) aroundTable(deeds []*deed) lab.Table {
	t := lab.Table{Title: "Loads around what was done to guests, medians", Head: []string{"load, what", "step", "arm", "before, 1/s", "meanwhile, 1/s", "after, 1/s", "after/before", "lost", "longest wait"}}
	for _, d := range deeds {
		for _, load := range slices.Sorted(maps.Keys(d.loads)) {
			of := func(figure string) float64 { return stats.Median(d.loads[load][figure]) }
			wait := "–"
			if v := d.loads[load][record.MetricPause]; len(v) > 0 {
				wait = seconds(slices.Max(v))
			}
			t.Rows = append(t.Rows, []string{
				load + ", " + d.what + " of " + d.role, d.step, d.arm,
				number(of(record.MetricBefore)), number(of(record.MetricDuring)), number(of(record.MetricAfter)), number(of(record.MetricAfter) / of(record.MetricBefore)), number(of(record.MetricLost)), wait,
			})
		}
	}
	return t
}
