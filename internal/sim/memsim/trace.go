package memsim

import "math"

// Host is the first line of a trace.
type Host struct {
	Type     string `json:"type"` // "host"
	Version  int    `json:"version"`
	Name     string `json:"name"`
	Kind     string `json:"kind"` // the recipe that made the trace
	Half     string `json:"half"` // "dev", or a name for traces that nothing was tuned on
	Duration int    `json:"duration"`
	// RAM, and the part of it that the host itself uses, in MiB.
	RAM      float64 `json:"ram"`
	Reserved float64 `json:"reserved"`
	// Swap in MiB, and its speed in MiB/s: in and out together.
	Swap     float64 `json:"swap"`
	SwapRate float64 `json:"swap_mibs"`
	// KSM is nil on hosts that merge no pages.
	KSM *KSM `json:"ksm"`
	// Steady lists the phases [from, to) of constant demand, but for jitter; Steps the seconds when demand jumps.
	Steady [][2]int `json:"steady"`
	Steps  []int    `json:"steps"`
	Seed   uint64   `json:"seed"` // of the jitter
}

// KSM says what merging of equal pages saves: the share of the anonymous memory of guests with label "a", reached with
// time constant Tau (s).
type KSM struct {
	Share float64 `json:"share"`
	Tau   float64 `json:"tau"`
}

// Guest is one guest's line of a trace.
type Guest struct {
	Type string `json:"type"` // "guest"
	Name string `json:"name"`
	// Max is the size without a balloon, Floor the least that a policy may leave, Current the size at boot.
	Max     float64 `json:"max"`
	Floor   float64 `json:"floor"`
	Current float64 `json:"current"`
	Shares  float64 `json:"shares"`
	// The guest runs during [StartsAt, EndsAt).
	StartsAt int `json:"starts_at"`
	EndsAt   int `json:"ends_at"`
	// Coop is "full", "deaf" (statistics, but the balloon is stuck) or "none" (no balloon driver).
	Coop string `json:"coop"`
	// Inflate and Deflate are the balloon's speeds: how fast it takes memory and gives it back.
	Inflate float64 `json:"inflate"`
	Deflate float64 `json:"deflate"`
	// Statistics are sampled every StatPeriod seconds, and reach the host StatDelay seconds later.
	StatPeriod int  `json:"stat_period"`
	StatDelay  int  `json:"stat_delay"`
	Honest     bool `json:"honest"`
	// The slowdown is Alpha·miss^Beta for missing working set, and Gamma·miss^Delta for missing page cache.
	Alpha float64 `json:"alpha"`
	Beta  float64 `json:"beta"`
	Gamma float64 `json:"gamma"`
	Delta float64 `json:"delta"`
	// Swap is the guest's own swap, SwapRate its speed.
	Swap     float64 `json:"gswap"`
	SwapRate float64 `json:"gswap_mibs"`
	// Fill is how fast the guest fills free memory with page cache that no program needs.
	Fill float64 `json:"fill"`
	// Reporting says that the guest reports free pages; AutoDeflate that its balloon shrinks instead of an OOM kill;
	// Stalls that its statistics count direct scans.
	Reporting   bool `json:"fpr"`
	AutoDeflate bool `json:"autodeflate"`
	Stalls      bool `json:"stalls"`
	// Touch is the share of anonymous memory that a sampling host sees as active.
	Touch float64 `json:"touch"`
	// Jitter is the amplitude of the noise on the working set, as a share of it.
	Jitter float64 `json:"jitter"`
	Label  string  `json:"label"` // KSM merges guests with label "a" only
}

// Values of Guest.Coop.
const (
	cooperates = "full"
	stuck      = "deaf"
	driverless = "none"
)

// watermark is the memory that a guest's kernel keeps free.
func (g *Guest) watermark() float64 { return 16 + .01*g.Max }

// demand is a guest's line of demand: points [second, working set, useful cache], linear in between and constant
// outside.
type demand struct {
	Type   string       `json:"type"` // "demand"
	Name   string       `json:"name"`
	Points [][3]float64 `json:"points"`
}

// Trace is a host and its guests, with the demand of every second. It does not change after it was read, so several
// runs may share it.
type Trace struct {
	Host   Host
	Guests []Guest
	// All below are [second*len(Guests)+guest], and 0 while the guest does not run.
	work   []float64 // working set
	useful []float64 // page cache that the programs use
	// need is the memory for a slowdown of 5 %, full the memory for none; both with the watermark.
	need, full []float64
	running    []bool

	forecasts oracleForecasts
}

// Duration is the trace's length in seconds.
func (tr *Trace) Duration() int { return tr.Host.Duration }

// at gives the row of one second.
func (tr *Trace) at(values []float64, second int) []float64 {
	n := len(tr.Guests)
	return values[second*n : second*n+n]
}

// peakDemand is the largest sum of working sets, as a share of RAM.
func (tr *Trace) peakDemand() float64 {
	peak := 0.0
	for second := range tr.Duration() {
		peak = max(peak, sum(tr.at(tr.work, second)))
	}
	return peak / tr.Host.RAM
}

// maxWork bounds a working set after jitter, as a share of the guest's size: beyond it a guest kills programs on any
// host.
const maxWork = .92

// expand fills in the demand of guest i from its points.
func (tr *Trace) expand(i int, points [][3]float64) {
	g := &tr.Guests[i]
	next := 0 // the first point behind the second
	for second := range tr.Duration() {
		x := float64(second)
		for next < len(points) && points[next][0] <= x {
			next++
		}
		if second < g.StartsAt || second >= g.EndsAt {
			continue
		}
		work, useful := between(points, next, x)
		work *= 1 + g.Jitter*jitter(tr.Host.Seed, i, second)
		at := second*len(tr.Guests) + i
		tr.running[at] = true
		tr.work[at] = min(work, maxWork*g.Max)
		tr.useful[at] = useful
	}
}

// between reads the line of points at x, where next is the first point behind x.
func between(points [][3]float64, next int, x float64) (work, useful float64) {
	switch next {
	case 0:
		return points[0][1], points[0][2]
	case len(points):
		return points[next-1][1], points[next-1][2]
	}
	a, b := points[next-1], points[next]
	slope := func(k int) float64 { return (b[k]-a[k])/(b[0]-a[0])*(x-a[0]) + a[k] }
	return slope(1), slope(2)
}

// jitterSlot is how long one draw of the jitter lasts, in seconds.
const jitterSlot = 5

// jitter draws from [-1, 1) with the generator splitmix64 (Steele, Lea, Flood, OOPSLA 2014), so that any second of any
// guest can be drawn alone.
func jitter(seed uint64, guest, second int) float64 {
	x := seed*1000003 + uint64(guest)*7919 + uint64(second/jitterSlot)
	x += 0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	x ^= x >> 31
	return float64(x>>11)/(1<<52) - 1
}

// Slow is the slowdown that counts as bad.
const Slow = .05

// needSplits is how many mixes of slowdown by working set and by cache are tried for the need.
const needSplits = 11

// findNeeds finds the least memory for a slowdown of 5 %, over mixes of swapped working set and missing cache, and the
// memory for no slowdown.
func (tr *Trace) findNeeds() {
	n := len(tr.Guests)
	for i := range tr.Guests {
		g := &tr.Guests[i]
		var keepWork, keepCache [needSplits]float64
		for k := range needSplits {
			byWork := Slow / (needSplits - 1) * float64(k)
			keepWork[k] = 1 - min(1, math.Pow(byWork/g.Alpha, 1/g.Beta))
			keepCache[k] = 1 - min(1, math.Pow(max(0, Slow-byWork)/g.Gamma, 1/g.Delta))
		}
		for at := i; at < len(tr.work); at += n {
			if !tr.running[at] {
				continue
			}
			work, useful := tr.work[at], tr.useful[at]
			least := math.Inf(1)
			for k := range needSplits {
				least = min(least, max(work*keepWork[k], work-g.Swap)+useful*keepCache[k])
			}
			tr.need[at] = least + g.watermark()
			tr.full[at] = work + useful + g.watermark()
		}
	}
}
