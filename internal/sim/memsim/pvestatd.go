package memsim

// pvestatd is Proxmox VE's automatic ballooning (pve-manager: auto_ballooning of PVE/Service/pvestatd.pm, and
// compute_alg1 of PVE/AutoBalloon.pm). Every 10 s it steers the host to 80 % use, by at most 100 MiB a guest. It divides
// the memory that guests have above their floors by shares. Guests with free memory give first, those without get
// first.
type pvestatd struct {
	w      *World
	groups []pveGroup
	sizes  [2][]float64
}

// Constants of pvestatd.pm and AutoBalloon.pm.
const (
	pveTick      = 10  // s
	pveGoal      = .80 // of RAM: ballooning-target
	pveTolerance = 10  // MiB, that nothing is done for
	pveStep      = 100 // MiB a guest and tick: maxchange
	pveRich      = .25 // of the floor free, for a guest that can give
	pveRounds    = 3   // of dividing; AutoBalloon.pm repeats until nothing moves
)

// pveGroup says what a guest takes part in.
type pveGroup struct{ known, rich bool }

func (p *pvestatd) Begin(w *World) {
	p.w = w
	n := len(w.Guests())
	p.groups = make([]pveGroup, n)
	p.sizes = [2][]float64{make([]float64, n), make([]float64, n)}
}

func (p *pvestatd) Step(second int) {
	if second%pveTick != 0 {
		return
	}
	host := p.w.Host()
	goal := pveGoal*host.RAM - host.Used*host.RAM
	for i, v := range p.w.Guests() {
		p.groups[i] = pveGroup{known: v.Valid, rich: v.Valid && v.Free > pveRich*v.Floor && v.Balloon >= v.Floor}
	}
	var sizes []float64
	switch {
	case goal > pveTolerance:
		var rest float64
		sizes, rest = p.change(0, goal, func(g pveGroup) bool { return g.known && !g.rich })
		if rest >= goal { // none of the poor ones took any
			sizes, _ = p.change(1, goal, func(g pveGroup) bool { return g.known })
		}
	case goal < -pveTolerance:
		var rest float64
		sizes, rest = p.change(0, goal, func(g pveGroup) bool { return g.rich })
		if rest <= goal {
			sizes, _ = p.change(1, goal, func(g pveGroup) bool { return g.known })
		}
	default:
		return
	}
	for i, g := range p.groups {
		if g.known {
			p.w.SetTarget(i, sizes[i])
		}
	}
}

// change moves goal MiB into the guests of a group, or out of them. It gives the new sizes, and the
// rest of the goal.
func (p *pvestatd) change(buffer int, goal float64, in func(pveGroup) bool) (sizes []float64, rest float64) {
	sizes, rest = p.sizes[buffer], goal
	views := p.w.Guests()
	shares := 0.0
	for i := range views {
		sizes[i] = views[i].Balloon
		if in(p.groups[i]) {
			shares += views[i].Shares
		}
	}
	for range pveRounds {
		above := 0.0
		for i := range views {
			if in(p.groups[i]) {
				above += sizes[i] - views[i].Floor
			}
		}
		moved := 0.0
		perShare := (above + rest) / max(shares, 1)
		for i := range views {
			v := &views[i]
			if !in(p.groups[i]) {
				continue
			}
			size := sizes[i]
			desired := min(max(v.Floor+perShare*v.Shares, v.Floor), v.Max)
			if goal > 0 && desired > v.Balloon {
				size = max(min(v.Balloon+pveStep, desired), size)
			} else if goal < 0 && desired < v.Balloon {
				size = min(max(v.Balloon-pveStep, desired), size)
			}
			moved += size - sizes[i]
			sizes[i] = size
		}
		rest -= moved
	}
	return sizes, rest
}
