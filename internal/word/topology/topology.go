// Package topology is the model of a host: sets of
// processors, nodes (libvirt's cells), cores, caches, distances and pools of
// pages, and the share of them that one guest reserves.
//
// The values are plain data, filled in by the packages that read them from a kernel, a document or
// a record; this package opens no file. It holds the
// types that the host's inventory and the decisions about placement share, with
// pure functions on them. It does not read /sys, choose
// a place, or keep the ledger of reservations.
package topology

import "slices"

// Host is the processors and memory of one machine.
type Host struct {
	// Cells are in ascending order of ID; there is always at least one on a
	// machine whose kernel knows no nodes.
	Cells []Cell
	// Present are the processors that are plugged in, those switched off too.
	Present CPUSet
	// Online are the processors that run now; they are the ones in Cells.
	Online CPUSet
	// Caches are in the order of their first processors.
	Caches []Cache
}

// Cell is one node: processors and memory that are near each other. A cell may
// have no processors (memory only) or no memory.
type Cell struct {
	ID int
	// CPUs are the online processors, in ascending order of ID.
	CPUs []CPU
	// Memory is the size of the cell's RAM in bytes.
	Memory uint64
	// Pages are the pools by ascending page size; the first is the base page.
	Pages []PagePool
	// Distances to every cell, itself included (10), in the order of the cells.
	Distances []Distance
}

// CPU is one logical processor and where it sits.
type CPU struct {
	ID      int
	Package int
	Die     int
	// Cluster is the group of cores that share a mid-level cache or bus, or -1.
	Cluster int
	// Core is the number of the core within its die; not unique beyond it.
	Core int
	// Siblings are the processors of the same core, this one included.
	Siblings CPUSet
	// Cache is the processors that share this one's last-level cache.
	Cache CPUSet
}

// CacheKind is the kind of content of a cache.
type CacheKind string

// The kinds of cache.
const (
	UnifiedCache     CacheKind = "both"
	DataCache        CacheKind = "data"
	InstructionCache CacheKind = "code"
)

// Cache is one cache and the processors that share it.
type Cache struct {
	// ID is unique among the caches of one level and kind, where the kernel knows it.
	ID    int
	Level int
	Kind  CacheKind
	// Size in bytes.
	Size uint64
	CPUs CPUSet
}

// Distance says how far a cell is: 10 is local, 20 is twice as far.
type Distance struct {
	Cell  int
	Value int
}

// PagePool is the pages of one size that a cell has.
type PagePool struct {
	// Size of one page in bytes.
	Size uint64
	// Total is how many pages the pool has and Free how many are unused. For
	// base pages Total leaves out the memory that the huge pools hold.
	Total, Free uint64
}

// Cell returns the cell with that number.
func (h *Host) Cell(id int) (*Cell, bool) {
	i, found := slices.BinarySearchFunc(h.Cells, id, func(c Cell, id int) int { return c.ID - id })
	if !found {
		return nil, false
	}
	return &h.Cells[i], true
}

// CellIDs returns the numbers of the cells as a set.
func (h *Host) CellIDs() CPUSet {
	var ids CPUSet
	for _, c := range h.Cells {
		ids.Add(c.ID)
	}
	return ids
}

// Memory is the sum of the cells' RAM in bytes.
func (h *Host) Memory() uint64 {
	var sum uint64
	for _, c := range h.Cells {
		sum += c.Memory
	}
	return sum
}

// CPUSet returns the cell's online processors as a set.
func (c *Cell) CPUSet() CPUSet {
	var set CPUSet
	for _, cpu := range c.CPUs {
		set.Add(cpu.ID)
	}
	return set
}

// Pool returns the cell's pool of pages of that size in bytes.
func (c *Cell) Pool(size uint64) (PagePool, bool) {
	i := slices.IndexFunc(c.Pages, func(p PagePool) bool { return p.Size == size })
	if i < 0 {
		return PagePool{}, false
	}
	return c.Pages[i], true
}

// Shape is the number of parts at each level, as in libvirt's nodeinfo:
// cells, packages in a cell, cores in a package, threads in a
// core.
type Shape struct {
	Cells, Packages, Cores, Threads int
}

// CPUs is how many processors a machine of that shape has.
func (s Shape) CPUs() int { return s.Cells * s.Packages * s.Cores * s.Threads }

// Shape counts the levels: all cells, the most packages in any cell, the most cores
// in any package of a cell, the most threads in any core. If the product differs from the number
// of processors, offline ones included, the result is one cell with one
// package of so many single-thread cores. That includes machines with cells of memory alone.
// libvirt reports them this way, and its clients size their maps of processors by the
// product.
func (h *Host) Shape() Shape {
	type core struct{ pkg, die, core int }
	s := Shape{Cells: len(h.Cells)}
	for _, cell := range h.Cells {
		packages, threads := map[int]int{}, map[core]int{}
		for _, cpu := range cell.CPUs {
			at := core{cpu.Package, cpu.Die, cpu.Core}
			if threads[at] == 0 {
				packages[cpu.Package]++
			}
			threads[at]++
			s.Threads = max(s.Threads, threads[at])
			s.Cores = max(s.Cores, packages[cpu.Package])
		}
		s.Packages = max(s.Packages, len(packages))
	}
	if all := h.Online.Union(h.Present).Len(); s.CPUs() != all {
		return Shape{Cells: 1, Packages: 1, Cores: all, Threads: 1}
	}
	return s
}
