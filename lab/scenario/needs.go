package scenario

import (
	"fmt"
	"slices"
	"strings"
)

// Needs is what guests take of a host.
type Needs struct {
	Guests int
	VCPUs  int
	Memory Size // of guests, with what QEMU takes for itself
	Disk   Size // if everything that can grow does

	lines []string
}

// What a guest takes beside its memory, measured: QEMU's own, and of disk what
// the private root may grow to.
const (
	ownMemory = 120 * MiB
	ownDisk   = 256 * MiB
)

// Needs adds up a step. Translated code takes memory only where there is no KVM.
func (u *Setup) Needs(translated bool) Needs {
	var n Needs
	for _, g := range u.Guests {
		each := g.MaxMemory + ownMemory
		if g.Pages != "" {
			each -= g.Memory // of huge pages, which are set aside already
		}
		if translated {
			each += g.TBCache
		}
		if slices.ContainsFunc(u.Events, func(e Event) bool { return e.Do == DoMigrate && e.Guest == g.Role }) {
			each *= 2 // it is there twice for a while
		}
		disk := ownDisk
		for _, d := range g.Disks {
			if !d.Whole() {
				disk += d.Size
			}
		}
		count := Size(g.Count)
		n.Guests += g.Count
		n.VCPUs += g.Count * g.MaxVCPUs
		n.Memory += count * each
		n.Disk += count * disk
		if g.Count > 0 {
			n.lines = append(n.lines, fmt.Sprintf("%d × %s: memory %s, disk %s, %d processors", g.Count, g.Role, count*each, count*disk, g.Count*g.MaxVCPUs))
		}
	}
	return n
}

// Sums tells how the needs add up.
func (n Needs) Sums() string {
	return fmt.Sprintf("%s; in all %d guests with %s of memory, %s of disk and %d processors", strings.Join(n.lines, "; "), n.Guests, n.Memory, n.Disk, n.VCPUs)
}
