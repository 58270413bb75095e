package provision

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// A block job may write to an image below the top one, which QEMU has open for reading. QEMU is then lent
// that image for the time of the job: its header is noted as for every image that a QEMU writes, its label
// or the guest's profile permits writing, and QEMU is passed another descriptor. Each of these steps may be
// repeated.

// OpenCheckedChain opens the chain of a running guest's disk. It refuses a chain that differs from the guest's
// definition, or from the files that QEMU has open. limits are the guest's path limits.
func OpenCheckedChain(ctx context.Context, r *machine.Registry, sc scope.Scope, run *machine.Instance, limits map[string][]string, d *device.Disk) (image.Chain, error) {
	path, format, err := Source(r, d)
	if err != nil {
		return nil, err
	}
	chain, err := image.OpenChain(ctx, machine.DiskScope(sc, limits, d), path, format)
	if err == nil {
		if err = r.CheckChain(chain, run, d); err != nil {
			chain.Close()
		}
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.Of(err), fault.About(err), "cannot use the images of disk %s", d.Target)
	}
	return chain, nil
}

// LendToWrite lets a running QEMU write to one image of a disk. place is its position in the chain: 1 is
// the image below the top. If QEMU did not answer, the outcome is unknown.
func LendToWrite(ctx context.Context, g *machine.Guest, sc scope.Scope, r *machine.Instance, d *device.Disk, place int) error {
	chain, err := OpenCheckedChain(ctx, g.Reg, sc, r, g.View().PathLimits, d)
	if err != nil {
		return err
	}
	defer chain.Close()
	s, err := r.Monitor()
	if err != nil {
		return err
	}
	held, err := machine.QueryFDSets(ctx, s)
	if err != nil {
		return err
	}
	l, number := &chain[place], d.Nodes()[place]
	if !qemu.HasWrite(held, number) { // otherwise its own QEMU may write there already
		if err := fsguard.Run(ctx, l.Path, func() error { return image.CheckNoWriter(l.File) }); err != nil {
			return err
		}
	}
	write, err := machine.OpenImage(ctx, l, unix.O_RDWR)
	if err != nil {
		return err
	}
	defer write.Close() // QEMU has its own, or none
	if err := fsguard.Run(ctx, l.Path, l.RecordBacking); err != nil {
		return err
	}
	if err := r.Labels.LendToWrite(ctx, number, write); err != nil || r.User == nil { // without a sandbox QEMU opens the path itself
		return err
	}
	read, err := machine.OpenImage(ctx, l, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer read.Close()
	return ExecuteAll(ctx, s, qemu.GrantWrite(held, number, write, read))
}

// ExecuteAll executes steps until QEMU refuses one, or does not answer.
func ExecuteAll(ctx context.Context, s *qmp.Session, steps []qemu.Step) error {
	for _, step := range steps {
		if err := machine.Execute(ctx, s, step); err != nil {
			return err
		}
	}
	return nil
}

// TakeBackToRead takes back the access that LendToWrite gave, once the job has ended. If QEMU has ended, it is not
// asked. kept means that QEMU closes the image only when its guest runs; the rest must be done after that.
func TakeBackToRead(ctx context.Context, g *machine.Guest, sc scope.Scope, r *machine.Instance, w machine.LentImage) (kept bool, err error) {
	if r != nil && !r.Gone() && r.User != nil {
		s, err := r.Monitor()
		if err != nil {
			return false, err
		}
		if err := reopenReadOnly(ctx, g, s, w.Number); err != nil {
			return false, err
		}
		if kept, err = TakeBackFiles(ctx, s, w.Number); err != nil {
			return false, err
		}
	}
	f, err := machine.OpenNamed(ctx, sc, w.Path, unix.O_RDONLY)
	if errors.Is(err, os.ErrNotExist) {
		return kept, nil
	}
	if err != nil {
		return kept, err
	}
	defer f.Close()
	if r != nil {
		if err := r.Labels.TakeBackToRead(ctx, w.Number, f); err != nil {
			return kept, err
		}
	}
	changed, err := fsguard.Do(ctx, w.Path, func() (bool, error) { return image.RemoveRecord(w.Path, image.Format(w.Format)) }, nil)
	if changed {
		g.Log.Error("backing file name in an image was changed while QEMU ran; the new name is not followed", "path", w.Path)
	}
	return kept, err
}

// reopenReadOnly makes QEMU reopen an image for reading only, if it is below the top of a disk.
func reopenReadOnly(ctx context.Context, g *machine.Guest, s *qmp.Session, number uint) error {
	def := g.View().Active
	if def == nil {
		return nil
	}
	for _, d := range def.Devices.Disks {
		if step, is := qemu.ReopenReadOnly(d, number); is {
			return machine.Execute(ctx, s, step)
		}
	}
	return nil
}

// TakeBackFiles closes the descriptors that QEMU was lent for an image. kept means that QEMU still has
// them: a paused QEMU does not close them.
func TakeBackFiles(ctx context.Context, s *qmp.Session, number uint) (kept bool, err error) {
	held, err := machine.QueryFDSets(ctx, s)
	if err != nil {
		return false, err
	}
	steps := qemu.RevokeWrite(held, number)
	if err := ExecuteAll(ctx, s, steps); err != nil || len(steps) == 0 {
		return false, err
	}
	held, err = machine.QueryFDSets(ctx, s)
	return len(qemu.RevokeWrite(held, number)) > 0, err
}
