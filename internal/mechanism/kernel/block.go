package kernel

import "strings"

// BlockDevice is one whole disk or drive; partitions are not among them.
type BlockDevice struct {
	// Name is the kernel's, such as vda; Path is below /sys/devices.
	Name, Path string
	// Node is the device file and Links are other names for it.
	Node  string
	Links []string
	// Bus is udev's word (ata, usb, scsi, ...), or "".
	Bus string
	// Kind is disk, cdrom, floppy or another of udev's values. It is "" for a device
	// that is no drive, such as a loop device.
	Kind                  string
	Model, Vendor, Serial string
	// Size is the capacity in bytes, 0 without a medium.
	Size             uint64
	LogicalBlockSize uint64
	Rotational       bool
	ReadOnly         bool
	Removable        bool
}

// BlockDevices reads every block device that is not a partition, by name.
func (r Root) BlockDevices() []BlockDevice {
	const dir = "sys/class/block"
	var devices []BlockDevice
	for _, name := range r.list(dir) {
		if r.exists(dir, name, "partition") {
			continue
		}
		// The kernel writes ! for a slash in a device's name.
		d := BlockDevice{
			Name: name, Path: r.resolve(dir, name), Node: "/dev/" + strings.ReplaceAll(name, "!", "/"),
			Size:             r.size(dir, name, "size") * 512,
			LogicalBlockSize: r.size(dir, name, "queue/logical_block_size"),
			Rotational:       r.number(0, dir, name, "queue/rotational") == 1,
			ReadOnly:         r.number(0, dir, name, "ro") == 1,
			Removable:        r.number(0, dir, name, "removable") == 1,
			Vendor:           r.attr(dir, name, "device/vendor"),
			Model:            r.attr(dir, name, "device/model"),
			Serial:           r.attr(dir, name, "serial"),
		}
		if d.Serial == "" {
			d.Serial = r.attr(dir, name, "device/serial")
		}
		d.takeUdev(r.udev("b" + r.attr(dir, name, "dev")))
		d.nameKind()
		devices = append(devices, d)
	}
	return devices
}

// takeUdev prefers the values that udev got from the drive itself.
func (d *BlockDevice) takeUdev(u udevRecord) {
	d.Links = u.links
	d.Bus = u.properties["ID_BUS"]
	for key, into := range map[string]*string{"ID_SERIAL": &d.Serial, "ID_MODEL": &d.Model, "ID_VENDOR": &d.Vendor} {
		if value := u.properties[key]; value != "" {
			*into = value
		}
	}
	// A virtio disk's "vendor" is a number of its bus, not a maker.
	if strings.HasPrefix(d.Vendor, "0x") {
		d.Vendor = ""
	}
	switch {
	case u.properties["ID_CDROM"] == "1":
		d.Kind = "cdrom"
	case u.properties["ID_DRIVE_FLOPPY"] == "1":
		d.Kind = "floppy"
	case u.properties["ID_TYPE"] != "generic":
		d.Kind = u.properties["ID_TYPE"]
	}
}

// driveNames are the kernel's prefixes for drives.
var driveNames = []struct{ prefix, kind string }{
	{"vd", "disk"},
	{"sd", "disk"},
	{"nvme", "disk"},
	{"xvd", "disk"},
	{"hd", "disk"},
	{"mmcblk", "disk"},
	{"dasd", "disk"},
	{"pmem", "disk"},
	{"sr", "cdrom"},
	{"fd", "floppy"},
}

// nameKind sets the kind by the name if udev has no record of it.
func (d *BlockDevice) nameKind() {
	if d.Kind != "" {
		return
	}
	for _, n := range driveNames {
		if strings.HasPrefix(d.Name, n.prefix) {
			d.Kind = n.kind
			return
		}
	}
}

// udevRecord is udev's stored record of a device.
type udevRecord struct {
	properties map[string]string
	links      []string
}

// udev reads udev's record of a device, whose id is b8:0, c21:0 or n2. It is
// empty where udev does not run.
func (r Root) udev(id string) udevRecord {
	u := udevRecord{properties: map[string]string{}}
	text, err := r.read("run/udev/data", id)
	if err != nil {
		return u
	}
	keyed(text, ":", func(key, value string) {
		switch key {
		case "S":
			u.links = append(u.links, "/dev/"+value)
		case "E":
			name, content, _ := strings.Cut(value, "=")
			u.properties[name] = content
		}
	})
	return u
}
