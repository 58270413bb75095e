package site

import (
	"context"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/agent"
	"github.com/lodge-kvm/lodge/lab/session"
)

// port is a guest's end of its line. While the guest hangs nobody reads there, and
// nothing fails.
type port struct {
	net.Conn
	hangs, thaws chan struct{}
}

func (p port) Read(into []byte) (int, error) {
	n, err := p.Conn.Read(into)
	select {
	case <-p.hangs:
		<-p.thaws
	default:
	}
	return n, err
}

// A load in a guest that hangs would never end by itself: the run goes on all the
// same.
// Promise: L21
func TestAGuestThatHangsHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		p := port{there, make(chan struct{}), make(chan struct{})}
		go func() { _ = (&agent.Agent{}).Serve(t.Context(), p) }()
		s, err := session.Open(t.Context(), here)
		if err != nil {
			t.Fatal(err)
		}
		defer close(p.thaws)
		defer s.Close() //nolint:errcheck // the guest hangs
		g := &guest{steered: steered{session: s}}
		work, done := g.heed(t.Context())
		defer done()
		<-time.After(time.Hour)
		if work.Err() != nil {
			t.Fatalf("a guest that answers is given up: %v", context.Cause(work))
		}
		close(p.hangs)
		began := time.Now()
		<-work.Done()
		if took := time.Since(began); took > 2*silence {
			t.Errorf("given up after %s", took)
		}
		if err := context.Cause(work); !fault.Is(err, fault.Unresponsive) || !strings.Contains(err.Error(), "answered nothing for 2m") {
			t.Errorf("got %v", err)
		}
	})
}
