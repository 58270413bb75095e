// Package agent is the lab's end in the machine that is measured: it runs
// programs, moves files, tells the time and the kernel's counters, and runs
// loads, for the host that talks to it as package wire says.
//
// It is the same in a guest (there under the first process, on a virtio-serial
// port) and outside of one (on a unix socket). It trusts its host wholly: it
// must never be put into a machine that matters.
//
// What belongs here: answering calls. What the first process of a guest does is
// in lab/agent/cmd.
package agent

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"sync"

	"github.com/lodge-kvm/lodge/lab/wire"
)

// Agent answers hosts.
type Agent struct {
	// Power ends the machine; nil where that is not the agent's to do.
	Power func()
}

// Serve answers on one connection until that ends, and leaves nothing running
// of what was called over it. A host's Hello ends the session before it.
func (a *Agent) Serve(ctx context.Context, conn io.ReadWriter) error {
	from, out := wire.NewReader(conn), wire.NewOutbox(conn, 0)
	var open sync.WaitGroup // calls of all sessions
	var now *sitting
	defer func() {
		now.end()
		out.Close(wire.ErrClosed)
		open.Wait()
	}()
	for {
		f, err := from.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch {
		case f.Kind == wire.Hello:
			now.end()
			now = a.begin(ctx, f.Epoch, out, &open)
		case now == nil || f.Epoch != now.epoch:
			// Of a session that is over.
		case from.Skipped > 0:
			now.lose(errors.New("bytes from the host were lost"))
		default:
			if err := now.take(f); err != nil {
				now.lose(err)
			}
		}
	}
}

// begin greets a host. Sessions before it get nothing more.
func (a *Agent) begin(ctx context.Context, epoch uint32, out *wire.Outbox, open *sync.WaitGroup) *sitting {
	out.Turn(epoch)
	s := &sitting{agent: a, epoch: epoch, send: out.Send, open: open, calls: map[uint32]*call{}}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	hello, _ := json.Marshal(greeting())
	_ = out.Send(wire.Frame{Kind: wire.Welcome, Epoch: epoch, Payload: hello})
	return s
}

func greeting() wire.Greeting {
	name, _ := os.Hostname()
	return wire.Greeting{
		Version: wire.Version, Name: name, CPUs: online("/"),
		Kernel: trimmed("/proc/sys/kernel/osrelease"), Boot: trimmed("/proc/sys/kernel/random/boot_id"),
	}
}
