package seclabel

import (
	"math/rand/v2"
	"sync"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Pairs are the pairs of categories that are taken, by whom. As with users, what is
// taken is told by those who took it, who keep that over a restart.
type Pairs struct {
	mu    sync.Mutex
	taken map[Pair]string
}

// NewPairs holds those that processes have, of other daemons or of guests that were
// not adopted: they are whose it says until somebody holds them by name.
func NewPairs(processes []string) *Pairs {
	p := &Pairs{taken: map[Pair]string{}}
	for _, context := range processes {
		if pair, has := PairOf(context); has {
			p.taken[pair] = context
		}
	}
	return p
}

// tries is how often one is drawn before they are gone through in order.
const tries = 64

// Take gives a pair that nobody has.
func (p *Pairs) Take(by string) (Pair, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for range tries {
		a, b := rand.IntN(categories), rand.IntN(categories) //nolint:gosec // it is no secret
		if pair := (Pair{min(a, b), max(a, b)}); a != b && p.taken[pair] == "" {
			p.taken[pair] = by
			return pair, nil
		}
	}
	for a := range categories {
		for b := a + 1; b < categories; b++ {
			if pair := (Pair{a, b}); p.taken[pair] == "" {
				p.taken[pair] = by
				return pair, nil
			}
		}
	}
	return Pair{}, fault.New(fault.NoCapacity, fault.Host, "all pairs of SELinux's categories are in use")
}

// Claim takes one that a definition names.
func (p *Pairs) Claim(pair Pair, by string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if who := p.taken[pair]; who != "" && who != by {
		return fault.New(fault.Busy, fault.Domain, "the categories c%d,c%d are in use by %s; no two guests that run have the same", pair.A, pair.B, who)
	}
	p.taken[pair] = by
	return nil
}

// Hold notes that a guest that runs has one.
func (p *Pairs) Hold(pair Pair, by string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken[pair] = by
}

// Release gives a pair back, if it is that guest's.
func (p *Pairs) Release(pair Pair, by string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken[pair] == by {
		delete(p.taken, pair)
	}
}
