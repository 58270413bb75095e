package kernel

import (
	"os"
	"strconv"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// SetOOMScore says how gladly the kernel ends a process when memory runs out: from
// -1000, never, to 1000, before all others. What the process starts inherits it.
func (r Root) SetOOMScore(pid, score int) error {
	path := r.path("proc", strconv.Itoa(pid), "oom_score_adj")
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err == nil {
		_, err = f.WriteString(strconv.Itoa(score))
		f.Close()
	}
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot set the order in which process %d is ended when memory runs out", pid)
}
