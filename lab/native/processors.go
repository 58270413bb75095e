package native

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Processors deals the host's processors out to places. Its methods may be called
// from many goroutines.
type Processors struct {
	mu    sync.Mutex
	order []int       // one of each core before any second one of a core
	used  map[int]int // by how many places
}

// NewProcessors knows those that this process may use, of the host below a root.
func NewProcessors(root string) (*Processors, error) {
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		return nil, fmt.Errorf("cannot tell which processors there are: %w", err)
	}
	var all []int
	for cpu := 0; len(all) < allowed.Count(); cpu++ {
		if allowed.IsSet(cpu) {
			all = append(all, cpu)
		}
	}
	return &Processors{order: coresFirst(root, all), used: map[int]int{}}, nil
}

// coresFirst puts one processor of each core before their siblings: a scheduler with
// room would spread a guest's in the same way.
func coresFirst(root string, cpus []int) []int {
	rank, seen := map[int]int{}, map[string]int{}
	for _, cpu := range cpus {
		path := filepath.Join(root, fmt.Sprintf("sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu))
		text, err := os.ReadFile(path)
		if err != nil {
			continue // nothing is told of its core: it has one of its own
		}
		core := strings.TrimSpace(string(text))
		rank[cpu] = seen[core]
		seen[core]++
	}
	return slices.SortedStableFunc(slices.Values(cpus), func(a, b int) int { return cmp.Compare(rank[a], rank[b]) })
}

// Count is how many there are.
func (p *Processors) Count() int { return len(p.order) }

// Take gives as many as are wanted, those that the fewest places use; nil where there
// are not so many. They are to be given back.
func (p *Processors) Take(count int) []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if count > len(p.order) {
		return nil
	}
	least := slices.SortedStableFunc(slices.Values(p.order), func(a, b int) int { return cmp.Compare(p.used[a], p.used[b]) })
	taken := slices.Clone(least[:count])
	for _, cpu := range taken {
		p.used[cpu]++
	}
	return taken
}

// Give takes them back.
func (p *Processors) Give(cpus []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, cpu := range cpus {
		p.used[cpu]--
	}
}
