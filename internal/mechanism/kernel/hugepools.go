package kernel

import (
	"path"
	"strconv"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

// HugePool is the pool of huge pages of one size of one NUMA node, in pages
// (Documentation/admin-guide/mm/hugetlbpage.rst).
type HugePool struct {
	Node int
	// Size is that of a page, in bytes.
	Size uint64
	// Total are all its pages, Free those that no process has. Processes may have reserved free ones; the kernel says
	// so for the host only (HostPages).
	Total, Free uint64
	// Surplus pages are beyond what the pool was set to: it gives them back to the kernel when they become free.
	Surplus uint64
}

// HugePools reads the pools of all nodes, by node; none where the kernel has no huge pages. A kernel without NUMA
// has node 0.
func (r Root) HugePools() ([]HugePool, error) {
	nodes := sortedNumbers(r.list(nodeDir), "node")
	if len(nodes) == 0 {
		nodes = []int{0}
	}
	var pools []HugePool
	for _, node := range nodes {
		for _, name := range r.list(path.Dir(r.hugePoolDir(node, 0))) {
			if size, is := poolSize(name); is {
				pool, err := r.HugePool(node, size)
				if err != nil {
					return nil, err
				}
				pools = append(pools, pool)
			}
		}
	}
	return pools, nil
}

// hugePoolDir is where the kernel keeps a pool.
func (r Root) hugePoolDir(node int, size uint64) string {
	if node == 0 && !r.exists(nodeDir, "node0") {
		node = topology.AnyCell
	}
	return HugePageDir(node, size)
}

// HugePool reads the pool of one size, in bytes, of one node. NotFound without such a node or size.
func (r Root) HugePool(node int, size uint64) (HugePool, error) {
	pool := HugePool{Node: node, Size: size}
	dir := r.hugePoolDir(node, size)
	for _, f := range []struct {
		name string
		into *uint64
	}{{"nr_hugepages", &pool.Total}, {"free_hugepages", &pool.Free}, {"surplus_hugepages", &pool.Surplus}} {
		text, err := r.read(dir, f.name)
		if err != nil {
			return HugePool{}, fault.Wrap(err, fault.Of(err), fault.Host, "cannot read the pool of huge pages of %d KiB of node %d", size>>10, node)
		}
		if *f.into, err = strconv.ParseUint(strings.TrimSpace(text), 10, 64); err != nil {
			return HugePool{}, fault.New(fault.Failed, fault.Host, "cannot understand %s: it holds %.64q", path.Join(dir, f.name), text)
		}
	}
	return pool, nil
}

// SetHugePool grows or shrinks the pool of one node to so many pages, and returns what the kernel gave: fewer where
// it finds no room for more, or where a signal interrupts it, so that a caller that still needs pages asks once
// more; and more while processes hold or have reserved pages. Those that they hold are Surplus from then on. To
// grow, the kernel moves other memory: that may take seconds, and does not end early. The caller leaves memory for
// the host: the kernel does not. Unsupported where it cannot make pages of this size after boot. NotFound without
// such a node or size.
func (r Root) SetHugePool(node int, size, pages uint64) (HugePool, error) {
	if _, err := r.HugePool(node, size); err != nil {
		return HugePool{}, err
	}
	dir := r.hugePoolDir(node, size)
	memory, err := r.NodeMemory(node)
	if fault.Is(err, fault.NotFound) { // a kernel without NUMA
		memory, err = r.Memory()
	}
	if err != nil {
		return HugePool{}, err
	}
	if most := memory.Total / size; pages > most {
		return HugePool{}, fault.New(fault.Invalid, fault.Host, "cannot set aside %d huge pages of %d KiB: all memory of node %d makes %d", pages, size>>10, node, most)
	}
	if _, err := r.set(decimal(pages), dir, "nr_hugepages"); err != nil {
		if fault.Is(err, fault.Invalid) {
			err = fault.Wrap(err, fault.Unsupported, fault.Host, "this kernel sets aside huge pages of %d KiB at boot only (hugepagesz= and hugepages= on its command line)", size>>10)
		}
		return HugePool{}, err
	}
	return r.HugePool(node, size)
}
