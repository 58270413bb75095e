package kernel

import (
	"os"
	"strconv"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// SetOOMScore sets the priority of a process for the kernel's OOM killer: from -1000, never
// killed, to 1000, killed first. Processes that it starts inherit the score.
func (r Root) SetOOMScore(pid, score int) error {
	path := r.path("proc", strconv.Itoa(pid), "oom_score_adj")
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err == nil {
		_, err = f.WriteString(strconv.Itoa(score))
		f.Close()
	}
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot set the order in which process %d is ended when memory runs out", pid)
}
