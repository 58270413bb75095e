package qmptest_test

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp/qmptest"
)

// judged is a test that keeps its failures to itself.
type judged struct {
	testing.TB
	mu       sync.Mutex
	failures []string
	cleanup  []func()
}

func (j *judged) Error(args ...any)                 { j.fail(fmt.Sprint(args...)) }
func (j *judged) Errorf(format string, args ...any) { j.fail(fmt.Sprintf(format, args...)) }
func (j *judged) Cleanup(f func())                  { j.cleanup = append(j.cleanup, f) }

func (j *judged) fail(text string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.failures = append(j.failures, text)
}

// TestMonitor_FailsUnexpected: each of these is a bug that a test of a
// caller has to find.
func TestMonitor_FailsUnexpected(t *testing.T) {
	type object = map[string]any
	for name, c := range map[string]struct {
		script func(*qmptest.Monitor)
		args   any
		want   string
	}{
		"all is well":         {func(m *qmptest.Monitor) { m.Expect("device_del").With(object{"id": "a"}) }, object{"id": "a"}, ""},
		"unexpected":          {func(*qmptest.Monitor) {}, object{"id": "a"}, "nothing was expected"},
		"out of order":        {func(m *qmptest.Monitor) { m.Expect("cont") }, object{"id": "a"}, "when cont was expected"},
		"not what was meant":  {func(m *qmptest.Monitor) { m.Expect("device_del").With(object{"id": "b"}) }, object{"id": "a"}, `when {"id":"b"} was expected`},
		"QEMU would refuse":   {func(m *qmptest.Monitor) { m.Expect("device_del") }, object{"name": "a"}, "device_del: id is missing"},
		"QEMU would not say":  {func(m *qmptest.Monitor) { m.Expect("device_del").Return(object{"done": true}) }, object{"id": "a"}, "the scripted answer is not QEMU's"},
		"QEMU would not tell": {func(m *qmptest.Monitor) { m.Expect("device_del").Then("DEVICE_DELETED", nil) }, object{"id": "a"}, "the scripted event is not QEMU's"},
		"never asked":         {func(m *qmptest.Monitor) { m.Expect("device_del"); m.Expect("cont") }, object{"id": "a"}, "never asked cont"},
	} {
		t.Run(name, func(t *testing.T) {
			j := &judged{TB: t}
			m := qmptest.New(j)
			c.script(m)
			s, err := qmp.New(t.Context(), m.Conn(), slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			_ = s.Execute(t.Context(), "device_del", c.args, nil)
			for _, end := range j.cleanup {
				end()
			}
			s.Close()
			if got := strings.Join(j.failures, "; "); c.want == "" && got != "" || !strings.Contains(got, c.want) {
				t.Errorf("the test fails with %q, want %q", got, c.want)
			}
		})
	}
}
