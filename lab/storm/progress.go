package storm

import (
	"fmt"
	"time"
)

// progress tells how far a run is, and about how long it takes yet: as long as
// the same turn took before, and a turn that is new as long as others of its
// target by their guests.
type progress struct {
	b      *bench
	begun  time.Time
	target *target
	step   Step
	number int
	known  map[*target]map[Step]time.Duration
	left   []pending
}

type pending struct {
	target *target
	step   Step
}

func (b *bench) progress() *progress {
	p := &progress{b: b, known: map[*target]map[Step]time.Duration{}}
	for range b.Repeats {
		for _, step := range b.Plan {
			for _, t := range b.targets {
				if t.does(step.Scenario) {
					p.left = append(p.left, pending{t, step})
				}
			}
		}
	}
	return p
}

func (p *progress) begin(t *target, step Step, cell Cell) {
	p.number++
	p.begun, p.target, p.step = time.Now(), t, step
	attributes := []any{
		"number", fmt.Sprintf("%d of %d", p.number, p.number+len(p.left)-1), "scenario", step.Scenario, "target", t.Name,
		"guests", step.Guests, "disks", step.Disks, "repetition", fmt.Sprintf("%d of %d", cell.Repeat, p.b.Repeats),
	}
	if left := p.remaining(); left > 0 {
		attributes = append(attributes, "left", left.Round(time.Second))
	}
	p.b.Log.Info("turn", attributes...)
}

func (p *progress) end() {
	if p.known[p.target] == nil {
		p.known[p.target] = map[Step]time.Duration{}
	}
	p.known[p.target][p.step] = time.Since(p.begun)
	for i, one := range p.left {
		if one.target == p.target && one.step == p.step {
			p.left = append(p.left[:i], p.left[i+1:]...)
			break
		}
	}
}

// remaining is 0 before anything is known.
func (p *progress) remaining() (sum time.Duration) {
	for _, one := range p.left {
		known := p.known[one.target]
		if took, ok := known[one.step]; ok {
			sum += took
			continue
		}
		var took time.Duration
		guests := 0
		for step, t := range known {
			took += t
			guests += step.Guests + 1
		}
		if guests > 0 {
			sum += took / time.Duration(guests) * time.Duration(one.step.Guests+1)
		}
	}
	return sum
}
