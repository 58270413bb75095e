package hotplug

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/statistics"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// sector is the unit in bytes that disk sizes are rounded up to.
const sector = 512

// ResizeDisk makes the image of a running guest's disk larger or smaller, and notifies the guest. size is
// in bytes.
func ResizeDisk(ctx context.Context, g *machine.Guest, sc scope.Scope, disk string, size uint64) error {
	return g.Perform(ctx, sc, "", domain.JobModify, machine.ModifyLimit, func() (machine.Work, error) {
		r := g.Instance
		if r == nil {
			return nil, fault.New(fault.WrongState, fault.Domain, "domain is not running")
		}
		d := statistics.FindDiskByName(r.Definition, disk)
		switch {
		case d == nil:
			return nil, statistics.NoDisk(disk)
		case d.ReadOnly:
			return nil, fault.New(fault.WrongState, fault.Device, "cannot resize disk %s: it is read-only", d.Target)
		}
		if err := r.Admits(operation.Change, "disk/"+d.Target); err != nil {
			return nil, err
		}
		return func(ctx context.Context, sc scope.Scope) (machine.Settle, error) {
			s, err := r.Monitor()
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
			statistics.OutdateStats(g.StatsCache)
			return nil, err
		}, nil
	})
}
