package device

import (
	"cmp"
	"slices"
)

// NoIndex is the index of a controller that has none yet.
const NoIndex = 1<<32 - 1

// insert puts a device before the first of its kind that follows it, or else after the last of its kind, or
// else at the end. The group is left as it was.
func insert[D any](group []D, d D, follows func(other, d D) (same, follows bool)) []D {
	at := len(group)
	for i, other := range group {
		same, after := follows(other, d)
		if after {
			at = i
			break
		}
		if same {
			at = i + 1
		}
	}
	return slices.Insert(slices.Clone(group), at, d)
}

// diskFollows reports whether a disk is on the bus of another, and comes after it there.
func diskFollows(other, d *Disk) (same, follows bool) {
	same = other.Bus == d.Bus
	return same, same && targetOrder(other) > targetOrder(d)
}

// targetOrder returns the index of a disk's name; disks without an index come first.
func targetOrder(d *Disk) int {
	index, ok := TargetIndex(d.Target)
	if !ok {
		return -1
	}
	return int(index)
}

func controllerFollows(other, d *Controller) (same, follows bool) {
	same = other.Type == d.Type
	return same, same && other.Index != NoIndex && compareControllers(other, d) > 0
}

// compareControllers orders controllers of a type by their indexes. The main part of a USB controller comes
// before its companions, which find their bus only after it exists.
func compareControllers(a, b *Controller) int {
	if order := cmp.Compare(a.Index, b.Index); order != 0 || a.HasMaster == b.HasMaster {
		return order
	}
	if a.HasMaster {
		return 1
	}
	return -1
}

// SortDisks puts the disks of each bus together and orders them by their names, as libvirt does. Buses stay
// in the order of their first disk. A disk that does not name its bus yet belongs to none of them.
func (s *Set) SortDisks() {
	first := map[string]int{}
	for i, d := range s.Disks {
		if _, known := first[d.Bus]; !known {
			first[d.Bus] = i
		}
	}
	slices.SortStableFunc(s.Disks, func(a, b *Disk) int {
		return cmp.Or(cmp.Compare(first[a.Bus], first[b.Bus]), cmp.Compare(targetOrder(a), targetOrder(b)))
	})
}

// SortControllers puts the controllers of each type together and orders them by their indexes, as libvirt
// does. Types stay in the order of their first controller. A controller without an index follows the
// one that is the last of its type when its turn comes.
func (s *Set) SortControllers() {
	first := map[string]int{}
	runs := map[string][][]*Controller{} // of each type: a controller and those without index that follow it
	last := map[string]int{}             // the run that is the last one so far
	var types []string
	for i, c := range s.Controllers {
		if _, known := first[c.Type]; !known {
			first[c.Type] = i
			types = append(types, c.Type)
			runs[c.Type] = [][]*Controller{nil} // those before any that has an index
		}
		all, end := runs[c.Type], last[c.Type]
		if c.Index == NoIndex {
			all[end] = append(all[end], c)
			continue
		}
		runs[c.Type] = append(all, []*Controller{c})
		if end == 0 || compareControllers(c, all[end][0]) >= 0 {
			last[c.Type] = len(all)
		}
	}
	var sorted []*Controller
	for _, kind := range types {
		all := runs[kind]
		slices.SortStableFunc(all[1:], func(a, b []*Controller) int { return compareControllers(a[0], b[0]) })
		sorted = append(sorted, slices.Concat(all...)...)
	}
	s.Controllers = sorted
}
