package storm

import (
	"context"
	"path"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/remote"
	"github.com/lodge-kvm/lodge/lab/node"
	"github.com/lodge-kvm/lodge/lab/pool"
)

// checkAddresses refuses what cannot be reached, and what needs QEMU's processes
// where these are another host's, before anything is made.
func checkAddresses(o Options) error {
	for _, t := range o.Targets {
		at, err := remote.Parse(t.Address)
		if err != nil {
			return fault.Wrap(err, fault.Of(err), fault.Host, "target %s", t.Name)
		}
		if o.Direct && !at.Local() {
			return fault.New(fault.Unsupported, fault.Host, "target %s is reached by %s: QEMU is run without a daemon on this host only, and with what a daemon of this host gave it", t.Name, at.Way)
		}
	}
	return nil
}

// near is the directory on this host in which the lab has its own: that for disks, but
// where that is another host's; "" is the usual one.
func (o *Options) near() string {
	for _, t := range o.Targets {
		if at, err := remote.Parse(t.Address); err == nil && at.Local() {
			return o.Directory
		}
	}
	return ""
}

// locate sees that all daemons are on one host, as they tell, and takes the facts of
// that host: of another one as libvirt has words for them.
func (b *bench) locate(ctx context.Context, c *remote.Conn, t *target) error {
	var ret xdr.WithHostname
	if err := c.Call(ctx, xdr.ProcConnectGetHostname, nil, &ret); err != nil {
		return err
	}
	for _, other := range b.targets {
		if other.host != ret.Hostname {
			return fault.New(fault.Invalid, fault.Host, "it runs on host %s, and %s on %s: values of hosts that differ are not compared", ret.Hostname, other.Name, other.host)
		}
	}
	t.host = ret.Hostname
	if t.at.Local() || len(b.targets) > 0 {
		return nil
	}
	there, err := node.Host(ctx, c)
	b.run.Host = there
	return err
}

// disksAfar are where a daemon of another host keeps the guests' disks: volumes of a
// pool of the run's own, in a directory of that host.
type disksAfar struct {
	pool xdr.StoragePool
	made map[string]bool // by a volume's name
}

// makeDisksAfar makes those of some guests that are not there yet.
func (t *turn) makeDisksAfar(ctx context.Context, guests int) error {
	c, err := t.reach(ctx, t.target)
	if err != nil {
		return err
	}
	defer c.Close()
	inTime := func(do func(context.Context) error) error {
		ctx, stop := context.WithTimeoutCause(ctx, t.Patience, errCut)
		defer stop()
		return do(ctx)
	}
	if t.target.disks == nil {
		d := &disksAfar{made: map[string]bool{}}
		err := inTime(func(ctx context.Context) (err error) {
			d.pool, err = pool.Make(ctx, c, path.Base(t.target.dir), t.target.dir)
			return err
		})
		if err != nil {
			return fault.Wrap(err, fault.Of(err), fault.Pool, "the guests' disks are to lie below --directory, on the daemon's host")
		}
		t.target.disks = d
	}
	for guest := range guests {
		for i := range t.shape.disks {
			name := path.Base(diskPath(t.target.dir, t.name(guest), i))
			if t.target.disks.made[name] {
				continue
			}
			err := inTime(func(ctx context.Context) error {
				_, err := pool.File(ctx, c, t.target.disks.pool, name, diskSize)
				return err
			})
			if err != nil {
				return err
			}
			t.target.disks.made[name] = true
		}
	}
	return nil
}

// dropDisks takes away what makeDisksAfar has made.
func (t *turn) dropDisks(ctx context.Context) error {
	if t.target.disks == nil {
		return nil
	}
	ctx, stop := context.WithTimeoutCause(ctx, t.Patience+time.Duration(len(t.target.disks.made))*time.Second, errCut)
	defer stop()
	c, err := t.reach(ctx, t.target)
	if err != nil {
		return err
	}
	defer c.Close()
	return pool.Remove(ctx, c, t.target.disks.pool)
}

// roomAfar is affords for guests at another host, of which memory alone is known.
func (t *turn) roomAfar(ctx context.Context) error {
	c, err := t.reach(ctx, t.target)
	if err != nil {
		return err
	}
	defer c.Close()
	_, free, err := node.Memory(ctx, c)
	if err != nil {
		return err
	}
	return enough(t.cell.guests(), uint64(t.shape.memory)<<20, free)
}

// tellUnseen keeps why a turn has no value of the daemon's own process.
func (t *turn) tellUnseen() {
	switch t.cell.Scenario {
	case Start, Thousand, Connect:
		if t.target.Kind == Daemon && t.target.pid == 0 {
			t.run.Skipped = append(t.run.Skipped, Skipped{Cell: t.cell, Reason: "the daemon's own memory, processor time and files are not measured: " + t.target.unseen, Unasked: true})
		}
	default:
	}
}
