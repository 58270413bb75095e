package seclabel

import (
	"math/rand/v2"
	"sync"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Pairs are the pairs of categories in use, by holder. They are in memory only: after a restart the
// holders reserve the pairs in their records.
type Pairs struct {
	mu    sync.Mutex
	taken map[Pair]string
}

// NewPairs reserves the pairs of running processes, of other programs or of guests that were not adopted,
// until a guest reserves its pair by name.
func NewPairs(processes []string) *Pairs {
	p := &Pairs{taken: map[Pair]string{}}
	for _, context := range processes {
		if pair, has := PairOf(context); has {
			p.taken[pair] = context
		}
	}
	return p
}

// maxDraws is how many random pairs are tried before all are tried in order.
const maxDraws = 64

// Take allocates a free pair.
func (p *Pairs) Take(by string) (Pair, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for range maxDraws {
		a, b := rand.IntN(categories), rand.IntN(categories) //nolint:gosec // not a secret
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
	return Pair{}, fault.New(fault.NoCapacity, fault.Host, "all pairs of SELinux categories are in use")
}

// Claim allocates the pair that a definition names.
func (p *Pairs) Claim(pair Pair, by string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if who := p.taken[pair]; who != "" && who != by {
		return fault.New(fault.Busy, fault.Domain, "the categories c%d,c%d are in use by %s; choose others", pair.A, pair.B, who)
	}
	p.taken[pair] = by
	return nil
}

// Reserve records that a running guest has a pair.
func (p *Pairs) Reserve(pair Pair, by string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken[pair] = by
}

// Release frees a pair, if that guest has it.
func (p *Pairs) Release(pair Pair, by string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken[pair] == by {
		delete(p.taken, pair)
	}
}
