package guest

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
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

// openShown opens the chain of a running guest's disk. It refuses a chain that differs from the guest's
// definition, or whose files are not those that QEMU has open.
func (r *Registry) openShown(ctx context.Context, sc scope.Scope, run *run, fences map[string][]string, d *device.Disk) (image.Chain, error) {
	path, format, err := r.source(d)
	if err != nil {
		return nil, err
	}
	chain, err := image.OpenChain(ctx, fenced(sc, fences, d), path, format)
	if err == nil {
		if err = r.isShown(chain, run, d); err != nil {
			chain.Close()
		}
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.Of(err), fault.About(err), "cannot use the images of disk %s", d.Target)
	}
	return chain, nil
}

// isShown refuses a chain that differs from the images in the definition, or from the files that QEMU has
// open.
func (r *Registry) isShown(chain image.Chain, run *run, d *device.Disk) error {
	images := d.Images()
	if len(chain) != len(images) {
		return fault.New(fault.WrongState, fault.Volume, "their headers make a chain of %d images, and the guest uses %d; restore the headers (qemu-img rebase -u)", len(chain), len(images))
	}
	for i, l := range chain {
		if i > 0 && l.Path != images[i].Path() {
			return fault.New(fault.WrongState, fault.Volume, "the chain has %s where the guest uses %s; restore the backing file name in the header above (qemu-img rebase -u)", l.Path, images[i].Path())
		}
		at, _, err := whereIs(l.File)
		if err != nil {
			return err
		}
		if !r.Kernel.HasOpen(run.PID, at) {
			return fault.New(fault.WrongState, fault.Volume, "%s is not the file that QEMU (process %d) has open; restore that file", l.Path, run.PID)
		}
	}
	return nil
}

// lendToWrite lets a running QEMU write to one image of a disk. place is its position in the chain: 1 is
// the image below the top. If QEMU did not answer, the outcome is unknown.
func (g *Guest) lendToWrite(ctx context.Context, sc scope.Scope, r *run, d *device.Disk, place int) error {
	chain, err := g.reg.openShown(ctx, sc, r, g.View().fences, d)
	if err != nil {
		return err
	}
	defer chain.Close()
	s, err := r.monitor()
	if err != nil {
		return err
	}
	held, err := fileSets(ctx, s)
	if err != nil {
		return err
	}
	l, number := &chain[place], d.Nodes()[place]
	if !qemu.IsLent(held, number) { // otherwise its own QEMU may write there already
		if err := fsguard.Run(ctx, l.Path, func() error { return image.CheckNoWriter(l.File) }); err != nil {
			return err
		}
	}
	write, err := handOut(ctx, l, unix.O_RDWR)
	if err != nil {
		return err
	}
	defer write.Close() // QEMU has its own, or none
	if err := fsguard.Run(ctx, l.Path, l.RecordBacking); err != nil {
		return err
	}
	if err := r.labels.lendToWrite(ctx, number, write); err != nil || r.User == nil { // without a sandbox QEMU opens the path itself
		return err
	}
	read, err := handOut(ctx, l, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer read.Close()
	return executeAll(ctx, s, qemu.Lend(held, number, write, read))
}

// handOut opens an image for QEMU.
func handOut(ctx context.Context, l *image.Layer, mode int) (*os.File, error) {
	return fsguard.Do(ctx, l.Path, func() (*os.File, error) { return l.OpenForQEMU(mode) }, func(f *os.File) { _ = f.Close() })
}

// executeAll executes steps until QEMU refuses one, or does not answer.
func executeAll(ctx context.Context, s *qmp.Session, steps []qemu.Step) error {
	for _, step := range steps {
		if err := execute(ctx, s, step); err != nil {
			return err
		}
	}
	return nil
}

// written is an image that QEMU was lent for writing.
type written struct {
	Number uint // the number of its node
	Path   string
	Format string
}

// takeBackToRead takes back what lendToWrite gave, once the job has ended. If QEMU has ended, it is not
// asked. kept means that QEMU closes the image only when its guest runs; the rest must be done after that.
func (g *Guest) takeBackToRead(ctx context.Context, sc scope.Scope, r *run, w written) (kept bool, err error) {
	if r != nil && !r.gone() && r.User != nil {
		s, err := r.monitor()
		if err != nil {
			return false, err
		}
		if err := g.readAgain(ctx, s, w.Number); err != nil {
			return false, err
		}
		if kept, err = takeBackFiles(ctx, s, w.Number); err != nil {
			return false, err
		}
	}
	f, err := openNamed(ctx, sc, w.Path, unix.O_RDONLY)
	if errors.Is(err, os.ErrNotExist) {
		return kept, nil
	}
	if err != nil {
		return kept, err
	}
	defer f.Close()
	if r != nil {
		if err := r.labels.takeBackToRead(ctx, w.Number, f); err != nil {
			return kept, err
		}
	}
	changed, err := fsguard.Do(ctx, w.Path, func() (bool, error) { return image.RemoveRecord(w.Path, image.Format(w.Format)) }, nil)
	if changed {
		g.log.Error("backing file name in an image was changed while QEMU ran; the new name is not followed", "path", w.Path)
	}
	return kept, err
}

// readAgain makes QEMU reopen an image for reading only, if it is below the top of a disk.
func (g *Guest) readAgain(ctx context.Context, s *qmp.Session, number uint) error {
	def := g.View().Active
	if def == nil {
		return nil
	}
	for _, d := range def.Devices.Disks {
		if step, is := qemu.ReadAgain(d, number); is {
			return execute(ctx, s, step)
		}
	}
	return nil
}

// takeBackFiles closes the descriptors that QEMU was lent for an image. kept means that QEMU still has
// them: a paused QEMU does not close them.
func takeBackFiles(ctx context.Context, s *qmp.Session, number uint) (kept bool, err error) {
	held, err := fileSets(ctx, s)
	if err != nil {
		return false, err
	}
	steps := qemu.TakeBack(held, number)
	if err := executeAll(ctx, s, steps); err != nil || len(steps) == 0 {
		return false, err
	}
	held, err = fileSets(ctx, s)
	return len(qemu.TakeBack(held, number)) > 0, err
}

// fileSets asks QEMU for the descriptor sets of its block nodes.
func fileSets(ctx context.Context, s *qmp.Session) (held []qemu.FileSet, err error) {
	err = s.Execute(ctx, "query-fdsets", nil, &held)
	return held, err
}
