package arbiter

import (
	"iter"
	"math"
	"time"
)

// Arbiter keeps the learned values of all guests. One goroutine uses it.
type Arbiter struct {
	Rules Rules

	accounts map[string]*account
	claims   []claim // of the last Decide; kept for its memory only
}

// New makes an arbiter that has learned nothing.
func New(r Rules) *Arbiter { return &Arbiter{Rules: r, accounts: map[string]*account{}} }

// Decide returns a decision for each guest, in their order. Guests that are missing are forgotten.
func (a *Arbiter) Decide(now time.Time, h Host, guests []Guest) []Decision {
	a.learn(now, guests)
	budget := a.Rules.Budget(h)
	for i := range a.claims {
		budget -= a.aside(now, &a.claims[i])
	}
	a.claim(h)
	a.divide(budget)
	a.move(budget)
	a.pace(h)
	decisions := make([]Decision, len(a.claims))
	for i := range a.claims {
		decisions[i] = a.claims[i].decision()
	}
	return decisions
}

// movable yields the claims of guests with balloons that may move.
func (a *Arbiter) movable() iter.Seq[*claim] {
	return func(yield func(*claim) bool) {
		for i := range a.claims {
			if c := &a.claims[i]; c.apart == "" && !yield(c) {
				return
			}
		}
	}
}

// learn takes the guests' samples into account, and begins their claims.
func (a *Arbiter) learn(now time.Time, guests []Guest) {
	known := make(map[string]*account, len(guests))
	a.claims = a.claims[:0]
	for i := range guests {
		g := &guests[i]
		of := a.accounts[g.ID]
		if of == nil || !of.started.Equal(g.Started) {
			of = &account{started: g.Started, seen: now, actual: g.Actual}
		}
		known[g.ID] = of
		of.learn(&a.Rules, now, g)
		a.claims = append(a.claims, claim{Guest: g, account: of, target: g.Target})
		a.claims[i].setApart(&a.Rules, now)
	}
	a.accounts = known
}

// aside is the memory to keep for a guest that is left alone: its present size and its likely growth, in MiB.
func (a *Arbiter) aside(now time.Time, c *claim) float64 {
	if c.apart == "" {
		return 0
	}
	soon := idleGrowth
	if c.sampled.IsZero() && now.Sub(c.started) <= booting {
		soon = bootGrowth
	}
	return math.Min(c.Max, c.Resident+soon*c.Max)
}

// claim fills in what each guest could use. A guest that has lied needs no more than its part by shares: the rest counts
// as margin, which others' needs come before. The guest's own swap counts only up to that part.
func (a *Arbiter) claim(h Host) {
	var shares float64
	for i := range a.claims {
		shares += a.claims[i].Shares * a.claims[i].Max
	}
	for c := range a.movable() {
		part := (h.Memory - h.Others) * c.Shares * c.Max / math.Max(shares, tiny)
		if least := a.Rules.LeastMargin * c.Max; c.lies {
			beyond := math.Max(c.account.need-part, 0)
			c.say(c.account.need-beyond, least+beyond, 0)
		} else {
			sure := c.account.need - c.swapped
			c.say(math.Min(c.account.need, math.Max(sure, part)), math.Max(least, c.account.margin), c.account.cache)
		}
	}
}
