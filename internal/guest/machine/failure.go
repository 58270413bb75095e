package machine

import (
	"fmt"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/device"
)

// FailureKind returns the kind of an error if Lodge knows it, else fault.Failed: the host refused something.
func FailureKind(err error) fault.Kind {
	if k := fault.Of(err); k != fault.Internal {
		return k
	}
	return fault.Failed
}

// DeviceName returns the name of a device in messages.
func DeviceName(dev device.Device) string {
	switch d := dev.(type) {
	case *device.Disk:
		return "disk " + d.Target
	case *device.NIC:
		return "interface " + d.MAC
	}
	return fmt.Sprintf("%s %s", dev.Kind(), dev.Common().Alias)
}
