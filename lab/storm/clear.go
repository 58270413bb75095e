package storm

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/remote"
	"github.com/lodge-kvm/lodge/lab/bare"
)

// errLeft says that something of a turn could not be taken away.
var errLeft = errors.New("something is left behind")

// clear takes away whatever the turn has left: stopped QEMUs go on, connections
// end, and no guest and no process of this run stays.
func (t *turn) clear(ctx context.Context) error {
	err := t.release()
	closeAll(t.clients)
	if t.target.Kind == Direct {
		err = errors.Join(err, t.endBare(ctx))
	} else {
		err = errors.Join(err, t.forget(ctx))
	}
	if left, failure := bare.Processes(t.prefix); failure != nil || len(left) > 0 {
		err = errors.Join(err, failure, t.kill(ctx))
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errLeft, err)
	}
	return nil
}

func (t *turn) endBare(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all error
	for i, p := range t.running {
		if p != nil {
			_, err := p.End(ctx)
			all = errors.Join(all, err)
			t.running[i] = nil
		}
	}
	return all
}

// forget destroys and undefines all guests of this run that the daemon knows. A
// daemon that does not manage to has its QEMUs killed, and is asked once more.
func (t *turn) forget(ctx context.Context) error {
	err := t.forgetOnce(ctx)
	if err == nil {
		return nil
	}
	t.Log.Warn("guests are not given up, their processes are killed", "target", t.target.Name, "reason", err)
	if err := t.kill(ctx); err != nil {
		return err
	}
	return t.forgetOnce(ctx)
}

// sweepers is how many clients take guests away at once.
const sweepers = 16

func (t *turn) forgetOnce(ctx context.Context) error {
	ctx, stop := context.WithTimeoutCause(ctx, t.forgetPatience(), errCut)
	defer stop()
	c, err := t.reach(ctx, t.target)
	if err != nil {
		return err
	}
	defer c.Close()
	mine, err := own(ctx, c, t.prefix)
	if err != nil || len(mine) == 0 {
		return err
	}
	queue := make(chan xdr.Domain, len(mine))
	for _, d := range mine {
		queue <- d
	}
	close(queue)
	var group sync.WaitGroup
	for range min(sweepers, len(mine)) {
		group.Go(func() {
			for d := range queue {
				_ = forget(ctx, c, d) // the list below tells
			}
		})
	}
	group.Wait()
	mine, err = own(ctx, c, t.prefix)
	if err == nil && len(mine) > 0 {
		err = fmt.Errorf("%d guests, %s among them: %w", len(mine), mine[0].Name, forget(ctx, c, mine[0]))
	}
	return err
}

// forgetPatience grows with the guests, of which each may take a while.
func (t *turn) forgetPatience() time.Duration {
	return t.Patience + time.Duration(t.cell.Guests)*time.Second
}

func forget(ctx context.Context, c *remote.Conn, d xdr.Domain) error {
	var err error
	if d.ID >= 0 { // it runs
		err = destroy(ctx, c, d)
	}
	if failure := undefine(ctx, c, d); failure != nil {
		return errors.Join(err, failure)
	}
	return nil
}
