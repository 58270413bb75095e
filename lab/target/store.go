package target

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/loop"
	"github.com/lodge-kvm/lodge/lab/scenario"
)

// source is what a disk lies on: a file, or a block device.
type source struct {
	path   string
	device bool
}

// store makes what a disk of the scenario lies on.
func (g *Guest) store(ctx context.Context, d scenario.Disk) (source, error) {
	if g.at.Away() && (d.Whole() || d.Store == scenario.StoreDevice) {
		return source{}, &Skipped{"disk " + d.Name + " lies on a block device of another host, which can neither be made there nor be seen to be free"}
	}
	if d.Whole() {
		return source{d.Store, true}, Free(d.Store)
	}
	path, err := g.volume(ctx, d.Name, d.Format, d.Size, d.Allocate == "full", "")
	if err != nil || d.Store != scenario.StoreDevice {
		return source{path, false}, err
	}
	device, err := attach(path)
	if err != nil {
		return source{}, err
	}
	g.devices = append(g.devices, device)
	return source{device.Name(), true}, nil
}

// attach makes a device of a volume that by-passes the host's page cache, as a
// disk's own does. The lab keeps it open, and so it goes with the lab.
func attach(path string) (*os.File, error) {
	backing, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Volume, "cannot make a block device of a volume")
	}
	defer backing.Close()
	device, err := loop.Attach(backing, os.O_RDWR, unix.LO_FLAGS_DIRECT_IO)
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return nil, &Skipped{"this host makes no block devices of files: " + err.Error()}
	case err != nil:
		return nil, fault.Wrap(err, fault.Failed, fault.Volume, "cannot make a block device of a volume")
	}
	return device, nil
}

// Free sees that a device of the host's is nobody's: all that is on it will be
// lost.
func Free(path string) error {
	device, err := os.OpenFile(path, os.O_RDONLY|unix.O_EXCL|unix.O_NONBLOCK, 0)
	if err != nil {
		return fault.Wrap(err, fault.Busy, fault.Volume, "cannot have device %s: it is mounted or in other use, or it is not there", path)
	}
	defer device.Close()
	info, err := device.Stat()
	if err != nil || info.Mode()&os.ModeDevice == 0 || info.Mode()&os.ModeCharDevice != 0 {
		return fault.New(fault.Invalid, fault.Volume, "%s is no block device", path)
	}
	return nil
}

// dropDevices gives the block devices up, and they go.
func (g *Guest) dropDevices() {
	for _, device := range g.devices {
		device.Close()
	}
	g.devices = nil
}
