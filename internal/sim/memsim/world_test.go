package memsim

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// drunk sets any targets.
type drunk struct {
	w       *World
	targets [][]float64 // by second modulo its length; shares of a guest's size
}

func (d *drunk) Begin(w *World) { d.w = w }

func (d *drunk) Step(second int) {
	for i, share := range d.targets[second%len(d.targets)] {
		d.w.SetTarget(i, share*d.w.Guests()[i].Max)
	}
}

// Memory is conserved and never negative, in each second of any trace under any policy.
func TestWorld_MemoryConserved(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tr := anyTrace(t)
		row := rapid.SliceOfN(rapid.Float64Range(-.1, 1.2), len(tr.Guests), len(tr.Guests))
		policy := &drunk{targets: rapid.SliceOfN(row, 1, 40).Draw(t, "targets")}
		w := newWorld(tr, rapid.Float64Range(.3, 3).Draw(t, "factor"), nil)
		policy.Begin(w)
		for range tr.Duration() {
			w.step(policy)
			for i := range w.guests {
				if why := w.guests[i].wrong(w.second - 1); why != "" {
					t.Fatalf("second %d, guest %d: %s: %+v", w.second-1, i, why, w.guests[i])
				}
			}
			if why := w.wrong(); why != "" {
				t.Fatalf("second %d: %s: %+v", w.second-1, why, w.host)
			}
		}
		finite(t, w.metrics.finish(tr))
	})
}

const slack = 1e-6 // MiB

// wrong says what of a guest's state cannot be.
func (g *guest) wrong(second int) string {
	for name, value := range map[string]float64{
		"actual": g.actual, "anonymous": g.anon, "swapped": g.swapped, "cache": g.cache, "backed": g.backed,
		"cold": g.cold, "hot": g.hot, "unmet": g.unmet, "resident and hot": g.backed - g.cold, "slowdown": g.slowdown,
	} {
		if !(value >= -slack) {
			return name + " is negative"
		}
	}
	switch {
	case g.actual > g.spec.Max+slack:
		return "the guest is larger than its maximum"
	case g.anon+g.cache > g.actual+slack:
		return "more is in use than there is"
	case g.swapped > g.spec.Swap+slack:
		return "more is swapped than swap holds"
	case g.slowdown > maxSlowdown:
		return "the slowdown has no bound"
	case !g.running || g.deadUntil > second:
		return ""
	case math.Abs(g.anon+g.swapped+g.unmet-g.work) > slack:
		return "the working set is not in memory, in swap or unmet"
	case g.anon+g.cache > g.backed+slack:
		return "more is in use than the host backed"
	}
	return ""
}

// wrong says what of the host's state cannot be.
func (w *World) wrong() string {
	resident, swapped, killed := 0.0, 0.0, false
	for i := range w.guests {
		g := &w.guests[i]
		resident += g.resident()
		swapped += g.cold + g.hot
		killed = killed || g.deadUntil == w.second-1+outage
	}
	h := &w.host
	switch {
	case swapped > h.swap+slack:
		return "more is swapped than swap holds"
	case !killed && math.Abs(h.used*h.ram-(resident+h.reserved-h.saved)) > slack*h.ram:
		return "the use of RAM is not what the guests and the host hold"
	case h.swapIn > h.swapRate+slack || h.swapOut > h.swapRate+slack:
		return "swap is faster than it can be"
	case !(h.saved >= 0 && h.pressure >= 0 && h.pressure <= 1):
		return "savings or pressure out of range"
	}
	return ""
}

func finite(t interface {
	Errorf(format string, args ...any)
}, m Metrics,
) {
	for key, value := range m.byKey() {
		if value != nil && (math.IsNaN(*value) || math.IsInf(*value, 0) || *value < 0) {
			t.Errorf("%s is %v", key, *value)
		}
	}
}

// anyTrace draws a small trace of up to six guests.
func anyTrace(t *rapid.T) *Trace {
	between := func(name string, low, high float64) float64 {
		return math.Round(rapid.Float64Range(low, high).Draw(t, name)*100) / 100
	}
	coops := rapid.SampledFrom([]string{cooperates, cooperates, cooperates, stuck, driverless})
	var text strings.Builder
	fmt.Fprintf(&text, `{"type":"host","version":1,"duration":200,"ram":%v,"reserved":%v,"swap":%v,"swap_mibs":%v,"ksm":{"share":%v,"tau":30},"steady":[[100,200]],"steps":[100],"seed":%d}`+"\n",
		between("ram", 1500, 8000), between("reserved", 0, 500), between("swap", 0, 3000), between("rate", 1, 600), between("share", 0, .3), rapid.Uint32().Draw(t, "seed"))
	for i := range rapid.IntRange(1, 6).Draw(t, "guests") {
		size := between("size", 100, 4000)
		start := rapid.IntRange(0, 150).Draw(t, "start")
		fmt.Fprintf(&text, `{"type":"guest","name":"%d","max":%v,"floor":%v,"current":%v,"shares":1000,"starts_at":%d,"ends_at":%d,"coop":%q,"inflate":%v,"deflate":%v,"stat_period":%d,"stat_delay":%d,"honest":%v,"alpha":10,"beta":1.5,"gamma":0.3,"delta":2,"gswap":%v,"gswap_mibs":%v,"fill":%v,"fpr":%v,"autodeflate":%v,"stalls":%v,"touch":0.5,"jitter":%v,"label":"a"}`+"\n",
			i, size, math.Floor(size*.2), size, start, start+rapid.IntRange(0, 200).Draw(t, "life"), coops.Draw(t, "coop"),
			between("inflate", 1, 400), between("deflate", 1, 1200), rapid.IntRange(1, 10).Draw(t, "period"), rapid.IntRange(0, 10).Draw(t, "delay"),
			rapid.Bool().Draw(t, "honest"), between("gswap", 0, 2000), between("gswap_mibs", 0, 200), between("fill", 0, 100),
			rapid.Bool().Draw(t, "fpr"), rapid.Bool().Draw(t, "auto"), rapid.Bool().Draw(t, "stalls"), between("jitter", 0, .2))
		fmt.Fprintf(&text, `{"type":"demand","name":"%d","points":[[%d,%v,%v],[%d,%v,%v],[180,%v,%v]]}`+"\n", i,
			start, between("w", 0, size), between("c", 0, size), start+10, between("w", 0, size), between("c", 0, size),
			between("w", 0, size), between("c", 0, size))
	}
	tr, err := Read(strings.NewReader(text.String()))
	if err != nil {
		t.Fatalf("%v\n%s", err, text.String())
	}
	return tr
}
