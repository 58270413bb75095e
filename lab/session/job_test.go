package session_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/session"
	"github.com/lodge-kvm/lodge/lab/workload"
)

// server counts what it is asked.
func server(t *testing.T) (config func(duration string) json.RawMessage, asked *atomic.Int64) {
	t.Helper()
	asked = &atomic.Int64{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		fmt.Fprint(w, "page")
	}))
	t.Cleanup(s.Close)
	return func(duration string) json.RawMessage {
		return fmt.Appendf(nil, `{"mode": "closed", "users": 2, "think": "2ms", "duration": %q, "interval": "100ms", "address": %q, "requests": [{"path": "/", "contains": "page"}]}`,
			duration, strings.TrimPrefix(s.URL, "http://"))
	}, asked
}

// collect reads all intervals and gives their sum.
func collect(t *testing.T, j *session.Job) <-chan workload.Total {
	t.Helper()
	sum := make(chan workload.Total, 1)
	go func() {
		var total workload.Total
		for i := range j.Intervals() {
			if err := total.Add(i); err != nil {
				t.Error(err)
			}
		}
		sum <- total
	}()
	return sum
}

func TestALoadTellsAllThatItDid(t *testing.T) {
	s := begin(t)
	config, asked := server(t)
	j, err := s.Start(t.Context(), "web", config("1s"))
	if err != nil {
		t.Fatal(err)
	}
	sum := collect(t, j)
	total, err := j.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if all := total.All(); all.Done == 0 || all.Done+all.Errors != asked.Load() || all.Latency.TotalCount() != all.Done {
		t.Errorf("the load says %d done and %d errors, the server was asked %d times", all.Done, all.Errors, asked.Load())
	}
	if told := (<-sum).All(); told.Done != total.All().Done {
		t.Errorf("the intervals have %d, the total %d", told.Done, total.All().Done)
	}
}

func TestALoadThatIsStoppedTellsWhatItDid(t *testing.T) {
	s := begin(t)
	config, asked := server(t)
	j, err := s.Start(t.Context(), "web", config("1h"))
	if err != nil {
		t.Fatal(err)
	}
	first := <-j.Intervals()
	sum := collect(t, j)
	total, err := j.Stop(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// Two users may be cut off in the middle.
	if all := total.All(); all.Done > asked.Load() || all.Done < asked.Load()-2 {
		t.Errorf("the load says %d done, the server was asked %d times", all.Done, asked.Load())
	}
	if got := (<-sum).All().Done; got+(workload.Total{Ops: first.Ops}).All().Done != total.All().Done {
		t.Errorf("the intervals do not add up to %d", total.All().Done)
	}
}

func TestALoadThatCannotRunSaysWhy(t *testing.T) {
	s := begin(t)
	for kind, config := range map[string]string{"no-such-load": "{}", "web": `{"duration": "1s"}`} {
		j, err := s.Start(t.Context(), kind, json.RawMessage(config))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := j.Wait(t.Context()); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", kind, err)
		}
		if _, more := <-j.Intervals(); more {
			t.Errorf("%s tells an interval", kind)
		}
	}
}

func TestALoadEndsWithWhoStartedIt(t *testing.T) {
	s := begin(t)
	config, asked := server(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	j, err := s.Start(ctx, "web", config("1h"))
	if err != nil {
		t.Fatal(err)
	}
	await(t, "the first request", func() bool { return asked.Load() > 0 })
	cancel(nil)
	if _, err := j.Wait(t.Context()); err == nil {
		t.Error("it ends well")
	}
	// The agent of this test cannot end before its loads have: see serve.
}
