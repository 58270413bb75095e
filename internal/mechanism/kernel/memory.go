package kernel

import (
	"strconv"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Memory is the use of RAM and swap, in bytes. A node knows no Buffers, Cached,
// Available and swap; they are 0 there.
type Memory struct {
	Total, Free, Available uint64
	Buffers, Cached        uint64
	SwapTotal, SwapFree    uint64
}

// Memory reads /proc/meminfo.
func (r Root) Memory() (Memory, error) {
	text, err := r.read("proc/meminfo")
	if err != nil {
		return Memory{}, fault.Wrap(err, fault.Of(err), fault.Host, "cannot read the host's memory")
	}
	return parseMeminfo(text), nil
}

// NodeMemory reads the memory of one NUMA node.
func (r Root) NodeMemory(node int) (Memory, error) {
	name := "node" + strconv.Itoa(node)
	text, err := r.read(nodeDir, name, "meminfo")
	if err != nil {
		return Memory{}, fault.Wrap(err, fault.Of(err), fault.Host, "cannot read the memory of cell %d", node)
	}
	return parseMeminfo(strings.ReplaceAll(text, "Node "+strconv.Itoa(node)+" ", "")), nil
}

func parseMeminfo(text string) Memory {
	var m Memory
	fields := map[string]*uint64{
		"MemTotal": &m.Total, "MemFree": &m.Free, "MemAvailable": &m.Available,
		"Buffers": &m.Buffers, "Cached": &m.Cached,
		"SwapTotal": &m.SwapTotal, "SwapFree": &m.SwapFree,
	}
	keyed(text, ":", func(key, value string) {
		if into, ok := fields[key]; ok {
			if kib, err := strconv.ParseUint(strings.TrimSuffix(value, " kB"), 10, 54); err == nil {
				*into = kib << 10
			}
		}
	})
	return m
}
