package memsim

import "math"

// priceSteps bound the search for the price of memory: 15 halvings of exp(12).
const (
	priceSteps = 15
	priceRange = 6.0
)

// pricing divides a budget by shares with a tax on idle memory (C. Waldspurger, Memory Resource Management in VMware
// ESX Server, OSDI 2002, section 5.2). There, memory goes from the guest with the least shares per page, where an idle
// page costs 1/(1-tax) as much. Here the same is inverted: at one price each guest buys memory with its shares, up to its
// need at the full rate and beyond it at the rate 1-tax. The right price spends the budget.
type pricing struct {
	tax     float64
	claims  []claim
	perPage float64 // unit of the price
}

// claim is one guest's part in a pricing.
type claim struct {
	shares, need, floor, most float64
	takesPart                 bool // others only get an answer
}

// begin sizes the pricing for n guests. The claims are to be filled in before spend.
func (p *pricing) begin(n int, tax float64) {
	p.claims = make([]claim, n)
	p.tax = tax
}

// spend finds the price for a budget, in MiB. It gives the logarithm of the price.
func (p *pricing) spend(budget float64) float64 {
	shares, most, n := 0.0, 0.0, float64(len(p.claims))
	for _, c := range p.claims {
		if c.takesPart {
			shares += c.shares
			most += c.most
		}
	}
	p.perPage = max(shares/n, tiny) / max(most/n, 1)
	low, high := -priceRange, priceRange
	for range priceSteps {
		middle := (low + high) / 2
		total, scale := 0.0, math.Exp(middle)
		for i := range p.claims {
			if p.claims[i].takesPart {
				total += p.claims[i].get(scale/p.perPage, p.tax)
			}
		}
		if total > budget {
			high = middle
		} else {
			low = middle
		}
	}
	return low
}

// get is what guest i gets at a price.
func (p *pricing) get(i int, price float64) float64 {
	return p.claims[i].get(math.Exp(price)/p.perPage, p.tax)
}

func (c *claim) get(scale, tax float64) float64 {
	x := c.shares * scale
	if x >= c.need {
		x = c.need + (x-c.need)*(1-tax)
	}
	return min(max(x, c.floor), c.most)
}

// shareUnit makes a guest's shares a density: the default of 1000 shares buys in proportion to size.
const shareUnit = 1.0 / 1000
