package provision

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lodge-kvm/lodge/internal/guest/machine"
)

// busyQEMU connects as often as it is let in, and has nothing to say.
type busyQEMU struct {
	net.Listener

	ctx context.Context
	let int
}

func (q *busyQEMU) Accept() (net.Conn, error) {
	if err := q.ctx.Err(); err != nil {
		return nil, err
	}
	q.let++
	ours, theirs := net.Pipe()
	return ours, theirs.Close()
}

// TestRelay_AQEMUThatConnectsOnAndOnIsPaced: neither a server that is away nor short exchanges
// keep the daemon busy.
func TestRelay_AQEMUThatConnectsOnAndOnIsPaced(t *testing.T) {
	away := func() (net.Conn, error) { return nil, errors.New("no server") }
	there := func() (net.Conn, error) {
		ours, theirs := net.Pipe()
		return ours, theirs.Close()
	}
	for name, connect := range map[string]func() (net.Conn, error){"no server": away, "short exchanges": there} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const lasts = 10*acceptPause - time.Millisecond
				ctx, stop := context.WithTimeout(t.Context(), lasts)
				defer stop()
				const most = 1000 // of an unpaced QEMU, which would have no end
				tries := 0
				counted := func() (net.Conn, error) {
					if tries++; tries == most {
						stop()
					}
					return connect()
				}
				qemu := &busyQEMU{ctx: ctx}
				one := &machine.Relay{Listener: qemu, Done: make(chan struct{})}
				serveRelay(ctx, one, counted)
				if qemu.let != 10 {
					t.Errorf("it is let in %d times in %v", qemu.let, lasts)
				}
			})
		})
	}
}
