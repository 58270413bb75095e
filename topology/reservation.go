package topology

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
