package provision

import (
	"strings"

	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// A virtio disk or SCSI controller without a number of queues gets as many as the machine has vCPUs at its
// start. If vCPUs were added later, a restored machine would be made with more queues than it was saved
// with, and QEMU would refuse its state. So the image names the numbers.

// UnsetQueues is a device without a number of queues in its definition.
type UnsetQueues struct {
	Alias, Property string
	Queues          *uint
}

// DevicesWithoutQueues lists those devices.
func DevicesWithoutQueues(def *domain.Definition) []UnsetQueues {
	var all []UnsetQueues
	for _, d := range def.Devices.Disks {
		if d.Bus == "virtio" && d.Queues == 0 {
			all = append(all, UnsetQueues{d.Alias, "num-queues", &d.Queues})
		}
	}
	for _, c := range def.Devices.Controllers {
		if c.Type == "scsi" && strings.HasPrefix(c.Model, "virtio") && c.Queues == 0 {
			all = append(all, UnsetQueues{c.Alias, "num_queues", &c.Queues})
		}
	}
	return all
}

// MaxQueues is more than any virtio device has.
const MaxQueues = 1024

// KeepQueues copies the numbers of queues from a saved definition to one that replaces it.
func KeepQueues(def, saved *domain.Definition) {
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
