package launch

import (
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/event"
)

// mayStartWithout reports whether a start may continue without the source of a device with that startup policy. A
// guest restored from an image has the device in its state, so it must find a disk, or else the start
// fails.
func (l *Launch) mayStartWithout(policy string, removable bool) bool {
	booted := l.From == nil
	return policy == "optional" && (booted || removable) || policy == "requisite" && !booted && removable
}

// dropDisk lets the guest start without a disk, or with an empty drive.
func (l *Launch) dropDisk(d *device.Disk, why error) {
	change := event.DomainMediaChange{OldPath: d.Source.Path(), Alias: d.Alias, Reason: provision.DroppedDisk}
	if provision.IsDrive(d) {
		change.Reason = provision.DroppedMedium
		d.Source, d.StartupPolicy = nil, "" // the policy does not apply to the next medium
	} else {
		l.Instance.Definition.Devices.Remove(d)
	}
	l.Instance.Dropped = append(l.Instance.Dropped, change)
	l.Instance.Log.Warn("disk source missing; guest starts without it", "disk", d.Target, "cause", why)
}
