package blockdev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
)

// Extent is a part of a block device, from Start up to End, in bytes.
type Extent struct {
	Device     string
	Start, End uint64
}

// Claim refuses a device that the host or a guest has open and, unless
// overwrite is set, one that holds data. Until held is closed no guest can
// open the device.
func Claim(ctx context.Context, device string, overwrite bool) (held io.Closer, err error) {
	if !overwrite {
		found, err := Content(ctx, device)
		if err != nil {
			return nil, err
		}
		if found != "" {
			return nil, fault.New(fault.Exists, fault.Pool, "%s holds %s already; build with overwrite to lose it", device, found)
		}
	}
	return fsguard.Do(ctx, device, func() (io.Closer, error) {
		f, err := image.Open(device)
		if err == nil {
			if err = checkExclusive(device); err == nil {
				_, err = image.LockToWrite(f)
			}
			if err != nil {
				_ = f.Close() // nothing was written
			}
		}
		return f, err
	}, func(f io.Closer) { _ = f.Close() })
}

// Content returns the types of file system and partition table that blkid finds on a device; "" if it finds none.
func Content(ctx context.Context, device string) (string, error) {
	out, err := Run(ctx, ToolTime, "blkid", "-p", "-o", "value", "-s", "TYPE", "-s", "PTTYPE", device)
	var exit *ExitError
	if errors.As(err, &exit) && exit.Code == 2 { // blkid(8): no known type
		return "", nil
	}
	return strings.Join(strings.Fields(out), ", "), err
}

// checkExclusive refuses a device that is in use, or with a partition or whole disk in use.
func checkExclusive(device string) error {
	fd, err := unix.Open(device, unix.O_RDONLY|unix.O_EXCL|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EBUSY) {
		return fault.New(fault.Busy, fault.Pool, "%s is in use: it or a part of it is mounted, swapped to, or used by RAID or LVM", device)
	}
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Pool, "cannot open %s", device)
	}
	f := os.NewFile(uintptr(fd), device)
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return fault.Wrap(err, fault.Failed, fault.Pool, "cannot stat %s", device)
	case info.Mode()&os.ModeType != os.ModeDevice:
		return fault.New(fault.Invalid, fault.Pool, "%s is no block device", device)
	}
	return CheckGuests(f)
}

// CheckGuests refuses a device if a guest has it, one of its partitions or its whole disk open. O_EXCL does not
// find these: QEMU opens its disks without it.
func CheckGuests(device *os.File) error {
	if image.InUse(device) != image.Unused {
		return fault.New(fault.Busy, fault.Pool, "a guest has %s open; stop the guest first", device.Name())
	}
	for _, node := range relatedNodes(device) {
		if err := CheckClosed(node); err != nil {
			return fault.Wrap(err, fault.Of(err), fault.Pool, "cannot take %s", device.Name())
		}
	}
	return nil
}

// CheckClosed refuses a volume that a guest has open. A volume without a node has no user.
func CheckClosed(path string) error {
	f, err := image.Open(path)
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if image.InUse(f) != image.Unused {
		return fault.New(fault.Busy, fault.Volume, "a guest has %s open; stop the guest first", path)
	}
	return nil
}

// relatedNodes returns the nodes of a disk's partitions, or the node of a partition's disk.
func relatedNodes(device *os.File) (nodes []string) {
	var st unix.Stat_t
	if unix.Fstat(int(device.Fd()), &st) != nil {
		return nil
	}
	dir, err := filepath.EvalSymlinks(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev)))
	if err != nil {
		return nil // the kernel lists no such device
	}
	dirs, _ := filepath.Glob(filepath.Join(dir, "*", "partition")) // fails only for a malformed pattern
	if unix.Access(filepath.Join(dir, "partition"), unix.F_OK) == nil {
		dirs = append(dirs, dir) // its parent directory is the disk
	}
	for _, part := range dirs {
		node := filepath.Base(filepath.Dir(part))
		nodes = append(nodes, filepath.Join("/dev", strings.ReplaceAll(node, "!", "/")))
	}
	return nodes
}

// RealPath follows links such as those below /dev/disk to the device's node.
func RealPath(ctx context.Context, path string) (string, error) {
	node, err := fsguard.Do(ctx, path, func() (string, error) { return filepath.EvalSymlinks(path) }, nil)
	if fault.Is(err, fault.Timeout) {
		return "", err
	}
	if errors.Is(err, fs.ErrNotExist) { // fault.NotFound would say that the pool is missing
		return "", fault.New(fault.Invalid, fault.Pool, "source/device/@path: device path %s does not exist on this host; attach the device, or correct the path", path)
	}
	return node, fault.Wrap(err, fault.Failed, fault.Pool, "cannot find the device %s", path)
}

// Size returns the size of a block device in bytes.
func Size(device string) (uint64, error) {
	f, err := image.Open(device)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.Mode()&os.ModeType != os.ModeDevice {
		return 0, fault.New(fault.Invalid, fault.Pool, "%s is no block device", device)
	}
	end, err := f.Seek(0, io.SeekEnd)
	return uint64(max(end, 0)), fault.Wrap(err, fault.Failed, fault.Pool, "cannot find the size of %s", device)
}
