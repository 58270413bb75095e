package pages

import (
	"cmp"
	"fmt"
	"html/template"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/lodge-kvm/lodge/lab"
	"github.com/lodge-kvm/lodge/lab/plot"
	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/stats"
)

// quantity is something that telemetry tells, in the unit that pictures have.
type quantity struct {
	title string
	name  string
	times float64
}

// Of the host; names are telemetry's.
var ofHost = []quantity{
	{"processors busy, cores", "cpu_busy_cores", 1},
	{"taken by a host above, cores", "cpu_steal_cores", 1},
	{"waiting for disks, cores", "cpu_iowait_cores", 1},
	{"pressure on processors, %", "pressure_cpu_some_share", 100},
	{"pressure on memory, %", "pressure_memory_some_share", 100},
	{"pressure on disks, %", "pressure_io_some_share", 100},
	{"memory available, GiB", "memory_available_bytes", 1.0 / (1 << 30)},
	{"shared by KSM, MiB", "ksm_sharing_bytes", 1.0 / mebi},
	{"swap free, GiB", "swap_free_bytes", 1.0 / (1 << 30)},
	{"read from disks, MiB/s", "disk_read_bytes", 1.0 / mebi},
	{"written to disks, MiB/s", "disk_written_bytes", 1.0 / mebi},
	{"links, out, MiB/s", "net_out_bytes", 1.0 / mebi},
}

// Of a guest.
var ofGuest = []quantity{
	{"busy, cores", "cpu_busy_cores", 1},
	{"memory available, MiB", "memory_available_bytes", 1.0 / mebi},
	{"load", "load", 1},
}

// mostPoints is how many a line of a small picture has; more are averaged.
const mostPoints = 240

// mostRoles is how many kinds of guests are drawn.
const mostRoles = 8

// began is when the loads of a turn did; zero if nothing is known of it.
func (f *facts) began(turn record.Turn) (at time.Time) {
	if at, told := f.beginnings[turn]; told {
		return at
	}
	for _, t := range f.telemetry[turn] {
		if at.IsZero() || t.Time.Before(at) {
			at = t.Time
		}
	}
	return at
}

// told are a quantity's values in a turn, by seconds since the loads began, of the
// host or of the guests of a role; those of several guests are averaged.
func (f *facts) told(turn record.Turn, role string, q quantity) []plot.Point {
	began := f.began(turn)
	var all []plot.Point
	for _, t := range f.telemetry[turn] {
		at := t.Time.Sub(began).Seconds()
		if value, ok := t.Values[q.name]; ok && t.Labels["guest"] == role && at <= f.length(turn) {
			all = append(all, plot.Point{X: at, Y: q.times * value})
		}
	}
	slices.SortStableFunc(all, func(a, b plot.Point) int { return cmp.Compare(a.X, b.X) })
	return parted(thinned(all, f.length(turn), role != ""))
}

// parted breaks a line where something did not answer for a while: nobody knows what it did
// then.
func parted(points []plot.Point) []plot.Point {
	var gaps []float64
	for i := 1; i < len(points); i++ {
		gaps = append(gaps, points[i].X-points[i-1].X)
	}
	usual := stats.Median(gaps)
	var line []plot.Point
	for i, p := range points {
		if i > 0 && p.X-points[i-1].X > 2.5*usual {
			line = append(line, plot.Point{X: points[i-1].X + usual, Y: math.NaN()})
		}
		line = append(line, p)
	}
	return line
}

// thinned averages points that are nearer to each other than can be seen, and
// those of several guests that were asked about the same time.
func thinned(all []plot.Point, length float64, several bool) []plot.Point {
	step := length / mostPoints
	if several {
		step = max(step, 2)
	}
	var thin []plot.Point
	count := 0.0
	for _, p := range all {
		if n := len(thin); n > 0 && step > 0 && int(thin[n-1].X/step) == int(p.X/step) {
			count++
			thin[n-1].Y += (p.Y - thin[n-1].Y) / count
			continue
		}
		thin, count = append(thin, p), 1
	}
	return thin
}

// host draws what the host did in the first repetition of a step.
func (f *facts) host(step string) (drawing, bool) {
	m := f.small(step)
	m.Title = "The host" + f.at(step)
	m.About = "As its kernel tells it, once a second, in the first repetition. Pressure is the part of the time in which something waited."
	drawn := false
	for _, q := range ofHost {
		p := plot.Panel{Title: q.title, Y: plot.Axis{Format: tick}}
		known := false
		for _, arm := range f.run.Plan.Arms {
			line := f.told(record.Turn{Arm: arm.Name, Repetition: 1, Step: step}, "", q)
			p.Lines, known = append(p.Lines, line), known || len(line) > 0
		}
		if known {
			m.Panels, drawn = append(m.Panels, p), true
		}
	}
	return ofMultiples(m), drawn
}

// insides draws what the guests say of themselves, by role.
func (f *facts) insides(step string) (drawing, bool) {
	m := f.small(step)
	m.Title = "The guests" + f.at(step)
	m.About = "As their own kernels tell it, in the first repetition, averaged over the guests of a role. Each is asked at most every other second."
	roles := map[string]bool{}
	for _, arm := range f.run.Plan.Arms {
		for _, t := range f.telemetry[record.Turn{Arm: arm.Name, Repetition: 1, Step: step}] {
			if role := t.Labels["guest"]; role != "" {
				roles[role] = true
			}
		}
	}
	names := slices.Sorted(maps.Keys(roles))
	for _, role := range names[:min(len(names), mostRoles)] {
		for _, q := range ofGuest {
			p := plot.Panel{Title: plain(role) + ": " + q.title, Y: plot.Axis{Format: tick}}
			for _, arm := range f.run.Plan.Arms {
				p.Lines = append(p.Lines, f.told(record.Turn{Arm: arm.Name, Repetition: 1, Step: step}, role, q))
			}
			m.Panels = append(m.Panels, p)
		}
	}
	return ofMultiples(m), len(names) > 0
}

// small begins a picture of small ones.
func (f *facts) small(step string) plot.Multiples {
	m := plot.Multiples{X: plot.Axis{Label: "seconds from the start of the load", Format: tick}, Across: 3}
	var marks []done
	for i, arm := range f.run.Plan.Arms {
		turn := record.Turn{Arm: arm.Name, Repetition: 1, Step: step}
		k := plot.Kind{Name: plain(arm.Name), Look: look(i)}
		if len(f.run.Plan.Arms) == 1 || len(f.telemetry[turn]) == 0 { // there is one line alone, or none
			k.Name = ""
		}
		m.Kinds = append(m.Kinds, k)
		marks = append(marks, f.marks(turn, f.began(turn), f.length(turn))...)
	}
	m.Events = gathered(marks, len(f.run.Plan.InGuests()))
	return m
}

func ofMultiples(m plot.Multiples) drawing {
	return drawing{m.Title, m.About, func(id string) template.HTML { m.ID = id; return m.SVG() }}
}

// hostTable has the medians of all seconds of all windows.
func (f *facts) hostTable() lab.Table {
	t := lab.Table{Title: "The host meanwhile, medians of seconds", Head: []string{"step", "arm", "busy, cores", "steal, cores", "pressure: cpu", "memory", "io", "available", "KSM", "disks, MiB/s", "links, MiB/s"}}
	for _, step := range f.run.Plan.Steps {
		for _, arm := range f.run.Plan.Arms {
			all := f.windows(step.Name, arm.Name, "")
			if len(all) == 0 {
				continue
			}
			of := func(names ...string) float64 {
				var values []float64
				for _, t := range all {
					sum, known := 0.0, false
					for _, name := range names {
						value, ok := t.Values[name]
						sum, known = sum+value, known || ok
					}
					if known {
						values = append(values, sum)
					}
				}
				return stats.Median(values)
			}
			t.Rows = append(t.Rows, []string{
				step.Name, arm.Name, number(of("cpu_busy_cores")), number(of("cpu_steal_cores")),
				percent(of("pressure_cpu_some_share")), percent(of("pressure_memory_some_share")), percent(of("pressure_io_some_share")),
				size(of("memory_available_bytes")), size(of("ksm_sharing_bytes")),
				number(of("disk_read_bytes", "disk_written_bytes") / mebi), number(of("net_in_bytes", "net_out_bytes") / mebi),
			})
		}
	}
	return t
}

// insideTable has the same of guests, by role.
func (f *facts) insideTable() lab.Table {
	t := lab.Table{Title: "The guests meanwhile, medians", Head: []string{"guest", "step", "arm", "busy, cores", "steal, cores", "least memory available", "load", "times asked"}}
	roles := map[string]bool{}
	for _, all := range f.telemetry {
		for _, one := range all {
			if one.Labels["guest"] != "" {
				roles[one.Labels["guest"]] = true
			}
		}
	}
	for _, role := range slices.Sorted(maps.Keys(roles)) {
		for _, step := range f.run.Plan.Steps {
			for _, arm := range f.run.Plan.Arms {
				all := f.windows(step.Name, arm.Name, role)
				if len(all) == 0 {
					continue
				}
				values := map[string][]float64{}
				for _, one := range all {
					for name, value := range one.Values {
						values[name] = append(values[name], value)
					}
				}
				least := "–"
				if v := values["memory_available_bytes"]; len(v) > 0 {
					least = size(slices.Min(v))
				}
				t.Rows = append(t.Rows, []string{
					role, step.Name, arm.Name, number(stats.Median(values["cpu_busy_cores"])), number(stats.Median(values["cpu_steal_cores"])),
					least, number(stats.Median(values["load"])), fmt.Sprint(len(all)),
				})
			}
		}
	}
	return t
}

// windows are the seconds of all windows of an arm's step: of the host, or of the
// guests of a role.
func (f *facts) windows(step, arm, role string) (all []record.Telemetry) {
	for repetition := 1; repetition <= f.run.Plan.Repetitions; repetition++ {
		for _, t := range f.telemetry[record.Turn{Arm: arm, Repetition: repetition, Step: step}] {
			if t.Labels["guest"] == role && f.measured(t) {
				all = append(all, t)
			}
		}
	}
	return all
}

// measured tells whether something was told amid the windows of its turn.
func (f *facts) measured(t record.Telemetry) bool {
	at := t.Time.Sub(f.began(t.Turn)).Seconds()
	return at >= f.warmup(t.Turn) && at <= f.length(t.Turn)
}

// size writes bytes.
func size(bytes float64) string {
	if bytes >= 1<<30 {
		return number(bytes/(1<<30)) + " GiB"
	}
	return number(bytes/mebi) + " MiB"
}
