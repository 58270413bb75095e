package guest

import (
	"context"
	"errors"
	"strings"

	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// A virtio disk or SCSI controller without a number of queues gets as many as the machine has vCPUs at its
// start. If vCPUs were added later, a restored machine would be made with more queues than it was saved
// with, and QEMU would refuse its state. So the image names the numbers.

// queued is a device without a number of queues in its definition.
type queued struct {
	alias, property string
	queues          *uint
}

// uncounted lists those devices.
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

// maxQueues is more than any virtio device has.
const maxQueues = 1024

// countQueues asks QEMU for the numbers of queues, and adds to the header those that differ from the number
// of vCPUs.
func (h *saveHeader) countQueues(ctx context.Context, s *qmp.Session, active *domain.Definition) error {
	if active.VCPUs.Max == 1 {
		return nil
	}
	counted := active.Clone()
	for _, d := range uncounted(counted) {
		var n uint
		err := s.Execute(ctx, "qom-get", map[string]any{"path": "/machine/peripheral/" + d.alias, "property": d.property}, &n)
		if answer := (*qmp.Error)(nil); errors.As(err, &answer) || n > maxQueues || n == active.VCPUs.Current {
			continue // it has none, or the restored machine gets the same number
		}
		if err != nil {
			return err
		}
		*d.queues = n
	}
	keepQueues(h.def, counted)
	return h.format()
}

// keepQueues copies the numbers of queues from a saved definition to one that replaces it.
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
