package guest

import (
	"slices"
	"sync"

	"github.com/lodge-kvm/lodge/internal/word/device"
)

// nodes gives out the numbers of a run's block nodes. No image gets a number that another one had: QEMU may
// still have the node, or the file, of an image that the guest let go long ago.
type nodes struct {
	mu   sync.Mutex
	last uint
}

// note keeps the numbers of a disk from being given out.
func (n *nodes) note(d *device.Disk) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last = slices.Max(append(d.Nodes(), n.last))
}

// next gives out a number.
func (n *nodes) next() uint {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last++
	return n.last
}

// newest is the highest number that was given out.
func (n *nodes) newest() uint {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.last
}

// showChain gives a disk of a running guest the chain that was found for it.
func (r *run) showChain(d *device.Disk, found device.DiskAttachment) {
	d.SetChain(found)
	d.Number(r.nodes.next)
}
