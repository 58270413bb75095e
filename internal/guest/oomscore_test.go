package guest_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// The kernel ends guests of less importance first when memory runs out.
// Promise: S12
func TestOOMScore_ByPriority(t *testing.T) {
	d := newDaemon(t)
	last := -1000
	for _, priority := range []int{-1000, 0, 1000} {
		name := fmt.Sprintf("priority%d", priority)
		ok(t, launch.Start(d.ctx(), d.define(small(name)), scope.Daemon("a test"), launch.StartOptions{Paused: true, Priority: priority}))
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", d.pid(name)))
		ok(t, err)
		score, err := strconv.Atoi(strings.TrimSpace(string(text)))
		ok(t, err)
		if score <= last || score < 100 || score > 500 {
			t.Errorf("a guest of priority %d has score %d, and the one before it %d", priority, score, last)
		}
		last = score
	}
}
