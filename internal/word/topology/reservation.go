package topology

import "slices"

// BasePage is the size in bytes of the pages that are no huge ones.
const BasePage = 4 << 10

// Reservation is the part of a host that one guest takes. It is a demand when a
// guest asks for it and a fact once the host has granted it.
type Reservation struct {
	// Memory is the RAM in bytes that comes from base pages.
	Memory uint64
	// Pages are the huge pages, each demand with its cell.
	Pages []PageDemand
	// CPUs are the processors that no other guest may have; empty for a guest
	// that shares.
	CPUs CPUSet
}

// Plus is the sum of two reservations.
func (r Reservation) Plus(other Reservation) Reservation {
	return Reservation{
		Memory: r.Memory + other.Memory,
		Pages:  slices.Concat(r.Pages, other.Pages),
		CPUs:   r.CPUs.Union(other.CPUs),
	}
}

// Minus is the rest after a part is released.
func (r Reservation) Minus(part Reservation) Reservation {
	left := Reservation{Memory: r.Memory - min(part.Memory, r.Memory), Pages: slices.Clone(r.Pages), CPUs: r.CPUs.Minus(part.CPUs)}
	for _, gone := range part.Pages {
		for i := range left.Pages {
			if p := &left.Pages[i]; p.Size == gone.Size && p.Cell == gone.Cell {
				less := min(p.Count, gone.Count)
				p.Count, gone.Count = p.Count-less, gone.Count-less
			}
		}
	}
	left.Pages = slices.DeleteFunc(left.Pages, func(p PageDemand) bool { return p.Count == 0 })
	return left
}

// AnyCell is the cell of a demand that every cell may meet.
const AnyCell = -1

// PageDemand is so many huge pages of one size.
type PageDemand struct {
	// Size of one page in bytes.
	Size uint64
	// Cell is the cell that must give them, or AnyCell.
	Cell  int
	Count uint64
}
