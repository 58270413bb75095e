package kernel

import (
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

const (
	cpuDir  = "sys/devices/system/cpu"
	nodeDir = "sys/devices/system/node"
)

// Topology reads the processors, cells, distances, caches and page pools. It
// costs about ten small files a processor. On a kernel without NUMA everything
// is in cell 0.
func (r Root) Topology() (*topology.Host, error) {
	online, err := r.cpuList(cpuDir, "online")
	if err != nil {
		return nil, fault.Wrap(err, fault.Of(err), fault.Host, "cannot tell which processors are online")
	}
	h := &topology.Host{Online: online}
	if h.Present, err = r.cpuList(cpuDir, "present"); err != nil {
		h.Present = online
	}
	cpus, caches := r.cpus(online)
	h.Caches = caches
	nodes, err := r.cpuList(nodeDir, "online")
	if err != nil || nodes.IsEmpty() {
		h.Cells, err = r.singleCell(cpus)
		return h, err
	}
	for id := range nodes.All() {
		cell, err := r.cell(id, nodes, cpus)
		if err != nil {
			return nil, fault.Wrap(err, fault.Of(err), fault.Host, "cannot read cell %d", id)
		}
		h.Cells = append(h.Cells, cell)
	}
	return h, nil
}

func (r Root) cpuList(elem ...string) (topology.CPUSet, error) {
	text, err := r.read(elem...)
	if err != nil {
		return topology.CPUSet{}, err
	}
	return topology.ParseCPUSet(text)
}

// cpus reads where each online processor sits, and the caches they share.
func (r Root) cpus(online topology.CPUSet) (map[int]topology.CPU, []topology.Cache) {
	cpus := make(map[int]topology.CPU, online.Len())
	var caches []topology.Cache
	for id := range online.All() {
		dir := cpuDir + "/cpu" + strconv.Itoa(id)
		cpu := topology.CPU{
			ID:      id,
			Package: max(r.number(0, dir, "topology/physical_package_id"), 0),
			Die:     max(r.number(0, dir, "topology/die_id"), 0),
			Cluster: r.number(-1, dir, "topology/cluster_id"),
			Core:    max(r.number(id, dir, "topology/core_id"), 0),
		}
		// Architectures without clusters say so with an all-ones number.
		if cpu.Cluster >= 0xffff {
			cpu.Cluster = -1
		}
		siblings, err := r.cpuList(dir, "topology/thread_siblings_list")
		if cpu.Siblings = siblings.Intersect(online); err != nil || !cpu.Siblings.Contains(id) {
			cpu.Siblings = topology.CPUs(id)
		}
		var own []topology.Cache
		own, cpu.Cache = r.caches(dir, id, online)
		caches = append(caches, own...)
		cpus[id] = cpu
	}
	return cpus, caches
}

// caches reads those caches that have this processor as their first online user, so that
// each cache is read once. It also returns the users of the processor's last-level cache.
func (r Root) caches(dir string, cpu int, online topology.CPUSet) (first []topology.Cache, last topology.CPUSet) {
	highest := 0
	for _, index := range sortedNumbers(r.list(dir, "cache"), "index") {
		at := dir + "/cache/index" + strconv.Itoa(index)
		shared, err := r.cpuList(at, "shared_cpu_list")
		if err != nil || !shared.Contains(cpu) {
			continue
		}
		level := r.number(0, at, "level")
		if level >= highest {
			highest, last = level, shared
		}
		if shared.Intersect(online).Min() == cpu {
			first = append(first, topology.Cache{
				ID: r.number(0, at, "id"), Level: level, Kind: cacheKinds[r.attr(at, "type")],
				Size: kilobytes(r.attr(at, "size")), CPUs: shared,
			})
		}
	}
	return first, last
}

var cacheKinds = map[string]topology.CacheKind{
	"Unified":     topology.UnifiedCache,
	"Data":        topology.DataCache,
	"Instruction": topology.InstructionCache,
}

// kilobytes reads "32768K" as bytes.
func kilobytes(text string) uint64 {
	n, err := strconv.ParseUint(strings.TrimSuffix(text, "K"), 10, 50)
	if err != nil {
		return 0
	}
	return n << 10
}

func (r Root) cell(id int, nodes topology.CPUSet, cpus map[int]topology.CPU) (topology.Cell, error) {
	dir := nodeDir + "/node" + strconv.Itoa(id)
	cell := topology.Cell{ID: id}
	members, err := r.cpuList(dir, "cpulist")
	if err != nil {
		return cell, err
	}
	for n := range members.All() {
		if cpu, online := cpus[n]; online {
			cell.CPUs = append(cell.CPUs, cpu)
		}
	}
	memory, err := r.NodeMemory(id)
	if err != nil {
		return cell, err
	}
	cell.Memory = memory.Total
	cell.Pages = r.pools(memory, dir+"/hugepages")
	// The distances are in the order of the online nodes.
	values := strings.Fields(r.attr(dir, "distance"))
	for to := range nodes.All() {
		if len(values) == 0 {
			break
		}
		if value, err := strconv.Atoi(values[0]); err == nil {
			cell.Distances = append(cell.Distances, topology.Distance{Cell: to, Value: value})
		}
		values = values[1:]
	}
	return cell, nil
}

// singleCell is the host of a kernel that knows no nodes.
func (r Root) singleCell(cpus map[int]topology.CPU) ([]topology.Cell, error) {
	memory, err := r.Memory()
	if err != nil {
		return nil, err
	}
	cell := topology.Cell{Memory: memory.Total}
	for _, cpu := range cpus {
		cell.CPUs = append(cell.CPUs, cpu)
	}
	slices.SortFunc(cell.CPUs, func(a, b topology.CPU) int { return a.ID - b.ID })
	cell.Distances = []topology.Distance{{Cell: 0, Value: 10}}
	cell.Pages = r.pools(memory, "sys/kernel/mm/hugepages")
	return []topology.Cell{cell}, nil
}

// Pages reads the page pools of one cell as they are now.
func (r Root) Pages(cell int) ([]topology.PagePool, error) {
	memory, err := r.NodeMemory(cell)
	if err != nil {
		return nil, err
	}
	return r.pools(memory, nodeDir+"/node"+strconv.Itoa(cell)+"/hugepages"), nil
}

// hostPools is where the kernel keeps the host's pools of huge pages, a folder for each size.
const hostPools = "sys/kernel/mm/hugepages"

// HugePageSizes returns the sizes of huge pages that the kernel has, in bytes and in no order, whether any are
// reserved or not.
func (r Root) HugePageSizes() (sizes []uint64) {
	for _, name := range r.list(hostPools) {
		if size, is := poolSize(name); is {
			sizes = append(sizes, size)
		}
	}
	return sizes
}

// poolSize is the size of the pages of a pool, in bytes, by its folder's name.
func poolSize(name string) (uint64, bool) {
	kib, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(name, "hugepages-"), "kB"), 10, 40)
	return kib << 10, err == nil
}

// HostPages reads the page pools of all cells together. Huge pages that are
// promised to a process and not yet given do not count as free; the kernel does
// not say from which cell it will take them.
func (r Root) HostPages() ([]topology.PagePool, error) {
	memory, err := r.Memory()
	if err != nil {
		return nil, err
	}
	pools := r.pools(memory, hostPools)
	for i, pool := range pools[1:] {
		promised := r.size(hostPools, "hugepages-"+strconv.FormatUint(pool.Size>>10, 10)+"kB", "resv_hugepages")
		pools[i+1].Free -= min(promised, pool.Free)
	}
	return pools, nil
}

// HugePageDir is where the kernel keeps the pool of huge pages of one size, in
// bytes, of one cell or of the whole host.
func HugePageDir(cell int, size uint64) string {
	dir := "/" + hostPools
	if cell != topology.AnyCell {
		dir = "/" + nodeDir + "/node" + strconv.Itoa(cell) + "/hugepages"
	}
	return dir + "/hugepages-" + strconv.FormatUint(size>>10, 10) + "kB"
}

// pools reads the pools of huge pages below dir. The remaining memory makes up the
// pool of base pages.
func (r Root) pools(memory Memory, dir string) []topology.PagePool {
	base := topology.PagePool{Size: uint64(os.Getpagesize())}
	var held uint64
	pools := []topology.PagePool{base}
	for _, name := range r.list(dir) {
		size, is := poolSize(name)
		if !is {
			continue
		}
		pool := topology.PagePool{
			Size:  size,
			Total: r.size(dir, name, "nr_hugepages"),
			Free:  r.size(dir, name, "free_hugepages"),
		}
		held += pool.Size * pool.Total
		pools = append(pools, pool)
	}
	pools[0].Total = (memory.Total - min(held, memory.Total)) / base.Size
	pools[0].Free = memory.Free / base.Size
	slices.SortFunc(pools, func(a, b topology.PagePool) int {
		if a.Size < b.Size {
			return -1
		}
		return 1
	})
	return pools
}
