package savestate

import (
	"context"
	"fmt"
	"math"
	"os"
	"strings"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/guest/filelabel"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// DumpOptions say what a dump contains, and what happens to the guest afterwards.
type DumpOptions struct {
	// Memory is QEMU's name for the format of a dump of memory and registers only, for debuggers. Empty:
	// the whole machine state, as in a migration.
	Memory string
	// Live lets the guest run for as long as possible.
	Live bool
	// Crash ends the guest after the dump. Reset resets it.
	Crash, Reset bool
	BypassCache  bool

	OnlyInstance *machine.Instance // the instance to dump; nil: the current one
}

// Dump writes the guest's memory, or its whole state, to a file for debugging. Unless the options say
// otherwise, the guest continues afterwards.
func Dump(ctx context.Context, g *machine.Guest, sc scope.Scope, path string, o DumpOptions) error {
	if err := checkImagePath("dump", path); err != nil {
		return err
	}
	return g.MoveMemory(ctx, sc, lifecycle.Dump, domain.JobDump, func(p *machine.Progress) (machine.Work, error) {
		return planDump(g, path, o, p)
	})
}

func planDump(g *machine.Guest, path string, o DumpOptions, p *machine.Progress) (machine.Work, error) {
	r, def := g.Instance, g.Instance.Definition
	if o.OnlyInstance != nil && o.OnlyInstance != r { // that run has ended, and the guest was started again
		return nil, fault.New(fault.WrongState, fault.Domain, "domain %q has ended since", g.Record.Name)
	}
	if err := admitSaveOrDump(r); err != nil {
		return nil, err
	}
	d := &DumpOp{MemoryImage: MemoryImage{Path: path, WasRunning: g.State.Phase == domain.Running, r: r, progress: p}, options: o, def: def}
	return func(ctx context.Context, sc scope.Scope) (machine.Settle, error) {
		return nil, r.Perform(ctx, sc, DumpKind.Name, d, memoryObject)
	}, nil
}

// DumpKind writes the guest's memory to a file. The guest then continues as before, also when the dump
// fails.
var DumpKind = operation.Kind[*machine.Instance]{
	Name: "dump", Version: 1, Class: operation.Move,
	Steps: []string{"file", "write", "leave"}, Undo: []string{"file", "write"},
	Bind: func(r *machine.Instance) operation.Work { return &DumpOp{MemoryImage: MemoryImage{r: r}} },
}

// DumpOp is the journalled payload of a dump.
type DumpOp struct {
	MemoryImage

	options DumpOptions
	def     *domain.Definition
}

// Steps implements operation.Work.
func (d *DumpOp) Steps() []operation.Step {
	return []operation.Step{
		{Name: "file", Effect: operation.Boot, Do: d.makeFile, Undo: d.removeIncomplete},
		{Name: "write", Effect: operation.Process, Do: d.write, Undo: d.resumeGuest},
		{Name: "leave", Effect: operation.Process, Do: d.afterDump},
	}
}

// makeFile creates the file and records it, so that a later daemon finds it.
func (d *DumpOp) makeFile(ctx context.Context) error {
	if err := d.create(ctx, d.op.Scope()); err != nil {
		return err
	}
	recordIncomplete(d.r.Guest, d.Path, d.file)
	return nil
}

// removeIncomplete removes the file, unless it is complete.
func (d *DumpOp) removeIncomplete(ctx context.Context) error { return d.discard(ctx, false) }

// afterDump crashes, resets or resumes the guest after a complete dump, by the options.
func (d *DumpOp) afterDump(ctx context.Context) error {
	if d.options.Crash && !d.options.Reset {
		return d.crashGuest(ctx)
	}
	s, err := d.r.Monitor()
	if err == nil && d.options.Reset {
		err = s.Execute(ctx, "system_reset", nil, nil)
	}
	switch {
	case err != nil:
		return err
	case d.options.Crash:
		return d.crashGuest(ctx)
	}
	return d.restore(ctx, s)
}

// crashGuest ends the guest as crashed.
func (d *DumpOp) crashGuest(ctx context.Context) error {
	return d.r.InLoop(ctx, func(g *machine.Guest) error {
		g.Advance(lifecycle.Ending{Reason: domain.ReasonCrashed})
		d.r.End(machine.EndNow)
		return nil
	})
}

// write lets QEMU write the dump.
func (d *DumpOp) write(ctx context.Context) error {
	path, o, p, labels := d.Path, d.options, d.progress, d.r.Labels
	defer forgetIncomplete(d.r.Reg, d.r.UUID) // the file is complete, or removed
	s, err := d.r.Monitor()
	if err == nil {
		err = d.r.InLoop(ctx, func(g *machine.Guest) error { g.Advance(lifecycle.Pausing{Reason: domain.ReasonDump}); return nil })
	}
	if err != nil {
		return err
	}
	fill := func(f *os.File) (err error) {
		if err := fsguard.RunLong(ctx, path, func() error { return image.RecordBeforeWrite(f) }); err != nil { // QEMU decides about its content
			return err
		}
		back, err := labels.LendImage(ctx, f)
		if err != nil {
			return err
		}
		defer back()
		if !o.Live {
			if err := machine.StopVCPUs(ctx, s); err != nil {
				return err
			}
		}
		switch most := maxStateSize(d.def); {
		case o.Memory != "": // QEMU stops the guest for it
			err = dumpMemory(ctx, s, f, most, o.Memory, p, labels)
		case o.Live: // the guest writes to its memory during the dump
			err = migrateTo(ctx, s, f, math.MaxInt64, p, labels)
		default:
			err = migrateTo(ctx, s, f, most, p, labels)
		}
		if err != nil {
			return fmt.Errorf("cannot dump to %s: %w", path, err)
		}
		return nil
	}
	return fillImage(ctx, d.op.Scope(), d.file, path, fill, func(f *os.File) error {
		if err := f.Sync(); err != nil {
			return fault.Wrap(err, fault.Failed, fault.Host, "cannot complete %s", f.Name())
		}
		if o.BypassCache {
			return dropPageCache(f)
		}
		return nil
	})
}

// dumpMemory lets QEMU dump the guest's memory, in at most most bytes, and waits until it has ended. QEMU
// gets the file itself only for formats that make it seek; otherwise it writes to a pipe.
func dumpMemory(ctx context.Context, s *qmp.Session, f *os.File, most int64, format string, p *machine.Progress, labels *filelabel.Labels) error {
	if strings.HasPrefix(format, "kdump-raw-") {
		if err := beginDump(ctx, s, f, format); err != nil {
			return err
		}
		return followDump(ctx, s, p)
	}
	t, qemus, err := startTransfer(f, most, labels)
	if err != nil {
		return err
	}
	err = beginDump(ctx, s, qemus, format)
	_ = qemus.Close() // QEMU has its own, or none
	if err == nil {
		err = followDump(ctx, s, p)
	}
	return t.wait(ctx, err)
}

// beginDump passes QEMU the file and begins the dump in the background.
func beginDump(ctx context.Context, s *qmp.Session, to *os.File, format string) error {
	if err := s.ExecuteFD(ctx, to, "getfd", map[string]any{"fdname": "lodge-dump"}, nil); err != nil {
		return err
	}
	args := map[string]any{"paging": false, "protocol": "fd:lodge-dump", "format": format, "detach": true}
	err := s.Execute(ctx, "dump-guest-memory", args, nil)
	if err != nil {
		_ = s.Execute(context.WithoutCancel(ctx), "closefd", map[string]any{"fdname": "lodge-dump"}, nil) // QEMU may have taken it
	}
	return err
}

// followDump waits until QEMU has dumped the guest's memory. QEMU cannot cancel a dump: if ctx ends, it
// still waits for the end, and the dump is discarded.
func followDump(ctx context.Context, s *qmp.Session, p *machine.Progress) error {
	asking := context.WithoutCancel(ctx)
	for wait := machine.FirstPoll; ; wait = min(2*wait, machine.MaxPoll) {
		var d struct {
			Status           string
			Completed, Total uint64
		}
		if err := s.Execute(asking, "query-dump", nil, &d); err != nil {
			return err
		}
		p.Now.Store(&domain.Progress{MemTotal: d.Total, MemProcessed: d.Completed, MemRemaining: d.Total - min(d.Completed, d.Total)})
		switch d.Status {
		case "completed":
			return context.Cause(ctx)
		case "failed":
			return fault.New(fault.Failed, fault.Domain, "QEMU could not dump the guest's memory")
		}
		select {
		case <-time.After(wait):
		case <-s.Done():
		}
	}
}
