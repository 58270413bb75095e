package machine

import (
	"context"
	"os"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/filelabel"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/device"
)

// CheckChain refuses a chain that differs from the images in the definition, or from the files that QEMU has
// open.
func (r *Registry) CheckChain(chain image.Chain, run *Instance, d *device.Disk) error {
	images := d.Images()
	if len(chain) != len(images) {
		return fault.New(fault.WrongState, fault.Volume, "their headers make a chain of %d images, and the guest uses %d; restore the headers (qemu-img rebase -u)", len(chain), len(images))
	}
	for i, l := range chain {
		if i > 0 && l.Path != images[i].Path() {
			return fault.New(fault.WrongState, fault.Volume, "the chain has %s where the guest uses %s; restore the backing file name in the header above (qemu-img rebase -u)", l.Path, images[i].Path())
		}
		at, _, err := filelabel.PathAndID(l.File)
		if err != nil {
			return err
		}
		if !r.Kernel.HasOpen(run.PID, at) {
			return fault.New(fault.WrongState, fault.Volume, "%s is not the file that QEMU (process %d) has open; restore that file", l.Path, run.PID)
		}
	}
	return nil
}

// OpenImage opens an image for QEMU.
func OpenImage(ctx context.Context, l *image.Layer, mode int) (*os.File, error) {
	return fsguard.Do(ctx, l.Path, func() (*os.File, error) { return l.OpenForQEMU(mode) }, func(f *os.File) { _ = f.Close() })
}

// LentImage is an image that QEMU was lent for writing.
type LentImage struct {
	Number uint // the number of its node
	Path   string
	Format string
}

// QueryFDSets asks QEMU for the descriptor sets of its block nodes.
func QueryFDSets(ctx context.Context, s *qmp.Session) (held []qemu.FDSet, err error) {
	err = s.Execute(ctx, "query-fdsets", nil, &held)
	return held, err
}
