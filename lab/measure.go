package lab

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/remote"
	"github.com/lodge-kvm/lodge/lab/bare"
	"github.com/lodge-kvm/lodge/lab/machine"
	"github.com/lodge-kvm/lodge/lab/node"
)

// Options say what to measure.
type Options struct {
	Address string // of the daemon: a socket's path, or a URI
	Name    string // of the daemon in tables; "" is its program's
	Command string // that makes such a run, to be kept with it
	Samples int    // of each start, end, define and undefine
	Bare    bool   // run QEMU also without the daemon
	Guests  []int  // how many run when the daemon's memory is looked at, rising; 0 always is one
	// Pause is kept before each start through the daemon: for one that makes
	// something ready while nobody asks it for anything.
	Pause time.Duration
	Log   *slog.Logger
}

// warmUps is how many starts go before the first that counts: of a daemon that
// finds out first what its QEMU can do, and of files that are read first.
const warmUps = 2

// guestMemory is about what a paused guest takes of the host's memory, in bytes.
const guestMemory = 128 << 20

// bench is a measurement that is under way.
type bench struct {
	Options
	conn    *remote.Conn
	guests  *guests
	machine machine.Machine
	daemon  int    // process
	dir     string // of bare runs
	run     *Run
}

// Measure takes the start figures of one daemon. It makes guests of its own, all
// of which are gone when it returns; other guests are left alone.
func Measure(ctx context.Context, o Options) (run *Run, err error) {
	conn, err := remote.Dial(ctx, o.Address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	dir, err := os.MkdirTemp("", "lodge-lab-")
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot make a directory for bare runs")
	}
	b := &bench{
		Options: o, conn: conn, guests: newGuests(conn), machine: machine.Machine{Root: "/"}, dir: dir,
		run: &Run{Header: Header{Schema: Schema, Started: time.Now().UTC().Truncate(time.Second), Command: o.Command}},
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	return b.run, b.measure(ctx)
}

func (b *bench) measure(ctx context.Context) error {
	before := b.machine.Ticks()
	begin := time.Now()
	b.run.Host = b.machine.Host()
	if err := b.afar(ctx); err != nil {
		return err
	}
	if err := b.meet(ctx); err != nil {
		return err
	}
	for _, part := range []struct {
		what string
		do   func(context.Context) error
	}{
		{"starts", b.starts}, {"definitions", b.definitions}, {"memory", b.memory},
	} {
		b.Log.Info("measuring", "what", part.what, "daemon", b.run.Name)
		err := b.skip(part.do(ctx), part.what)
		if err := errors.Join(err, b.guests.clear(ctx)); err != nil {
			return fmt.Errorf("cannot measure %s: %w", part.what, err)
		}
	}
	b.run.End = Ending{
		Took: time.Since(begin).Seconds(), Load: b.machine.Load(),
		Steal: b.machine.Ticks().StealSince(before),
	}
	return nil
}

// afar has a daemon of another host measured without what is of this one.
func (b *bench) afar(ctx context.Context) error {
	at, err := remote.Parse(b.Address)
	if err != nil || at.Local() {
		return err
	}
	if b.Bare {
		b.Bare = false
		err = b.skip(fault.New(fault.Unsupported, fault.Host, "QEMU is run without the daemon on this host only, and the daemon is reached by %s", at.Way), "starts without the daemon")
	}
	if err == nil {
		b.run.Host, err = node.Host(ctx, b.conn)
	}
	return err
}

// skip keeps what cannot be measured here, with the reason, and lets every
// other error through.
func (b *bench) skip(err error, what string) error {
	refused, ok := errors.AsType[*remote.Error](err)
	if !fault.Is(err, fault.Unsupported) && !fault.Is(err, fault.NoCapacity) && (!ok || !refused.Unsupported()) {
		return err
	}
	b.run.Skipped = append(b.run.Skipped, Skipped{what, err.Error()})
	b.Log.Warn("skipped", "what", what, "reason", err)
	return nil
}

// meet asks the daemon who it is, and looks at its memory before it has worked.
func (b *bench) meet(ctx context.Context) error {
	var library, hypervisor xdr.WithVersion
	var domains xdr.ConnectListAllDomainsRet
	for _, question := range []struct {
		proc      int32
		args, ret xdr.Message
	}{
		{xdr.ProcConnectGetLibVersion, nil, &library},
		{xdr.ProcConnectGetVersion, nil, &hypervisor},
		{xdr.ProcConnectListAllDomains, &xdr.ConnectListAllDomainsArgs{NeedResults: true}, &domains},
	} {
		if _, err := b.guests.call(ctx, question.proc, question.args, question.ret); err != nil {
			return fmt.Errorf("cannot get to know the daemon: %w", err)
		}
	}
	b.run.Server = Server{Library: version(library.Version), Hypervisor: version(hypervisor.Version), Domains: len(domains.Domains)}
	pid, err := b.conn.PeerID()
	if err != nil {
		b.run.Name = b.Name
		return b.skip(err, "memory")
	}
	b.daemon = pid
	p, err := b.machine.Process(pid)
	if err != nil {
		return err
	}
	b.run.Server.Process, b.run.Name = p.Name, p.Name
	if b.Name != "" {
		b.run.Name = b.Name
	}
	return b.look(0)
}

// version spells a version as it stands on the wire: a million times the major
// number, and so on.
func version(v uint64) string {
	return fmt.Sprintf("%d.%d.%d", v/1000000, v/1000%1000, v%1000)
}

// starts takes the times of starts and ends, those of bare QEMU in between:
// daemon, bare, bare, daemon, so that what changes slowly weighs on both alike.
func (b *bench) starts(ctx context.Context) error {
	name := b.guests.name("small", 0)
	b.run.Guest = smallGuest(name)
	if _, err := b.guests.define(ctx, name, b.run.Guest); err != nil {
		return err
	}
	command, err := b.warmUp(ctx, name)
	if err != nil {
		return err
	}
	for i := range b.Samples {
		turns := []func() error{
			func() error { return b.throughDaemon(ctx, name) },
			func() error { return b.bare(ctx, command) },
		}
		if i%2 == 1 {
			turns[0], turns[1] = turns[1], turns[0]
		}
		for _, turn := range turns {
			if err := turn(); err != nil {
				return err
			}
		}
	}
	return nil
}

// warmUp starts the guest without counting, and copies its command meanwhile.
// The command is nil when none is wanted, or when it cannot be run bare.
func (b *bench) warmUp(ctx context.Context, name string) (command *bare.Command, err error) {
	for range warmUps {
		if _, err := b.guests.start(ctx, name); err != nil {
			return nil, err
		}
		if b.Bare && command == nil {
			command, err = bare.Of(name, b.dir)
			if err := b.skip(err, "starts without the daemon"); err != nil {
				return nil, err
			}
		}
		if _, err := b.guests.destroy(ctx, name); err != nil {
			return nil, err
		}
	}
	if command == nil {
		return nil, nil
	}
	b.run.Arguments = command.Args
	b.run.Host.Accelerator = machine.Accelerator(command.Args)
	for range warmUps {
		if _, _, err := runOnce(ctx, command); err != nil {
			return nil, err
		}
	}
	return command, nil
}

func (b *bench) throughDaemon(ctx context.Context, name string) error {
	select {
	case <-time.After(b.Pause):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	started, err := b.guests.start(ctx, name)
	if err != nil {
		return err
	}
	ended, err := b.guests.destroy(ctx, name)
	if err != nil {
		return err
	}
	b.run.add(StartGuest, ByDaemon, 0, started.Seconds())
	b.run.add(EndGuest, ByDaemon, 0, ended.Seconds())
	return nil
}

func (b *bench) bare(ctx context.Context, command *bare.Command) error {
	if command == nil {
		return nil
	}
	started, ended, err := runOnce(ctx, command)
	if err != nil {
		return err
	}
	b.run.add(StartGuest, ByBare, 0, started.Seconds())
	b.run.add(EndGuest, ByBare, 0, ended.Seconds())
	return nil
}

func runOnce(ctx context.Context, command *bare.Command) (started, ended time.Duration, err error) {
	limited, stop := context.WithTimeout(ctx, patience)
	defer stop()
	process, started, err := command.Run(limited)
	if err != nil {
		return 0, 0, err
	}
	ended, err = process.End(ctx)
	return started, ended, err
}

// definitions takes the times to define and undefine a guest with many disks.
func (b *bench) definitions(ctx context.Context) error {
	name := b.guests.name("disks", 0)
	document := diskGuest(name)
	for i := range b.Samples + warmUps {
		defined, err := b.guests.define(ctx, name, document)
		if err != nil {
			return err
		}
		undefined, err := b.guests.undefine(ctx, name)
		if err != nil {
			return err
		}
		if i >= warmUps {
			b.run.add(DefineDisks, ByDaemon, 0, defined.Seconds())
			b.run.add(UndefineDisks, ByDaemon, 0, undefined.Seconds())
		}
	}
	return nil
}

// memory looks at the daemon while more and more guests run.
func (b *bench) memory(ctx context.Context) error {
	if b.daemon == 0 {
		return nil // said already why
	}
	running := 0
	for _, wanted := range b.Guests {
		if free := b.machine.Memory("MemAvailable"); free < uint64(wanted-running)*guestMemory {
			err := fault.New(fault.NoCapacity, fault.Host, "%d paused guests might need more memory than the %d MiB that are free", wanted, free>>20)
			return b.skip(err, fmt.Sprintf("memory with %d guests", wanted))
		}
		for ; running < wanted; running++ {
			name := b.guests.name("paused", running)
			if _, err := b.guests.define(ctx, name, smallGuest(name)); err != nil {
				return err
			}
			if _, err := b.guests.start(ctx, name); err != nil {
				return err
			}
		}
		if err := b.look(wanted); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) look(guests int) error {
	p, err := b.machine.Process(b.daemon)
	if err != nil {
		return err
	}
	b.run.add(Resident, ByDaemon, guests, float64(p.Resident))
	b.run.add(Private, ByDaemon, guests, float64(p.Private))
	b.run.add(Threads, ByDaemon, guests, float64(p.Threads))
	return nil
}
