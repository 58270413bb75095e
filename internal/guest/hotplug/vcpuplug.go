package hotplug

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
)

// VCPUSlot is a slot for a vCPU, as QEMU names it.
type VCPUSlot struct {
	Type  string
	Props map[string]any
	Path  string `json:"qom-path"` // empty: the slot is free
}

// QueryVCPUSlots lists the slots for vCPUs in the order of their use.
func QueryVCPUSlots(ctx context.Context, s *qmp.Session) ([]VCPUSlot, error) {
	var slots []VCPUSlot
	if err := s.Execute(ctx, "query-hotpluggable-cpus", nil, &slots); err != nil {
		return nil, err
	}
	slices.SortFunc(slots, func(a, b VCPUSlot) int {
		return cmp.Or(compareProp(a, b, "socket-id"), compareProp(a, b, "die-id"), compareProp(a, b, "core-id"), compareProp(a, b, "thread-id"))
	})
	return slots, nil
}

func compareProp(a, b VCPUSlot, name string) int {
	x, _ := a.Props[name].(float64)
	y, _ := b.Props[name].(float64)
	return cmp.Compare(x, y)
}

// CountVCPUs counts the slots that have a processor.
func CountVCPUs(slots []VCPUSlot) (n uint) {
	for _, sl := range slots {
		if sl.Path != "" {
			n++
		}
	}
	return n
}

// plugVCPUs attaches or detaches vCPUs until there are n. It returns how many there are then, also on
// failure. 0: unknown.
func plugVCPUs(ctx context.Context, s *qmp.Session, n uint) (uint, error) {
	slots, err := QueryVCPUSlots(ctx, s)
	if err != nil {
		return 0, err
	}
	if have := CountVCPUs(slots); have > n {
		return unplugVCPUs(ctx, s, slots, n)
	}
	have := CountVCPUs(slots)
	for i := 0; i < len(slots) && have < n; i++ {
		if slots[i].Path != "" {
			continue
		}
		args := map[string]any{"driver": slots[i].Type, "id": "vcpu" + strconv.Itoa(i)}
		maps.Copy(args, slots[i].Props)
		if err := failpoint.Err("vcpu.plug"); err != nil {
			return have, err
		}
		if err := s.Execute(ctx, "device_add", args, nil); err != nil {
			return have, err
		}
		failpoint.Reach("vcpu.plugged")
		have++
	}
	return have, nil
}

// unplugVCPUs asks the guest to release vCPUs until n are left, and waits at most detachPatience.
func unplugVCPUs(ctx context.Context, s *qmp.Session, slots []VCPUSlot, n uint) (uint, error) {
	have := CountVCPUs(slots)
	asked := have
	for i := len(slots) - 1; i > 0 && asked > n; i-- {
		id, hot := strings.CutPrefix(slots[i].Path, "/machine/peripheral/")
		if !hot {
			continue // vCPUs from the start cannot be removed
		}
		if err := s.Execute(ctx, "device_del", map[string]any{"id": id}, nil); err != nil {
			return have, err
		}
		asked--
	}
	if asked != n {
		return have, fault.New(fault.Unsupported, fault.Domain, "the guest was started with %d vCPUs, which cannot be unplugged", asked)
	}
	return awaitVCPUs(ctx, s, n)
}

// slotInterval is how often QEMU is asked whether the guest has released vCPUs. QEMU's event cannot be
// used: it goes to the guest's loop, and this work runs beside it.
const slotInterval = 20 * time.Millisecond

// awaitVCPUs waits, at most detachPatience, until the guest has at most n vCPUs. It returns their number.
func awaitVCPUs(ctx context.Context, s *qmp.Session, n uint) (uint, error) {
	patience, cancel := context.WithTimeout(ctx, detachPatience)
	defer cancel()
	again := time.NewTicker(slotInterval)
	defer again.Stop()
	for {
		slots, err := QueryVCPUSlots(ctx, s)
		if err != nil {
			return 0, err
		}
		have := CountVCPUs(slots)
		if have <= n {
			return have, nil
		}
		select {
		case <-again.C:
		case <-patience.Done():
			return have, fault.New(fault.Timeout, fault.Domain, "the guest was asked to release vCPUs and still has %d instead of %d", have, n)
		}
	}
}
