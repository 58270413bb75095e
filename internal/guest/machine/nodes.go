package machine

import (
	"slices"
	"sync"

	"github.com/lodge-kvm/lodge/internal/word/device"
)

// nodes assigns the numbers of an instance's block nodes. It assigns none twice: QEMU may still have the node, or
// the file, of an image that the guest released long ago.
type nodes struct {
	mu   sync.Mutex
	last uint
}

// Note reserves the numbers of a disk.
func (n *nodes) Note(d *device.Disk) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last = slices.Max(append(d.Nodes(), n.last))
}

// Next assigns a number.
func (n *nodes) Next() uint {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last++
	return n.last
}

// newest returns the highest number assigned so far.
func (n *nodes) newest() uint {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.last
}

// ShowChain puts the chain that was found for a disk into a running guest's definition.
func (r *Instance) ShowChain(d *device.Disk, found device.DiskAttachment) {
	d.SetChain(found)
	d.Number(r.Nodes.Next)
}
