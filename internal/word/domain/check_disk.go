package domain

import (
	"math/bits"
	"slices"
	"strings"
	"unicode"

	"github.com/lodge-kvm/lodge/internal/word/device"
)

func (c *deviceCheck) disk(d *device.Disk) error {
	for _, rules := range []func(*device.Disk) error{
		checkTarget, checkPlace, checkBus, checkLUN, checkIdentity, checkMedium, checkBlockSizes, checkThrottle,
	} {
		if err := rules(d); err != nil {
			return err
		}
	}
	if err := c.ioThread(d.IOThread); err != nil {
		return unsupported("disk %s: %v", d.Target, err)
	}
	return c.throttleGroup(d)
}

// checkTarget checks that a disk's name fits its device: clients recognize a drive by its name.
func checkTarget(d *device.Disk) error {
	floppy := strings.HasPrefix(d.Target, "fd")
	switch {
	case strings.TrimRight(d.Target, "0123456789") != d.Target:
		return unsupported("disk target %q names a partition; name the whole disk, as %q",
			d.Target, strings.TrimRight(d.Target, "0123456789"))
	case d.Device == "floppy" && !floppy:
		return unsupported("floppy drive %s: its target begins with fd, as fda", d.Target)
	case (d.Device == "disk" || d.Device == "lun") && floppy:
		return unsupported("disk %s: only floppy drives have a target that begins with fd", d.Target)
	}
	return nil
}

// checkPlace refuses an address with a number that the bus does not have.
func checkPlace(d *device.Disk) error {
	at, is := d.Address.(device.Drive)
	switch {
	case !is:
	case at.Target != 0 && d.Bus != "scsi":
		return unsupported("disk %s: an address on bus %s has target 0, not %d", d.Target, d.Bus, at.Target)
	case at.Bus != 0 && d.Bus != "ide":
		return unsupported("disk %s: a controller of bus %s has bus 0 only, not %d", d.Target, d.Bus, at.Bus)
	}
	return nil
}

// checkBus refuses options that only disks of some buses have.
func checkBus(d *device.Disk) error {
	ata := d.Bus == "ide" || d.Bus == "sata"
	scsi := d.Bus == "scsi"
	switch {
	case d.Bus == "virtio" && d.Device == "cdrom":
		return unsupported("disk %s: bus virtio has no CD-ROM drives; use bus sata or scsi", d.Target)
	case ata && d.ReadOnly && d.Device == "disk":
		return unsupported("disk %s: readonly %s disks are not supported; use bus virtio or scsi, or device cdrom", d.Target, d.Bus)
	case d.WWN != "" && d.Bus != "ide" && !scsi:
		return unsupported("disk %s: a wwn is for disks on bus ide or scsi, not %s; leave it out or use <serial>", d.Target, d.Bus)
	case (d.Vendor != "" || d.Product != "") && !scsi:
		return unsupported("disk %s: vendor and product are for disks on bus scsi, not %s; leave them out", d.Target, d.Bus)
	case d.RotationRate != 0 && !ata && !scsi:
		return unsupported("disk %s: rotation_rate is for disks on bus scsi, sata or ide, not %s; leave it out", d.Target, d.Bus)
	case d.RotationRate != 0 && d.Device != "disk":
		return unsupported("disk %s: rotation_rate is for device disk, not %s; leave it out", d.Target, d.Device)
	case d.Removable != device.Unset && d.Bus != "usb":
		return invalid("disk %s: removable is for disks on bus usb, not %s; leave it out", d.Target, d.Bus)
	case d.IOThread != 0 && d.Bus != "virtio":
		return unsupported("disk %s: an iothread is for disks on bus virtio, not %s; give it to a virtio-scsi controller", d.Target, d.Bus)
	case d.Bus == "virtio" && d.QueueSize != 0 && (bits.OnesCount(d.QueueSize) != 1 || d.QueueSize < 2 || d.QueueSize > maxQueueSize):
		return unsupported("disk %s: queue_size is a power of two from 2 to %d, not %d", d.Target, maxQueueSize, d.QueueSize)
	case d.Bus == "virtio":
		return nil
	}
	if name := virtioOnly(d); name != "" {
		return unsupported("disk %s: %s is for disks on bus virtio, not %s; leave it out", d.Target, name, d.Bus)
	}
	return nil
}

// maxQueueSize is the number of requests that QEMU allows in one queue of a virtio device.
const maxQueueSize = 1024

// virtioOnly returns the first option of a disk that only bus virtio has.
func virtioOnly(d *device.Disk) string {
	switch {
	case d.Model != "":
		return "model " + d.Model
	case d.Queues != 0:
		return "queues"
	case d.QueueSize != 0:
		return "queue_size"
	case d.EventIdx != device.Unset:
		return "event_idx"
	case d.IOEventFD != device.Unset:
		return "ioeventfd"
	default:
		return virtioOption(d.IOMMU, d.ATS, d.Packed)
	}
}

// virtioOption returns the first option that is set of those that all virtio
// devices have.
func virtioOption(iommu, ats, packed device.Switch) string {
	switch {
	case iommu != device.Unset:
		return "iommu"
	case ats != device.Unset:
		return "ats"
	case packed != device.Unset:
		return "packed"
	}
	return ""
}

// checkLUN checks a disk of device lun: the guest sends SCSI commands to the host's device.
func checkLUN(d *device.Disk) error {
	if d.Device != "lun" {
		return nil
	}
	switch {
	case d.Source == nil || d.Source.File != "":
		return unsupported("disk %s: device lun hands a block device through; use a source of type block, or device disk", d.Target)
	case d.Format != "" && d.Format != "raw":
		return unsupported("disk %s: device lun has format raw, not %s", d.Target, d.Format)
	case d.Encryption != nil:
		return unsupported("disk %s: device lun cannot be encrypted; use device disk", d.Target)
	case d.Bus != "virtio" && d.Bus != "scsi":
		return unsupported("disk %s: device lun is for bus scsi, not %s", d.Target, d.Bus)
	case d.Serial != "" && d.Bus == "scsi":
		return unsupported("disk %s: device lun has the serial of its source; leave serial out", d.Target)
	case d.WWN != "", d.Vendor != "", d.Product != "":
		return unsupported("disk %s: device lun has the wwn, vendor and product of its source; leave them out", d.Target)
	case d.CopyOnRead == device.On:
		return unsupported("disk %s: device lun has no copy_on_read; leave it out", d.Target)
	}
	return nil
}

// Lengths in bytes of the fields in the answer to SCSI INQUIRY.
const (
	maxVendor  = 8
	maxProduct = 16
)

// serialLetters are the characters of a serial number.
const serialLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_ .+"

func checkIdentity(d *device.Disk) error {
	wwn := strings.TrimPrefix(d.WWN, "0x")
	switch {
	case !printable(d.Vendor):
		return invalid("disk %s: vendor %q is not of printable ASCII", d.Target, d.Vendor)
	case !printable(d.Product):
		return invalid("disk %s: product %q is not of printable ASCII", d.Target, d.Product)
	case len(d.Vendor) > maxVendor:
		return unsupported("disk %s: vendor %q is longer than %d characters", d.Target, d.Vendor, maxVendor)
	case len(d.Product) > maxProduct:
		return unsupported("disk %s: product %q is longer than %d characters", d.Target, d.Product, maxProduct)
	case strings.Trim(d.Serial, serialLetters) != "":
		return unsupported("disk %s: serial %q has other characters than letters, digits, space and -_.+", d.Target, d.Serial)
	case d.WWN != "" && (len(wwn) != 16 || strings.Trim(wwn, "0123456789abcdefABCDEF") != ""):
		return unsupported("disk %s: wwn %q is not of 16 hexadecimal digits", d.Target, d.WWN)
	}
	return nil
}

func printable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r > unicode.MaxASCII || !unicode.IsPrint(r) })
}

// shareable are the formats that two guests can write at once.
var shareable = []string{"", "raw"}

// checkMedium checks the image, its format and the drive's options.
func checkMedium(d *device.Disk) error {
	removable := d.Device == "cdrom" || d.Device == "floppy"
	switch {
	case d.Tray != "" && !removable:
		return unsupported("disk %s: tray is for cdrom and floppy drives; leave it out", d.Target)
	case d.CopyOnRead == device.On && (d.ReadOnly || removable):
		return unsupported("disk %s: copy_on_read writes to the image, and a read-only or removable disk is not written; leave it out", d.Target)
	case d.StartupPolicy == "requisite" && !removable:
		return invalid("disk %s: startupPolicy requisite is for cdrom and floppy drives; use optional or mandatory", d.Target)
	case d.Shareable && !d.ReadOnly && !slices.Contains(shareable, d.Format):
		return unsupported("disk %s: an image of format %s cannot be shared by guests that write; use format raw", d.Target, d.Format)
	case d.IO == "native" && d.Cache != "none" && d.Cache != "directsync":
		return unsupported("disk %s: io native needs cache none or directsync", d.Target)
	case d.Encryption != nil && d.Format != "" && d.Format != "raw" && d.Format != "qcow2":
		return unsupported("disk %s: an encrypted image has format raw or qcow2, not %s", d.Target, d.Format)
	}
	return nil
}

// maxBlock is the largest block that QEMU shows a guest, in bytes.
const maxBlock = 2 << 20

// checkBlockSizes refuses sectors that QEMU cannot show.
func checkBlockSizes(d *device.Disk) error {
	b := d.BlockIO
	if b == nil {
		return nil
	}
	for _, size := range []struct {
		name  string
		bytes uint
	}{{"logical_block_size", b.LogicalBlock}, {"physical_block_size", b.PhysicalBlock}} {
		if size.bytes != 0 && (bits.OnesCount(size.bytes) != 1 || size.bytes < 512 || size.bytes > maxBlock) {
			return unsupported("disk %s: %s is a power of two from 512 to %d, not %d", d.Target, size.name, maxBlock, size.bytes)
		}
	}
	logical := max(b.LogicalBlock, 512)
	switch {
	case b.PhysicalBlock != 0 && b.PhysicalBlock < logical:
		return unsupported("disk %s: physical_block_size %d is smaller than the logical block of %d", d.Target, b.PhysicalBlock, logical)
	case b.DiscardGranularity%logical != 0:
		return unsupported("disk %s: discard_granularity %d is not a multiple of the logical block of %d", d.Target, b.DiscardGranularity, logical)
	case b.LogicalBlock > 512 && (d.Bus == "ide" || d.Bus == "sata" || d.Bus == "fdc"):
		return unsupported("disk %s: bus %s has logical blocks of 512 bytes only; use bus virtio or scsi", d.Target, d.Bus)
	}
	return nil
}

// maxThrottle is the largest bound of traffic that QEMU accepts.
const maxThrottle = 1e15

func checkThrottle(d *device.Disk) error {
	t := d.Tune
	if t == nil {
		return nil
	}
	for _, kind := range []struct {
		name               string
		total, read, write uint64
	}{
		{"bytes_sec", t.TotalBytes, t.ReadBytes, t.WriteBytes},
		{"iops_sec", t.TotalIOPS, t.ReadIOPS, t.WriteIOPS},
		{"bytes_sec_max", t.TotalBytesMax, t.ReadBytesMax, t.WriteBytesMax},
		{"iops_sec_max", t.TotalIOPSMax, t.ReadIOPSMax, t.WriteIOPSMax},
	} {
		if kind.total != 0 && (kind.read != 0 || kind.write != 0) {
			return invalid("disk %s: iotune has total_%s and also one for reads or writes; keep the total or the others", d.Target, kind.name)
		}
	}
	limited := false
	for _, f := range t.Fields() {
		limited = limited || *f.Value != 0
		if *f.Value > maxThrottle && !strings.HasSuffix(f.Name, "_length") {
			return unsupported("disk %s: iotune %s is at most %d, not %d", d.Target, f.Name, uint64(maxThrottle), *f.Value)
		}
	}
	if t.Group != "" && !limited {
		return unsupported("disk %s: iotune group %q limits nothing; add a limit or leave the group out", d.Target, t.Group)
	}
	return nil
}

// throttleGroup refuses disks of one throttle group with different limits.
func (c *deviceCheck) throttleGroup(d *device.Disk) error {
	if d.Tune == nil || d.Tune.Group == "" {
		return nil
	}
	first, known := c.throttles[d.Tune.Group]
	if !known {
		c.throttles[d.Tune.Group] = d
		return nil
	}
	if *first.Tune != *d.Tune {
		return unsupported("disks %s and %s share iotune group %q and have different limits; make them equal", first.Target, d.Target, d.Tune.Group)
	}
	return nil
}

// ioThread refuses an invalid number of an iothread.
func (c *deviceCheck) ioThread(id uint) error {
	if id > c.d.IOThreads {
		return unsupported("iothread %d is not among the domain's %d; raise <iothreads>", id, c.d.IOThreads)
	}
	return nil
}
