package memsim

import "math"

// recipes make the traces. Each is a way of life of a host's guests.
var recipes = []struct {
	kind string
	make func(*generator)
}{
	{"web", web},
	{"ci", ci},
	{"storm", storm},
	{"hot", hot},
	{"hogs", hogs},
	{"leak", leak},
	{"liars", liars},
	{"step", step},
	{"friday", friday},
	{"bitbrains", bitbrains},
	{"azure", azure},
	{"mixed", mixed},
}

// web: 24 guests with loads that swing together like days, each at its own height.
func web(g *generator) {
	g.host.Duration = 7200
	period := g.uniform(2400, 3600)
	for range 24 {
		guest := g.guest(0)
		low, high := g.uniform(.15, .3), g.uniform(.45, .8)
		phase := g.uniform(-.12, .12)
		if !g.chance(.75) {
			phase = g.uniform(0, 1)
		}
		cache := g.uniform(.05, .25)
		var p curve
		for t := 0.0; t <= float64(g.host.Duration); t += 30 {
			x := .5 - .5*math.Cos(2*math.Pi*(t/period+phase))
			p.add(t, guest.Max*(low+(high-low)*math.Pow(x, 1.5))*(1+g.normal(.015)), guest.Max*cache*(.5+.5*x))
		}
		g.demand(guest, p)
	}
}

// ci: 28 guests that are idle until a job needs most of their memory within seconds.
func ci(g *generator) {
	for range 28 {
		guest := g.guest(0)
		guest.Fill = round(g.uniform(.5, 8), 1)
		size, base, t := guest.Max, g.uniform(.08, .2), g.uniform(0, 300)
		p := curve{{0, size * base, size * .05}}
		for t < float64(g.host.Duration) {
			up, ramp, duration := g.uniform(.4, .85), g.uniform(5, 30), g.exponential(180)+20
			end := t + ramp + duration
			p.add(t, size*base, size*.05)
			p.add(t+ramp, size*up, size*g.uniform(.05, .15))
			p.add(end, size*up*.95, size*.1)
			p.add(end+3, size*base, size*.1)
			t = end + 3 + g.exponential(500) + 10
		}
		g.demand(guest, p)
	}
}

// storm: 8 guests run, and 18 boot in three bursts, each with a peak after its boot.
func storm(g *generator) {
	for i := range 26 {
		start := 0
		if i >= 8 {
			start = int(600*float64(1+i%3) + g.uniform(0, 60))
		}
		guest := g.guest(0)
		guest.StartsAt = start
		size, s, work := guest.Max, float64(start), g.uniform(.2, .55)
		peak, cache := min(.85, work*g.uniform(1.2, 1.8)), g.uniform(.05, .2)
		p := curve{{s, 150, 20}, {s + g.uniform(15, 50), size * peak, size * cache}, {s + g.uniform(70, 140), size * work, size * cache}}
		for t := s + 180; t <= float64(g.host.Duration); t += 120 {
			p.add(t, size*work*(1+g.normal(.04)), size*cache)
		}
		g.demand(guest, p)
	}
}

// hot: of 30 guests 6 are busy, and every ten minutes others are.
func hot(g *generator) {
	const n, busy, period = 30, 6, 600
	guests, curves := make([]*Guest, n), make([]curve, n)
	for i := range guests {
		guests[i] = g.guest(pick(g, []float64{4096, 8192, 8192}))
		curves[i] = curve{{0, guests[i].Max * .1, guests[i].Max * .05}}
	}
	was := make([]bool, n)
	for t := 60.0; t < float64(g.host.Duration); t += period {
		is := make([]bool, n)
		for _, i := range g.Perm(n)[:busy] {
			is[i] = true
		}
		for i, guest := range guests {
			ramp := g.uniform(20, 60)
			work, cache := curves[i].last()
			switch {
			case is[i] && !was[i]:
				curves[i].add(t, work, cache)
				curves[i].add(t+ramp, guest.Max*g.uniform(.6, .85), guest.Max*g.uniform(.05, .12))
			case was[i] && !is[i]:
				curves[i].add(t, work, cache)
				curves[i].add(t+ramp*.5, guest.Max*g.uniform(.07, .15), guest.Max*.05)
			}
		}
		was = is
	}
	for i, guest := range guests {
		g.demand(guest, curves[i])
	}
}

// hogs: every second one of 22 guests fills its memory with files that it never reads again.
func hogs(g *generator) {
	for i := range 22 {
		guest := g.guest(0)
		work, cache := g.uniform(.3, .6), g.uniform(.1, .25)
		guest.Fill = 1
		if i%2 == 0 {
			guest.Fill = math.Round(g.uniform(20, 120))
			work, cache = g.uniform(.12, .3), g.uniform(.02, .08)
		}
		var p curve
		for t := 0.0; t <= float64(g.host.Duration); t += 60 {
			wave := .15 * math.Sin(t/g.uniform(250, 260)+float64(i))
			p.add(t, guest.Max*work*(1+wave+g.normal(.02)), guest.Max*cache)
		}
		g.demand(guest, p)
	}
}

// leak: 3 of 20 guests leak until they restart their program.
func leak(g *generator) {
	for i := range 20 {
		guest := g.guest(0)
		size := guest.Max
		work, cache := g.uniform(.2, .5), g.uniform(.05, .2)
		var p curve
		if i >= 3 {
			for t := 0.0; t <= float64(g.host.Duration); t += 60 {
				p.add(t, size*work*(1+g.normal(.05)), size*cache)
			}
			g.demand(guest, p)
			continue
		}
		held, rate := size*.15, size*g.uniform(.3, .7)/1800
		for t := 0.0; t < float64(g.host.Duration); {
			p.add(t, held, size*.05)
			t += 60
			held += rate * 60
			if held > .86*size {
				p.add(t, .87*size, size*.05)
				p.add(t+5, size*.15, size*.05)
				held = size * .15
				t += 60
			}
		}
		g.demand(guest, p)
	}
}

// liars: of 24 guests 3 lie, 2 have no balloon driver, 2 have a balloon that is stuck, and 3 have a slow one.
func liars(g *generator) {
	for i := range 24 {
		guest := g.guest(0)
		switch {
		case i < 3:
			guest.Honest = false
		case i < 5:
			guest.Coop = driverless
		case i < 7:
			guest.Coop = stuck
		case i < 10:
			guest.Inflate = 4
		}
		work, cache := g.uniform(.15, .45), g.uniform(.05, .2)
		var p curve
		for t := 0.0; t <= float64(g.host.Duration); t += 90 {
			wave := .35 * math.Sin(2*math.Pi*t/g.uniform(1195, 1205)+float64(i)*.9)
			p.add(t, guest.Max*work*(1+wave), guest.Max*cache)
		}
		g.demand(guest, p)
	}
}

// step: most of 20 guests step up by a quarter, or down again, all in the same second.
func step(g *generator) {
	const hold, quiet = 600, 180
	highs := []bool{false, true, false, true, true, false, true}
	g.host.Duration = hold * len(highs)
	for range 20 {
		guest := g.guest(0)
		steps := g.chance(.6)
		size, work, cache := guest.Max, g.uniform(.3, .55), g.uniform(.05, .2)
		var p curve
		for j, high := range highs {
			level := work
			if high && steps {
				level *= 1.25
			}
			t := float64(j * hold)
			p.add(t+float64(min(j, 1)), size*level, size*cache)
			p.add(t+hold, size*level, size*cache)
		}
		g.demand(guest, p)
	}
	for j := range highs {
		if j > 0 && highs[j] != highs[j-1] {
			g.host.Steps = append(g.host.Steps, j*hold)
		}
		g.host.Steady = append(g.host.Steady, [2]int{j*hold + quiet, (j + 1) * hold})
	}
}

// friday: 24 guests rise together, twice.
func friday(g *generator) {
	const ramp = 120
	for range 24 {
		guest := g.guest(0)
		size, low := guest.Max, g.uniform(.2, .35)
		high, cache := min(.85, low*g.uniform(1.6, 2.4)), g.uniform(.05, .2)
		p := curve{{0, size * low, size * cache}}
		for _, busy := range [][2]float64{{900, 1500}, {2200, 3000}} {
			late := g.uniform(0, 20)
			p.add(busy[0]+late, size*low, size*cache)
			p.add(busy[0]+late+ramp, size*high, size*cache*1.3)
			p.add(busy[1]+late, size*high, size*cache)
			p.add(busy[1]+late+60, size*low*1.1, size*cache)
		}
		p.add(float64(g.host.Duration), size*low, size*cache)
		g.demand(guest, p)
	}
}

// bitbrains: 32 guests as in the trace GWA-T-12 (S. Shen, V. van Beek, A. Iosup, Statistical Characterization of
// Business-Critical Workloads, CCGRID 2015), by its published statistics alone: most guests use a quarter of their
// memory, with a heavy tail, points every five minutes, and strong autocorrelation. Bursts below a minute are added.
func bitbrains(g *generator) {
	g.host.Duration = 7200
	end := float64(g.host.Duration)
	for range 32 {
		guest := g.guest(pick(g, []float64{1024, 2048, 4096, 8192, 16384, 32768}))
		size := guest.Max
		mean := min(.7, math.Exp(math.Log(.18)+g.normal(.7)))
		x, deviation := 0.0, g.uniform(.05, .35)
		var p curve
		for t := 0.0; t <= end; t += 300 {
			x = .85*x + g.normal(deviation)*.53
			p.add(t, size*min(.85, mean*math.Exp(x)), size*g.uniform(.05, .1))
		}
		for t := g.exponential(1500); t < end; t += g.exponential(1500) + 80 {
			burst := size * min(.85, mean*g.uniform(1.3, 3))
			p.add(t, size*mean, size*.07)
			p.add(t+10, burst, size*.07)
			p.add(t+g.uniform(20, 60), burst, size*.07)
			p.add(t+75, size*mean, size*.07)
		}
		g.demand(guest, p.apart(5))
	}
}

// apart sorts the points, and leaves out those that come less than so many seconds after the one before.
func (c curve) apart(seconds float64) curve {
	sorted := append(curve(nil), c...)
	sortCurve(sorted)
	kept := sorted[:0]
	for _, p := range sorted {
		if len(kept) == 0 || p[0]-kept[len(kept)-1][0] >= seconds {
			kept = append(kept, p)
		}
	}
	return kept
}

// azure: 44 guests with sizes and lifetimes as published for Azure (E. Cortez et al., Resource Central, SOSP 2017):
// most are small and live for less than an hour, few stay, and some have a daily rhythm. The public data has no use of
// memory: the shapes are invented.
func azure(g *generator) {
	g.host.Duration = 5400
	end := float64(g.host.Duration)
	for i := range 44 {
		guest := g.guest(pick(g, []float64{1792, 1792, 3584, 3584, 7168, 14336}))
		if !g.chance(.4) {
			guest.StartsAt = int(g.uniform(0, end*.85))
			guest.EndsAt = int(min(end, float64(guest.StartsAt)+60+g.exponential(1500)))
		}
		size, work, cache := guest.Max, g.uniform(.15, .6), g.uniform(.05, .2)
		rhythm, start := g.chance(.3), float64(guest.StartsAt)
		p := curve{{start, 120, 10}, {start + g.uniform(20, 60), size * work, size * cache}}
		for t := start + 90; t <= float64(guest.EndsAt); t += 60 {
			wave := .4 * math.Sin(2*math.Pi*t/2700+float64(i))
			if !rhythm {
				wave = g.normal(.05)
			}
			p.add(t, size*work*(1+wave), size*cache)
		}
		g.demand(guest, p)
	}
}

// mixed: an hour of steps of all sizes, and an hour of rest. One guest lies, one has no driver, two hoard files.
func mixed(g *generator) {
	g.host.Duration = 7200
	g.host.Steady = [][2]int{{4200, 7200}}
	for i := range 30 {
		guest := g.guest(0)
		switch i {
		case 0:
			guest.Honest = false
		case 1:
			guest.Coop = driverless
		case 2, 3:
			guest.Fill = math.Round(g.uniform(20, 80))
		}
		size, work, cache := guest.Max, g.uniform(.15, .5), guest.Max*g.uniform(.05, .2)
		p := curve{{0, size * work, cache}}
		for t := g.uniform(60, 400); t < 3600; t += g.uniform(120, 700) {
			level := min(.85, work*g.uniform(.7, 1.7))
			held, _ := p.last()
			p.add(t, held, cache)
			p.add(t+g.uniform(5, 60), size*level, cache)
		}
		held, _ := p.last()
		p.add(3700, held, cache)
		p.add(3750, size*work, cache)
		p.add(float64(g.host.Duration), size*work, cache)
		g.demand(guest, p)
	}
}
