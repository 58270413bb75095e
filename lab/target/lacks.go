package target

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/remote"
	"github.com/lodge-kvm/lodge/lab/scenario"
)

// Lacks says what guests want that the daemon's host does not have, as a Skipped: nodes
// of memory, its own processor, huge pages. It is nil if nothing is missing that can be
// known beforehand.
func (t *Target) Lacks(ctx context.Context, guests []scenario.Guest) error {
	pages := pagesOf{}
	for _, g := range guests {
		if g.Count == 0 {
			continue
		}
		if g.CPU == "host-passthrough" && t.Accelerator != "kvm" {
			return &Skipped{fmt.Sprintf("%s is to have the host's own processor, and guests run under %s here: only KVM can give it to them", g.Role, t.Accelerator)}
		}
		for tile := 1; tile <= g.Count; tile++ {
			cell, err := t.cell(g.Node, tile)
			if err != nil {
				return err
			}
			pages.add(g, cell)
		}
	}
	for _, place := range slices.SortedFunc(maps.Keys(pages), pagePlace.compare) {
		if err := t.lacksPages(ctx, place, pages[place]); err != nil {
			return err
		}
	}
	return nil
}

// pagePlace is where huge pages of a size are wanted: of one node, or of any.
type pagePlace struct {
	size scenario.Size
	cell int // anywhere if nobody is bound
}

const anywhere = -1

func (p pagePlace) compare(other pagePlace) int {
	if p.size != other.size {
		return int(p.size/scenario.MiB) - int(other.size/scenario.MiB)
	}
	return other.cell - p.cell
}

// pagesOf is how many pages are wanted at each place, guest by guest's role.
type pagesOf map[pagePlace]map[string]uint64

func (p pagesOf) add(g scenario.Guest, cell *Cell) {
	size, ok := pageSizes[g.Pages]
	if !ok {
		return
	}
	place := pagePlace{size, anywhere}
	if cell != nil {
		place.cell = cell.ID
	}
	if p[place] == nil {
		p[place] = map[string]uint64{}
	}
	p[place][g.Role] += uint64((g.Memory + size - 1) / size)
}

// pageSizes are those of huge pages, by a scenario's words.
var pageSizes = map[string]scenario.Size{"2MiB": 2 * scenario.MiB, "1GiB": scenario.GiB}

// lacksPages says how many pages are missing at a place.
func (t *Target) lacksPages(ctx context.Context, place pagePlace, wanted map[string]uint64) error {
	free, where := uint64(0), "on the host"
	for _, cell := range t.Cells {
		if place.cell != anywhere && place.cell != cell.ID {
			continue
		}
		if place.cell != anywhere {
			where = fmt.Sprintf("on node %d", cell.ID)
		}
		var ret xdr.NodeGetFreePagesRet
		err := t.call(ctx, xdr.ProcNodeGetFreePages, &xdr.NodeGetFreePagesArgs{Pages: []uint32{uint32(place.size / scenario.KiB)}, StartCell: int32(cell.ID), CellCount: 1}, &ret)
		if refused, ok := errors.AsType[*remote.Error](err); ok {
			return &Skipped{fmt.Sprintf("the daemon knows of no huge pages of %s: %s", place.size, refused.Message)}
		}
		if err != nil {
			return err
		}
		for _, count := range ret.Counts {
			free += count
		}
	}
	sum, words := uint64(0), []string{}
	for _, role := range slices.Sorted(maps.Keys(wanted)) {
		sum, words = sum+wanted[role], append(words, fmt.Sprintf("%s %d", role, wanted[role]))
	}
	if sum <= free {
		return nil
	}
	return &Skipped{fmt.Sprintf("%d huge pages of %s are wanted (%s), and %d are free %s", sum, place.size, strings.Join(words, ", "), free, where)}
}
