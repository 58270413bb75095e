package memsim

import "math"

// ours is the first design of the daemon's arbiter, from the specification that the reference simulator judged: need
// with margins, shares with a tax on idle memory, levels of use of the host, and feedback that gives half of the memory
// back to a guest in distress. "ours-spec" has the specification's literal constants, "ours" those that were tuned on
// the traces of half "dev". It is kept to show what the better designs gained.
type ours struct {
	oursParameters
	w        *World
	guests   []oursGuest
	price    pricing
	state    int // level of the host's use, as by rise
	steadyAt int // since then the state could not fall
}

// oursParameters are the parameters, with the keys and the defaults of the reference.
type oursParameters struct {
	Util       float64    `json:"util"`   // share of RAM for guests
	Tax        float64    `json:"tax"`    // on idle memory
	Kappa      float64    `json:"kappa"`  // share of cache that counts as need
	Margin     float64    `json:"margin"` // share of the need
	MarginMost float64    `json:"mmin"`   // MiB, and
	MarginRel  float64    `json:"mrel"`   // share of a guest's size: the margin is at least the lesser one
	React      float64    `json:"react"`  // seconds of growth that the margin covers
	Soft       [2]float64 `json:"soft"`   // uses of RAM where a level begins, and where it ends
	Hard       [2]float64 `json:"hard"`
	Crit       [2]float64 `json:"crit"`
	Slack      float64    `json:"slack"`
	RateSoft   float64    `json:"rs"` // share of a guest's size that it shrinks by each second
	RateHard   float64    `json:"rh"`
	Feedback   bool       `json:"fb"`
	Reserve    float64    `json:"reserve"`
	Report     bool       `json:"fpr"`
	Fast       bool       `json:"fast"` // a loop of 2 s when memory is short
	Half       float64    `json:"half"` // s; half-life of the peak
	Deflate    float64    `json:"dfl"`  // share of a guest's size that it gets back at each tick without need
	KappaUp    float64    `json:"kup"`
	Cap        bool       `json:"cap"`    // a need is no more than what the host sees
	DistressUp float64    `json:"distup"` // share of a guest's size that distress gives
	Long       bool       `json:"ew300"`  // the need is at least its mean of 300 s
	Peak       bool       `json:"pk"`     // the need is at least its fading peak
	Eager      bool       `json:"eager"`  // shrinks guests at any level
	Faults     float64    `json:"fth"`    // major faults a second that show distress
	Grace      int        `json:"grace"`  // s after a boot
	FaultsToo  bool       `json:"fdist"`
}

func specOurs() oursParameters {
	return oursParameters{
		Util: .80, Tax: .75, Kappa: .3, Margin: .10, MarginMost: 256, MarginRel: 9, React: 15,
		Soft: [2]float64{.82, .79}, Hard: [2]float64{.92, .88}, Crit: [2]float64{.96, .93}, Slack: .78,
		RateSoft: .0025, RateHard: .02, Feedback: true, Reserve: .04, Report: true, Fast: true, Half: 300, Deflate: .01,
		KappaUp: 1.2, Cap: true, DistressUp: .02, Long: true, Peak: true, Faults: 50, Grace: 120, FaultsToo: true,
	}
}

func tunedOurs() oursParameters {
	p := specOurs()
	p.Eager, p.Util, p.Slack = true, .96, .90
	p.Soft, p.Hard, p.Crit = [2]float64{.965, .94}, [2]float64{.975, .96}, [2]float64{.985, .97}
	p.MarginRel, p.Margin, p.Half, p.Long, p.React = .03, .03, 120, false, 8
	p.Grace, p.RateSoft, p.RateHard, p.Tax, p.Faults, p.KappaUp = 10, .10, .20, .99, 8, 1.1
	return p
}

// Constants of ours that the reference does not vary.
const (
	oursTick, oursFastTick = 5, 2 // s
	rateCritical           = .10
	oursStep, oursStepMiB  = .0025, 32 // the least change: a share of a guest's size, and MiB
	relaxSeconds           = 60        // before the level falls
	feedbackSeconds        = 60        // distress so soon after a shrink is its fault
	pressureHigh           = .5        // PSI
	pressureSome           = .05
	shortMean, longMean    = 10, 300 // s
	growthSeconds          = 60      // a measured growth fades over this
	kappaSeconds           = 300
	boostFade              = .9997
	boostUp, boostLimit    = 1.1, 1.5
	backOffLeast           = 30 // s without shrinking after feedback
	backOffLimit           = 480
	backOffFade            = .05 // s for each second
	distressHold           = 10  // s without shrinking after distress
	oursHalf               = .5  // of the taken memory is given back
	oursReserve            = .04
	swapTrust              = .5 // weight of guest swap in the need
	capLeast, capShare     = 64, .05
	youngGrowth            = .05 // of its size, for a guest in its grace
	growthTicks            = 5   // seconds of growth that distress covers
)

// oursGuest is what ours knows of a guest. MiB and seconds.
type oursGuest struct {
	short, long, peak, last float64 // need: means, fading peak, last; short is negative before the first sample
	growth                  float64 // MiB/s
	kappa, boost            float64
	taken                   float64 // by the last shrinks
	takenAt, distressAt     int
	holdUntil               float64 // no shrinks before
	backOff                 float64
	stuck, stuckAt          int
	uncooperative           bool
	lastSample              int
	lastActual              float64
	wasValid                bool

	// Of this second:
	need                     float64
	young, managed, distress bool
}

func (o *ours) Parameters() any { return &o.oursParameters }

func (o *ours) Begin(w *World) {
	o.w = w
	if !o.Report {
		w.DisableReporting()
	}
	o.guests = make([]oursGuest, len(w.Guests()))
	o.price.begin(len(o.guests), o.Tax)
	for i, v := range w.Guests() {
		o.guests[i] = oursGuest{
			short: -1, kappa: o.Kappa, boost: 1, takenAt: -999, distressAt: -999, holdUntil: -1, backOff: backOffLeast,
			stuckAt: -999, lastSample: -1, lastActual: v.Balloon,
		}
	}
}

func (o *ours) Step(second int) {
	for i := range o.guests {
		g, v := &o.guests[i], &o.w.Guests()[i]
		o.learn(g, v)
		o.judge(i, second)
	}
	used := o.w.Host().Used
	o.rise(second)
	due := second%oursTick == 0
	urgent := o.Fast && o.state >= 3 && (second%oursFastTick == 0 || due)
	if due || urgent {
		o.divide(second, due, urgent)
	}
	for i := range o.guests {
		g, v := &o.guests[i], &o.w.Guests()[i]
		if o.Feedback && (o.Fast || due) {
			o.giveBack(i, second, used)
		}
		if v.Valid {
			target := o.w.Target(i)
			if g.uncooperative {
				target = max(target, v.Balloon)
			}
			o.w.SetTarget(i, min(max(target, v.Floor), v.Max))
		}
	}
}

// learn takes a new sample.
func (o *ours) learn(g *oursGuest, v *GuestView) {
	isNew := v.Valid && !g.wasValid
	g.wasValid = v.Valid
	if v.Valid && v.SampledAt > g.lastSample {
		g.lastSample = v.SampledAt
		o.learnNeed(g, v, isNew || g.short < 0)
	}
	g.boost = 1 + (g.boost-1)*boostFade
	need := g.short
	if o.Long {
		need = max(need, g.long)
	}
	if o.Peak {
		need = max(need, g.peak)
	} else {
		need = max(need, g.last)
	}
	need = max(need, 0)
	need = (need + max(o.Margin*need, min(o.MarginMost, o.MarginRel*v.Max), g.growth*o.React)) * g.boost
	if o.Cap {
		need = min(need, v.Resident+v.HostSwapped+max(capLeast, capShare*v.Max))
	}
	g.need = need
}

func (o *ours) learnNeed(g *oursGuest, v *GuestView, first bool) {
	period := float64(v.Period)
	if v.MajorFaults > o.Faults && v.SwapIn < distressSwapIn {
		g.kappa = min(1, g.kappa*o.KappaUp)
	} else {
		g.kappa += (o.Kappa - g.kappa) * period / kappaSeconds
	}
	need := v.Actual - v.Available + g.kappa*v.Cache + v.GuestSwap*swapTrust
	growth := max(0, need-g.last) / period
	if first {
		growth = 0
		g.short, g.long, g.peak = need, need, need
	}
	g.growth = max(growth, g.growth*math.Exp(-period/growthSeconds))
	g.last = need
	g.short += (need - g.short) * (1 - math.Exp(-period/shortMean))
	g.long += (need - g.long) * (1 - math.Exp(-period/longMean))
	g.peak = max(need, g.peak-(g.peak-need)*(1-math.Exp(-period*.693/o.Half)))
}

// judge tells whether a guest co-operates, is managed, and is in distress.
func (o *ours) judge(i, second int) {
	g, v := &o.guests[i], &o.w.Guests()[i]
	if o.w.Target(i) < v.Balloon-stuckMiB && v.Balloon > g.lastActual-stuckMoves {
		g.stuck++
	} else {
		g.stuck = 0
	}
	g.lastActual = v.Balloon
	isStuck := g.stuck >= stuckSeconds
	if isStuck {
		g.stuckAt = second
	}
	g.uncooperative = (g.uncooperative || isStuck) && second-g.stuckAt < stuckFor
	g.young = second-v.BootedAt < o.Grace
	g.managed = v.Valid && !g.uncooperative && !g.young
	suffers := v.SwapIn > distressSwapIn || v.MajorFaults > o.Faults && o.FaultsToo || v.Scans > distressScans
	g.distress = v.Valid && suffers && !g.uncooperative
}

// rise moves the level of the host's use: up at once, down by one a minute. 0: slack, 1: normal, 2: soft, 3: hard,
// 4: critical.
func (o *ours) rise(second int) {
	host := o.w.Host()
	up := level(host.Used, o.Slack, o.Soft[0], o.Hard[0], o.Crit[0])
	down := level(host.Used, o.Slack, o.Soft[1], o.Hard[1], o.Crit[1])
	if host.PSI > pressureSome {
		up, down = max(up, 3), max(down, 3)
	}
	if host.PSI > pressureHigh {
		up = 4
	}
	down = min(o.state, down)
	moved := true
	switch {
	case up > o.state:
		o.state = up
	case down < o.state && second-o.steadyAt > relaxSeconds:
		o.state = max(down, o.state-1)
	default:
		moved = false
	}
	if moved || down >= o.state {
		o.steadyAt = second
	}
}

// level counts the thresholds that a value has reached.
func level(value float64, thresholds ...float64) int {
	for i, threshold := range thresholds {
		if value < threshold {
			return i
		}
	}
	return len(thresholds)
}

// divide sets targets by price.
func (o *ours) divide(second int, due, urgent bool) {
	host := o.w.Host()
	inert := 0.0
	for i := range o.guests {
		g, v := &o.guests[i], &o.w.Guests()[i]
		o.price.claims[i] = claim{
			shares: v.Shares * v.Max * shareUnit, need: max(g.need, 1), floor: v.Floor, most: v.Max, takesPart: g.managed,
		}
		if v.Running && !g.managed {
			inert += v.Resident
			if g.young {
				inert += min(youngGrowth*v.Max, v.Max-v.Resident)
			}
		}
	}
	use := o.Util
	if o.Reserve == 0 {
		use += oursReserve
	}
	budget := use*host.RAM - host.Reserved - inert + ksmTrust*host.KSMSaving
	price := o.price.spend(max(budget, 1))
	rate := o.rate()
	if urgent {
		rate *= oursFastTick
	} else {
		rate *= oursTick
	}
	hasRoom := host.Used < o.Hard[0]+(o.Reserve-oursReserve)
	for i := range o.guests {
		o.move(i, second, o.price.get(i, price), rate, due, hasRoom)
	}
}

// rate is how fast guests shrink at this level, as a share of their size each second.
func (o *ours) rate() float64 {
	switch {
	case o.state >= 4:
		return rateCritical
	case o.state == 3:
		return o.RateHard
	case o.state == 2 || o.Eager:
		return o.RateSoft
	}
	return 0
}

// move moves guest i's target towards its price.
func (o *ours) move(i, second int, priced, rate float64, due, hasRoom bool) {
	g, v := &o.guests[i], &o.w.Guests()[i]
	old := o.w.Target(i)
	target := old
	least := max(oursStep*v.Max, oursStepMiB)
	held := min(old, v.Balloon)
	mayShrink := g.managed && (!o.Feedback || float64(second) >= g.holdUntil) && (o.state >= 2 || o.Eager)
	if mayShrink && priced < old-least {
		target = max(priced, held-rate*v.Max)
	}
	if taken := max(0, held-target); target < old && taken > 0 {
		if second-g.takenAt >= feedbackSeconds {
			g.taken = 0
		}
		g.taken += taken
		g.takenAt = second
	}
	if due && g.managed && priced > old+least && hasRoom {
		target = priced
	}
	if due && o.state == 0 && v.Valid && !g.uncooperative && !o.Eager {
		target = min(v.Max, max(target, old)+max(o.Deflate*v.Max, oursStepMiB))
	}
	o.w.SetTarget(i, max(target, v.Floor))
}

// giveBack gives a guest in distress half of the memory that was taken from it, or a step more.
func (o *ours) giveBack(i, second int, used float64) {
	g, v := &o.guests[i], &o.w.Guests()[i]
	target := o.w.Target(i)
	if g.distress && second-g.takenAt < feedbackSeconds && g.taken > 0 {
		o.w.SetTarget(i, min(v.Max, max(target, v.Balloon)+oursHalf*g.taken))
		g.boost = min(boostLimit, g.boost*boostUp)
		g.holdUntil = float64(second) + g.backOff
		g.backOff = min(backOffLimit, g.backOff*2)
		g.taken = 0
		return
	}
	g.backOff = max(backOffLeast, g.backOff-backOffFade)
	most := o.Crit[0]
	if o.Reserve == 0 {
		most = o.Hard[0]
	}
	follows := target < v.Max && v.Balloon > target-stuckMiB
	if g.distress && used < most && follows && second-g.distressAt >= 2 {
		o.w.SetTarget(i, min(v.Max, target+max(o.DistressUp*v.Max, g.growth*growthTicks)))
		g.distressAt = second
		g.holdUntil = max(g.holdUntil, float64(second+distressHold))
	}
}
