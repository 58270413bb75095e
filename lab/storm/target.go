package storm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/remote"
	"github.com/lodge-kvm/lodge/lab/bare"
	"github.com/lodge-kvm/lodge/lab/machine"
)

// target is one whose work is measured, during a run.
type target struct {
	Target
	at       remote.Address
	dir      string                  // of the guests' disks, on its host
	disks    *disksAfar              // at a daemon of another host; nil: none yet
	host     string                  // that it runs on, as it tells
	pid      int                     // of the daemon; 0 where that is not known
	unseen   string                  // why it is not
	service  *service                // where the lab started the daemon
	commands map[shape]*bare.Command // of Direct
	broken   error                   // why it has no more turns
}

func (t *target) close() error {
	if t.service == nil {
		return nil
	}
	return t.service.end()
}

// meet starts a daemon if that is wanted, and asks it who it is.
func (b *bench) meet(ctx context.Context, described Target) (t *target, err error) {
	t = &target{Target: described}
	t.Kind = Daemon
	if t.at, err = remote.Parse(t.Address); err != nil {
		return nil, err
	}
	if t.dir = b.dir; !t.at.Local() {
		t.dir = path.Join(b.Directory, b.prefix+t.Name)
	}
	if t.Start != "" {
		if t.service, err = launch(ctx, t.Start, filepath.Join(b.dir, t.Name+".log")); err != nil {
			return nil, err
		}
	}
	c, err := b.reach(ctx, t)
	if err == nil {
		defer c.Close()
		err = b.ask(ctx, c, t)
	}
	if err != nil {
		return nil, errors.Join(err, t.close())
	}
	return t, nil
}

// knock is how often a daemon that comes up is tried.
const knock = 2 * time.Millisecond

// reach connects to a daemon. One that the lab has started may come up first.
func (b *bench) reach(ctx context.Context, t *target) (*remote.Conn, error) {
	ctx, stop := context.WithTimeoutCause(ctx, b.Patience, errCut)
	defer stop()
	again := time.NewTicker(knock)
	defer again.Stop()
	for {
		c, err := remote.Dial(ctx, t.Address)
		if err == nil || t.service == nil {
			return c, err
		}
		select {
		case <-again.C:
		case <-t.service.ended:
			return nil, fmt.Errorf("%w%s", err, t.service.lastWords())
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w%s", context.Cause(ctx), err, t.service.lastWords())
		}
	}
}

func (b *bench) ask(ctx context.Context, c *remote.Conn, t *target) error {
	ctx, stop := context.WithTimeoutCause(ctx, b.Patience, errCut)
	defer stop()
	var library, hypervisor xdr.WithVersion
	err := errors.Join(
		c.Call(ctx, xdr.ProcConnectGetLibVersion, nil, &library),
		c.Call(ctx, xdr.ProcConnectGetVersion, nil, &hypervisor),
	)
	domains, failure := list(ctx, c, 0)
	if err := errors.Join(err, failure); err != nil {
		return fmt.Errorf("cannot get to know the daemon: %w", err)
	}
	t.Library, t.Hypervisor, t.Domains = version(library.Version), version(hypervisor.Version), len(domains)
	if err := b.find(c, t); err != nil {
		return err
	}
	return b.locate(ctx, c, t)
}

// find learns the daemon's process, where its socket tells.
func (b *bench) find(c *remote.Conn, t *target) error {
	pid, err := c.PeerID()
	if fault.Is(err, fault.Unsupported) {
		b.Log.Warn("the daemon's own memory and time are not measured", "target", t.Name, "reason", err)
		t.unseen = err.Error()
		return nil
	}
	if err != nil {
		return err
	}
	p, err := b.machine.Process(pid)
	t.pid, t.Process = pid, p.Name
	return err
}

// version spells a version as it stands on the wire: a million times the major
// number, and so on.
func version(v uint64) string {
	return fmt.Sprintf("%d.%d.%d", v/1000000, v/1000%1000, v%1000)
}

// warmUps is how many starts of each shape go before any that counts: of a
// daemon that finds out first what its QEMU can do, and of files read first.
const warmUps = 2

// warmUp starts and ends one guest of each shape with each daemon, and copies
// the command meanwhile.
func (b *bench) warmUp(ctx context.Context) error {
	var direct []*target
	for _, t := range b.targets {
		bares := &target{Target: Target{Name: "bare " + t.Name, Kind: Direct, Of: t.Name, Process: "qemu", Hypervisor: t.Hypervisor}, at: t.at, dir: t.dir, host: t.host, commands: map[shape]*bare.Command{}}
		for _, s := range b.shapes() {
			command, err := b.capture(ctx, t, s)
			if err != nil {
				return fmt.Errorf("target %s: first guest with %d disks: %w", t.Name, s.disks, err)
			}
			if command == nil {
				continue
			}
			bares.commands[s] = command
			b.run.Commands = append(b.run.Commands, Command{Target: t.Name, Disks: s.disks, Memory: s.memory, Binary: command.Binary, Args: command.Args})
			b.run.Host.Accelerator = machine.Accelerator(command.Args)
		}
		direct = append(direct, bares)
	}
	for _, s := range b.shapes() {
		b.run.Documents = append(b.run.Documents, Document{s.disks, s.memory, s.definition(b.targets[0].dir, b.name(0))})
	}
	if b.Direct {
		b.targets = append(b.targets, direct...)
	}
	return nil
}

func (b *bench) shapes() (all []shape) {
	seen := map[shape]bool{}
	for _, step := range b.Plan {
		if s := step.shape(); !seen[s] {
			seen[s] = true
			all = append(all, s)
		}
	}
	return all
}

// capture runs one guest, and copies what the daemon runs for it.
func (b *bench) capture(ctx context.Context, target *target, s shape) (command *bare.Command, err error) {
	t := &turn{bench: b, target: target, shape: s, cell: Cell{Target: target.Name, Guests: 1, Clients: 1, Disks: s.disks}}
	defer func() { err = errors.Join(err, t.clear(context.WithoutCancel(ctx))) }()
	dir := filepath.Join(b.dir, fmt.Sprintf("bare-%s-%d-%d", target.Name, s.disks, s.memory))
	if err := errors.Join(os.MkdirAll(dir, 0o700), t.prepare(ctx, 1)); err != nil {
		return nil, err
	}
	if t.clients, err = t.dial(ctx, 1); err != nil {
		return nil, err
	}
	if err := t.quietly(ctx, 0, 1, t.define); err != nil {
		return nil, err
	}
	for range warmUps {
		if err := t.quietly(ctx, 0, 1, t.start); err != nil {
			return nil, err
		}
		if command == nil {
			if command, err = b.copy(target, s, dir); err != nil {
				return nil, err
			}
		}
		if err := t.quietly(ctx, 0, 1, t.destroy); err != nil {
			return nil, err
		}
	}
	return command, t.quietly(ctx, 0, 1, t.undefine)
}

// copy takes what the daemon runs for the first guest, and that guest's weight.
// Where its process is not to be found only the daemons are measured.
func (b *bench) copy(target *target, s shape, dir string) (*bare.Command, error) {
	if !target.at.Local() {
		return nil, nil
	}
	command, err := bare.Of(b.name(0), dir)
	if err == nil {
		err = b.weigh(s)
	}
	if err != nil && !b.Direct {
		b.Log.Warn("the command line of guests is not kept", "target", target.Name, "reason", err)
		return nil, nil
	}
	return command, err
}
