package pages

import (
	"github.com/lodge-kvm/lodge/lab/oltp"
	"github.com/lodge-kvm/lodge/lab/workload"
)

// measure is what a load's throughput is told by in pictures: as the papers do.
type measure struct {
	op    string
	label string
	times float64 // what is done in a second is multiplied with this
	bytes bool    // it is told by its bytes
}

const mebi = 1 << 20

// measure finds a load's by the operations that it has.
func (f *facts) measure(load string) measure {
	ops := f.ops[load]
	volume := len(ops) > 0
	for op := range ops {
		volume = volume && (op == "read" || op == "write" || !counted(op))
	}
	switch {
	case ops[workload.OpCycle]:
		return measure{op: workload.OpCycle, label: "operations in a minute", times: 60}
	case ops[oltp.NewOrder]:
		return measure{op: all, label: "transactions in a minute", times: 60}
	case volume:
		return measure{op: all, label: "MiB in a second", bytes: true}
	}
	return measure{op: all, label: "done in a second", times: 1}
}

// each is what one operation a second of a flow counts.
func (m measure) each(w *flow) float64 {
	if !m.bytes {
		return m.times
	}
	if w.sum.done == 0 {
		return 0
	}
	return w.sum.bytes / w.sum.done / mebi
}
