package storm

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/remote"
)

// errSpared is why a daemon is not killed.
var errSpared = fault.New(fault.Unsupported, fault.Host, "the lab has not started this daemon, so it does not kill it")

// adopt kills the daemon while all guests run, and takes the times from the end
// of the old process until another one answers, until it has told the state of
// each guest (which may come from a file), and until each has also obeyed: a
// paused guest that is suspended stays as it is, but has to be in its daemon's
// hands. Either the lab runs the daemon's command again, or that command does so
// itself.
func (t *turn) adopt(ctx context.Context) error {
	if t.target.pid == 0 && t.target.unseen != "" {
		return fault.New(fault.Unsupported, fault.Host, "the daemon is not killed: %s", t.target.unseen)
	}
	if t.target.service == nil || t.target.pid == 0 {
		return errSpared
	}
	n := t.cell.Guests
	if err := t.quietly(ctx, 0, n, t.define, t.start); err != nil {
		return err
	}
	closeAll(t.clients)
	t.clients = nil
	begin, err := t.murder(ctx)
	if err != nil {
		return err
	}
	c, err := t.reach(ctx, t.target)
	if err != nil {
		return err
	}
	t.sample(MetricReady, Seconds, time.Since(begin).Seconds())
	err = t.find(c, t.target)
	t.clients = append(t.clients, c)
	if err != nil {
		return err
	}
	if err := t.await(ctx, MetricAnswer, begin, info); err != nil {
		return err
	}
	if err := t.await(ctx, MetricAdopt, begin, suspend); err != nil {
		return err
	}
	if t.clients, err = t.replenish(ctx); err != nil {
		return err
	}
	return t.quietly(ctx, 0, n, t.destroy, t.undefine)
}

// murder kills the daemon, and gives when it was gone. If its command has ended
// with it, that is run again at once.
func (t *turn) murder(ctx context.Context) (begin time.Time, err error) {
	fd, err := unix.PidfdOpen(t.target.pid, 0)
	if err == nil {
		err = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}
	if err != nil {
		return begin, fault.Wrap(err, fault.Failed, fault.Host, "cannot kill the daemon")
	}
	err = errors.Join(gone(ctx, fd), unix.Close(fd))
	begin = time.Now()
	if err != nil || !t.target.service.is(t.target.pid) {
		return begin, err
	}
	<-t.target.service.ended
	if err := t.target.service.end(); err != nil {
		return begin, err
	}
	t.target.service, err = launch(ctx, t.target.Start, filepath.Join(t.dir, t.target.Name+".log"))
	return begin, err
}

// await waits until a question about each guest is answered well.
func (t *turn) await(ctx context.Context, metric Metric, begin time.Time, question func(context.Context, *remote.Conn, xdr.Domain) error) error {
	limit, stop := context.WithTimeoutCause(ctx, t.Patience, errCut)
	defer stop()
	var missing atomic.Int64
	var group sync.WaitGroup
	for client := range min(sweepers, t.cell.Guests) {
		group.Go(func() {
			for guest := client; guest < t.cell.Guests; guest += sweepers {
				if !t.insist(limit, func() error { return question(limit, t.clients[0], t.domains[guest]) }) {
					missing.Add(1)
				}
			}
		})
	}
	group.Wait()
	took := time.Since(begin)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if n := missing.Load(); n > 0 {
		t.blocked(metric, took, fmt.Sprintf("%d of %d guests were not there", n, t.cell.Guests))
		return errCut
	}
	t.sample(metric, Seconds, took.Seconds())
	return nil
}

// insist asks again and again until the answer is good; false when time is up.
func (t *turn) insist(ctx context.Context, ask func() error) bool {
	again := time.NewTicker(knock)
	defer again.Stop()
	for ask() != nil {
		select {
		case <-again.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// replenish adds connections until there are as many as clients.
func (t *turn) replenish(ctx context.Context) ([]*remote.Conn, error) {
	more, err := t.dial(ctx, t.Clients-len(t.clients))
	return append(t.clients, more...), err
}
