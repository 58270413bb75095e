package storm

import (
	"context"

	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/lab/node"
	"github.com/lodge-kvm/lodge/lab/remote"
	"github.com/lodge-kvm/lodge/xdr"
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

// away says whether guests of a shape need disks that the daemon's host does not see.
func (t *target) away(s shape) bool { return !t.at.Local() && s.disks > 0 }

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
			t.run.Skipped = append(t.run.Skipped, Skipped{t.cell, "the daemon's own memory, processor time and files are not measured: " + t.target.unseen})
		}
	default:
	}
}
