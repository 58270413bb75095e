package guest

import (
	"context"
	"errors"
	"strings"

	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// A virtio disk and a virtio SCSI controller whose definition names no number of queues
// has as many as the machine was made with processors. A saved machine to which more were
// added is made with all of them, and would have other queues than those it was saved
// with, which QEMU refuses: its image names the numbers.

// queued is a device whose queues the definition does not count.
type queued struct {
	alias, property string
	queues          *uint
}

// uncounted lists them.
func uncounted(def *domain.Definition) []queued {
	var all []queued
	for _, d := range def.Devices.Disks {
		if d.Bus == "virtio" && d.Queues == 0 {
			all = append(all, queued{d.Alias, "num-queues", &d.Queues})
		}
	}
	for _, c := range def.Devices.Controllers {
		if c.Type == "scsi" && strings.HasPrefix(c.Model, "virtio") && c.Queues == 0 {
			all = append(all, queued{c.Alias, "num_queues", &c.Queues})
		}
	}
	return all
}

// maxQueues is more than a virtio device has.
const maxQueues = 1024

// countQueues has the header name the numbers of a running machine, which QEMU tells, that
// are not those of its processors.
func (h *saveHeader) countQueues(ctx context.Context, s *qmp.Session, active *domain.Definition) error {
	if active.VCPUs.Max == 1 {
		return nil
	}
	counted := active.Clone()
	for _, d := range uncounted(counted) {
		var n uint
		err := s.Execute(ctx, "qom-get", map[string]any{"path": "/machine/peripheral/" + d.alias, "property": d.property}, &n)
		if answer := (*qmp.Error)(nil); errors.As(err, &answer) || n > maxQueues || n == active.VCPUs.Current {
			continue // it does not say, or is made with as many again
		}
		if err != nil {
			return err
		}
		*d.queues = n
	}
	keepQueues(h.def, counted)
	return h.format()
}

// keepQueues has a new definition of a saved machine name the queues that it was saved with.
func keepQueues(def, saved *domain.Definition) {
	disks := map[string]uint{}
	for _, d := range saved.Devices.Disks {
		disks[d.Target] = d.Queues
	}
	for _, d := range def.Devices.Disks {
		if d.Queues == 0 {
			d.Queues = disks[d.Target]
		}
	}
	for _, c := range def.Devices.Controllers {
		for _, was := range saved.Devices.Controllers {
			if c.Queues == 0 && was.Type == c.Type && was.Index == c.Index {
				c.Queues = was.Queues
			}
		}
	}
}
