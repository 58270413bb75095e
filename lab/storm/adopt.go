package storm

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/lab/remote"
)

// adopt kills the daemon while all guests run, and takes the time until another
// one answers for each of them, from the end of the old process. Either the lab
// runs the daemon's command again, or that command does so itself.
func (t *turn) adopt(ctx context.Context) error {
	if t.target.service == nil || t.target.pid == 0 {
		return fault.New(fault.Unsupported, fault.Host, "the lab has not started this daemon, so it does not kill it")
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
	if err := t.answered(ctx, begin); err != nil {
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

// answered waits until the daemon has told of each guest that it is there.
func (t *turn) answered(ctx context.Context, begin time.Time) error {
	limit, stop := context.WithTimeoutCause(ctx, t.Patience, errCut)
	defer stop()
	var mu sync.Mutex
	missing := 0
	var group sync.WaitGroup
	for client := range min(sweepers, t.cell.Guests) {
		group.Go(func() {
			for guest := client; guest < t.cell.Guests; guest += sweepers {
				if err := t.present(limit, guest); err != nil {
					mu.Lock()
					missing++
					mu.Unlock()
				}
			}
		})
	}
	group.Wait()
	took := time.Since(begin)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if missing > 0 {
		t.blocked(MetricAdopt, took, fmt.Sprintf("%d of %d guests did not answer", missing, t.cell.Guests))
		return errCut
	}
	t.sample(MetricAdopt, Seconds, took.Seconds())
	return nil
}

func (t *turn) present(ctx context.Context, guest int) error {
	again := time.NewTicker(knock)
	defer again.Stop()
	for {
		err := info(ctx, t.clients[0], t.domains[guest])
		if err == nil {
			return nil
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return err
		}
	}
}

// replenish adds connections until there are as many as clients.
func (t *turn) replenish(ctx context.Context) ([]*remote.Conn, error) {
	more, err := t.dial(ctx, t.Clients-len(t.clients))
	return append(t.clients, more...), err
}
