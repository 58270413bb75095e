package arbiter

import (
	"math"
	"time"
)

// Arbiter remembers what it has learned of the guests. It is used by one goroutine.
type Arbiter struct {
	Rules Rules

	accounts map[string]*account
	claims   []claim // of the last Decide; kept for its memory only
}

// New makes an arbiter that has learned nothing.
func New(r Rules) *Arbiter { return &Arbiter{Rules: r, accounts: map[string]*account{}} }

// claim is what one guest could use, and what it gets.
type claim struct {
	*Guest
	*account

	apart               Reason // why its balloon stays where it is; empty: it may move
	need, margin, cache float64
	spare               float64
	target              float64
	reason              Reason
}

// base is the part of the target that the guest can use by what it has shown.
func (c *claim) base() float64 { return c.need + c.margin + c.cache }

// Decide returns a decision for each guest, in their order. Guests that are missing are forgotten.
func (a *Arbiter) Decide(now time.Time, h Host, guests []Guest) []Decision {
	a.claim(now, guests)
	budget := a.Rules.Use*h.Memory - h.Others + h.Shared/2
	for i := range a.claims {
		budget -= a.aside(now, &a.claims[i])
	}
	divide(a.claims, budget)
	a.move(now, budget)
	a.pace(h)
	decisions := make([]Decision, len(a.claims))
	for i := range a.claims {
		c := &a.claims[i]
		decisions[i] = Decision{ID: c.ID, Target: c.target, Reason: c.reason, Need: c.need, Margin: c.margin, Cache: c.cache, Spare: c.spare}
	}
	return decisions
}

// claim learns from the guests' samples and makes their claims.
func (a *Arbiter) claim(now time.Time, guests []Guest) {
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
		a.claims = append(a.claims, a.claimOf(now, g, of))
	}
	a.accounts = known
}

func (a *Arbiter) claimOf(now time.Time, g *Guest, of *account) claim {
	r, c := &a.Rules, claim{Guest: g, account: of, target: g.Target}
	switch {
	case g.Apart != "":
		c.apart = Apart
	case of.sampled.IsZero():
		c.apart = Unsampled
	case !of.stuck.IsZero() && now.Sub(of.stuck) < r.StuckFor:
		c.apart, c.target = Stuck, math.Max(g.Target, g.Actual) // otherwise it would starve when it moves again
		if of.strain {
			c.target = math.Min(g.Max, math.Max(c.target, g.Actual+r.Distress*g.Max))
		}
	default:
		c.need = clamp(of.need*1.005+8, g.Floor, g.Max)
		c.margin = min(max(r.LeastMargin*g.Max, of.growth)+of.lacked, g.Max-c.need)
		c.cache = max(min(of.cache, g.Max-c.need-c.margin), 0)
	}
	c.reason = c.apart
	return c
}

// aside is what a guest whose balloon stays holds now and may soon hold, in MiB.
func (a *Arbiter) aside(now time.Time, c *claim) float64 {
	if c.apart == "" {
		return 0
	}
	soon := .01 * c.Max
	if c.sampled.IsZero() && now.Sub(c.started) < time.Minute {
		soon = .10 * c.Max // it boots
	}
	return min(c.Max, c.Resident+soon)
}

func clamp(x, low, high float64) float64 { return min(max(x, low), high) }
