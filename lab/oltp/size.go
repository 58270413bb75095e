package oltp

import (
	"math/rand/v2"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Size says how large the supplier is, and whose.
type Size struct {
	Warehouses int `json:"warehouses"`
	// Customers is how many a district has: 3000. Fewer make a load for small
	// guests.
	Customers int `json:"customers,omitzero"`
	// Items is how many the catalogue has: 100000.
	Items int `json:"items,omitzero"`
	// Seed makes it differ from all others in every row.
	Seed uint64 `json:"seed,omitzero"`
}

// The proportions.
const (
	districts = 10 // of a warehouse
	minLines  = 5  // of an order
	maxLines  = 15
	firstYear = 30_000_00 // cents taken in a district before the first payment
)

// The bounds of a size.
const (
	maxWarehouses = 10_000
	maxCustomers  = 3000
	minCustomers  = 10
	maxItems      = 100_000
	minItems      = 2 * maxLines
)

// Settle fills in what was not said and refuses what cannot be.
func (s *Size) Settle() error {
	if s.Customers == 0 {
		s.Customers = maxCustomers
	}
	if s.Items == 0 {
		s.Items = maxItems
	}
	switch {
	case s.Warehouses < 1 || s.Warehouses > maxWarehouses:
		return fault.New(fault.Invalid, fault.Config, "warehouses is %d: 1 to %d are possible", s.Warehouses, maxWarehouses)
	case s.Customers < minCustomers || s.Customers > maxCustomers:
		return fault.New(fault.Invalid, fault.Config, "customers is %d: %d to %d are possible", s.Customers, minCustomers, maxCustomers)
	case s.Items < minItems || s.Items > maxItems:
		return fault.New(fault.Invalid, fault.Config, "items is %d: %d to %d are possible", s.Items, minItems, maxItems)
	}
	return nil
}

// Rows is about how many Fill writes: orders have as many lines as chance gives
// them.
func (s Size) Rows() int64 {
	orders := s.Customers * (1 + (minLines+maxLines)/2)
	return int64(s.Items) + int64(s.Warehouses)*int64(1+s.Items+districts*(1+2*s.Customers+orders))
}

// draw gives the chance of one warehouse, or of the catalogue: 0.
func (s Size) draw(warehouse int) *rand.Rand {
	return rand.New(rand.NewPCG(s.Seed, 0x9e3779b97f4a7c15*uint64(warehouse+1)))
}

// uneven draws from 1 to n so that some come much more often than others, as
// customers and goods do: two numbers or-ed have more ones.
func uneven(d *rand.Rand, n int) int {
	mask := 1
	for mask*8 <= n {
		mask *= 2
	}
	return (d.IntN(mask)|d.IntN(n))%n + 1
}

const letters = "abcdefghijklmnopqrstuvwxyz0123456789"

// filler is text that no other seed has.
func filler(d *rand.Rand, length int) string {
	text := make([]byte, length)
	for i := range text {
		text[i] = letters[d.IntN(len(letters))]
	}
	return string(text)
}

var syllables = [...]string{"ka", "lo", "mi", "ne", "pu", "ra", "so", "ti", "ve", "zu"}

// lastName is the name of a number: as many customers share one as have numbers
// that end alike.
func lastName(number int) string {
	n := number % 1000
	return syllables[n/100] + syllables[n/10%10] + syllables[n%10]
}
