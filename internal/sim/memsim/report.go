package memsim

import (
	"math"
	"time"
)

// Grid are the load factors of an evaluation, as shares of the bound: .30, .32, …, 1.00.
func Grid() []float64 {
	first, second := .30, .30+.02
	grid := make([]float64, 36)
	for i := range grid {
		grid[i] = first + float64(i)*(second-first) // numpy.arange's sum, to the last bit
	}
	return grid
}

// Passes tells a run that its guests would not complain about: a 99th percentile of slowdown of at most 5 %, no OOM
// kill and no floor broken.
func (m *Metrics) Passes() bool {
	return float32(m.P99) <= float32(Slow) && m.GuestKills+m.HostKills == 0 && m.FloorBroken == 0
}

// Report has a policy's metrics at several load factors of one trace, with the reference's JSON keys. The lists have
// one entry for each factor.
type Report struct {
	Trace      string    `json:"trace"`
	Kind       string    `json:"kind"`
	Half       string    `json:"half"`
	Policy     string    `json:"policy"`
	Bound      float64   `json:"bound"`
	PeakDemand float64   `json:"peak_demand_over_ram"`
	Grid       []float64 `json:"grid"` // shares of the bound, or absolute factors if such were given
	Factors    []float64 `json:"f"`
	// Carried is the largest factor that passes, as do all smaller ones of the grid; 0 if there is none.
	Carried float64 `json:"carried"`
	// Wall is the time of all runs, added up, in seconds.
	Wall float64 `json:"wall"`

	P99             []float64 `json:"p99"`
	Bad             []float64 `json:"bad"`
	Worst           []float64 `json:"worst"`
	Unmet           []float64 `json:"unmet"`
	CacheUnmet      []float64 `json:"cache_unmet"`
	GuestSwapIn     []float64 `json:"gswapin"`
	HostSwapIn      []float64 `json:"hswapin"`
	HostSwapOut     []float64 `json:"hswapout"`
	GuestKills      []float64 `json:"oom_guest"`
	HostKills       []float64 `json:"oom_host"`
	Hot             []float64 `json:"hot"`
	Reversals       []float64 `json:"rev"`
	SteadyReversals []float64 `json:"rev_steady"` // null without steady phases
	FloorBroken     []float64 `json:"floor"`
	Settle          []float64 `json:"settle"` // null without steps
	SettleBalloon   []float64 `json:"settle_balloon"`
	Moved           []float64 `json:"moved"`
	Used            []float64 `json:"used"`
}

// newReport joins the metrics of one trace's runs; grid and factors have one entry for each.
func newReport(tr *Trace, policy string, bound float64, grid, factors []float64, runs []Metrics, wall time.Duration) *Report {
	r := &Report{
		Trace: tr.Host.Name, Kind: tr.Host.Kind, Half: tr.Host.Half, Policy: policy, Bound: bound,
		PeakDemand: tr.peakDemand(), Grid: grid, Factors: factors, Wall: round(wall.Seconds(), 2),
	}
	passing := true
	for i := range runs {
		m := &runs[i]
		passing = passing && m.Passes()
		if passing {
			r.Carried = factors[i]
		}
		for _, column := range []struct {
			to    *[]float64
			value float64
		}{
			{&r.P99, m.P99},
			{&r.Bad, m.Bad},
			{&r.Worst, m.Worst},
			{&r.Unmet, m.Unmet},
			{&r.CacheUnmet, m.CacheUnmet},
			{&r.GuestSwapIn, m.GuestSwapIn},
			{&r.HostSwapIn, m.HostSwapIn},
			{&r.HostSwapOut, m.HostSwapOut},
			{&r.GuestKills, float64(m.GuestKills)},
			{&r.HostKills, float64(m.HostKills)},
			{&r.Hot, float64(m.Hot)},
			{&r.Reversals, m.Reversals},
			{&r.FloorBroken, float64(m.FloorBroken)},
			{&r.Moved, m.Moved},
			{&r.Used, m.Used},
		} {
			*column.to = append(*column.to, round(column.value, 4))
		}
		for _, column := range []struct {
			to    *[]float64
			value *float64
		}{{&r.SteadyReversals, m.SteadyReversals}, {&r.Settle, m.Settle}, {&r.SettleBalloon, m.SettleBalloon}} {
			if column.value != nil {
				*column.to = append(*column.to, round(*column.value, 4))
			}
		}
	}
	return r
}

// round rounds to so many digits.
func round(x float64, digits int) float64 {
	scale := math.Pow10(digits)
	return math.Round(x*scale) / scale
}
