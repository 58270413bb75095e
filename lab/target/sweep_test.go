package target

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/remote/remotetest"
	"github.com/lodge-kvm/lodge/lab/scenario"
	"github.com/lodge-kvm/lodge/lab/target/targettest"
)

// mute is a daemon that lists three guests and then answers nothing.
type mute struct{ calls int }

func (m *mute) Call(_ context.Context, proc int32, _, ret xdr.Message) error {
	if m.calls++; proc == xdr.ProcConnectListAllDomains {
		ret.(*xdr.ConnectListAllDomainsRet).Domains = []xdr.Domain{{Name: "lab-abc-1"}, {Name: "lab-abc-2"}, {Name: "lab-abc-3"}}
		return nil
	}
	return fault.New(fault.Timeout, fault.Call, "no answer")
}

// Promise: L42
func TestSweepWaitsOnceForADaemonThatDoesNotAnswer(t *testing.T) {
	m := &mute{}
	if err := sweep(t.Context(), m, "lab-abc", true); !fault.Is(err, fault.Timeout) || m.calls != 2 {
		t.Errorf("%v after %d calls", err, m.calls)
	}
}

// late is a daemon that makes a guest when the lab does not wait for it any more.
type late struct {
	targettest.Daemon
	stop atomic.Pointer[context.CancelCauseFunc]
}

var errEnough = errors.New("enough")

func (l *late) answer(proc int32, args xdr.Message) (xdr.Message, error) {
	if proc == xdr.ProcDomainCreateXML {
		(*l.stop.Load())(errEnough)
	}
	return l.Answer(proc, args)
}

// Promise: L42
func TestAGuestThatComesUpTooLateIsDestroyed(t *testing.T) {
	l := &late{}
	s := open(t, connectTo(t, remotetest.Listen(t, l.answer)))
	for range 1000 {
		ctx, stop := context.WithCancelCause(t.Context())
		l.stop.Store(&stop)
		g, err := s.Start(ctx, "lab-abc-t1-db", 1, 1, scenario.Guest{Memory: 128 * scenario.MiB, VCPUs: 1, MaxVCPUs: 1})
		if err == nil { // the answer was faster, for once
			if err := g.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if left := l.Left(); !errors.Is(err, errEnough) || slices.Contains(left, "domain lab-abc-t1-db") {
			t.Errorf("%v, left: %q", err, left)
		}
		return
	}
	t.Error("the lab never stopped waiting")
}
