package guest

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// sector is the unit in bytes that disk sizes are rounded up to.
const sector = 512

// ResizeDisk makes the image of a running guest's disk larger or smaller, and notifies the guest. size is
// in bytes.
func (g *Guest) ResizeDisk(ctx context.Context, sc scope.Scope, disk string, size uint64) error {
	return g.perform(ctx, sc, "", domain.JobModify, modifyLimit, func() (work, error) {
		r := g.run
		if r == nil {
			return nil, fault.New(fault.WrongState, fault.Domain, "domain is not running")
		}
		d := findDiskByName(r.def, disk)
		switch {
		case d == nil:
			return nil, noDisk(disk)
		case d.ReadOnly:
			return nil, fault.New(fault.WrongState, fault.Device, "cannot resize disk %s: it is read-only", d.Target)
		}
		if err := r.admits(operation.Change, "disk/"+d.Target); err != nil {
			return nil, err
		}
		return func(ctx context.Context, sc scope.Scope) (settle, error) {
			s, err := r.monitor()
			if err != nil {
				return nil, err
			}
			b, err := findBlock(ctx, s, d)
			if err != nil {
				return nil, err
			}
			if b.Inserted == nil {
				return nil, fault.New(fault.WrongState, fault.Device, "disk %s has no medium", d.Target)
			}
			rounded := (size + sector - 1) / sector * sector
			err = s.Execute(ctx, "block_resize", map[string]any{"node-name": b.Inserted.NodeName, "size": rounded}, nil)
			g.gauge.outdate()
			return nil, err
		}, nil
	})
}
