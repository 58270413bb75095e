package guest_test

import (
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// A running guest gets a thread that QEMU has, and both definitions say so, also after its
// daemon was ended meanwhile. What cannot be added changes nothing.
func TestAddIOThread_RunningAndStored(t *testing.T) {
	d := newDaemon(t)
	g := d.define(small("threads"))
	ok(t, g.Start(d.ctx(), guest.StartOptions{}))
	counts := func(when string, want uint) {
		t.Helper()
		v := g.View()
		if v.Active.IOThreads != want || v.Inactive.IOThreads != want {
			t.Errorf("%s: the running definition has %d iothreads and the stored one %d, want %d", when, v.Active.IOThreads, v.Inactive.IOThreads, want)
		}
		if threads, err := g.IOThreads(d.ctx()); err != nil || uint(len(threads)) != want {
			t.Errorf("%s: QEMU has %v, %v", when, threads, err)
		}
	}
	for id, want := range map[uint]fault.Kind{0: fault.Invalid, 2: fault.Unsupported} {
		if err := g.AddIOThread(d.ctx(), id, both); !fault.Is(err, want) {
			t.Errorf("iothread %d: %v", id, err)
		}
	}
	counts("after refusals", 0)
	ok(t, g.AddIOThread(d.ctx(), 1, both))
	counts("when one was added", 1)
	if err := g.AddIOThread(d.ctx(), 1, both); !fault.Is(err, fault.Invalid) {
		t.Errorf("the same once more: %v", err)
	}
	ok(t, d.whileStopped(g, func() error { return g.AddIOThread(d.ctx(), 2, both) }, func() {}))
	counts("when a second one was added", 2)
	d.reopen(func() {})
	g = d.again(g)
	eventually(t, "it was asked", func() bool { return g.Job().Kind == domain.JobNone })
	counts("under the next daemon", 2)
}
