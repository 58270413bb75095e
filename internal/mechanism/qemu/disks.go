package qemu

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/lodge-kvm/lodge/internal/mechanism/qemucaps"
	"github.com/lodge-kvm/lodge/internal/word/device"
)

func (b *builder) disks() error {
	for _, d := range b.Definition.Devices.Disks {
		if err := b.disk(d); err != nil {
			return err
		}
	}
	return nil
}

// disk adds a drive and, if it has a medium, the block node behind it.
func (b *builder) disk(d *device.Disk) error {
	node := ""
	a, present := b.Disks[d.Alias]
	if b.dryRun && !present && d.Source != nil {
		a, present = device.DiskAttachment{Layers: []device.Layer{{Path: d.Source.Path(), Format: cmp.Or(d.Format, "raw")}}}, true
	}
	if d.Transient {
		return unsupported("disk %s: transient disks are not built; leave <transient/> out and put back a copy of the image", d.Target)
	}
	if d.Tray == "open" { // an open tray holds no medium
		present = false
	}
	if present {
		make := b.nodes
		if d.Encryption != nil && !b.running { // its passphrase is for the monitor only
			make = b.addPlaceholder
		}
		top, err := make(d, a)
		if err != nil {
			return err
		}
		node = top
	} else if d.Device != "cdrom" && d.Device != "floppy" {
		return invalid("disk %s has no source", d.Target)
	}
	driver, props, err := b.drive(d, node)
	if err != nil {
		return err
	}
	if d.WWN != "" {
		wwn, err := strconv.ParseUint(strings.TrimPrefix(d.WWN, "0x"), 16, 64)
		if err != nil {
			return invalid("disk %s has the WWN %q, which is not of 16 hexadecimal digits", d.Target, d.WWN)
		}
		props.add("wwn", wwn)
	}
	b.driveOptions(d, &props)
	return b.addDevice(driver, props)
}

// formats that a disk may be declared to have, and luks, which an encrypted raw
// one has.
var formats = []string{"luks", "raw", "qcow2", "qcow", "qed", "vmdk", "vdi", "vhdx", "vpc", "dmg", "cloop", "bochs", "parallels"}

// backed are the formats with a backing file. The end of a chain is stated explicitly: QEMU must not
// follow names in image headers.
var backed = []string{"qcow2", "qcow", "qed", "vmdk"}

// nodes makes the block nodes of a disk, one for each image, the lowest first, and returns the name of the
// node for the device. Each node belongs to the monitor, so that a block job can replace one.
func (b *builder) nodes(d *device.Disk, a device.DiskAttachment) (string, error) {
	numbers := d.Nodes()
	if len(a.Layers) == 0 || len(numbers) < len(a.Layers) {
		return "", invalid("disk %s has %d images, of which %d are numbered", d.Target, len(a.Layers), len(numbers))
	}
	if err := b.addKey(d); err != nil {
		return "", err
	}
	var below any
	for i, l := range slices.Backward(a.Layers) {
		layer, err := b.layer(d, l, numbers[i], i > 0 || d.ReadOnly)
		if err != nil {
			return "", err
		}
		if slices.Contains(backed, l.Format) {
			layer.add("backing", below)
		} else if below != nil {
			return "", invalid("disk %s: an image of format %s cannot have another below it", d.Target, l.Format)
		}
		if i == 0 {
			layer = append(layer, keyProperties(d, l.Format)...)
		}
		b.add("blockdev", layer)
		below = FormatNode(numbers[i])
	}
	if d.CopyOnRead == device.On {
		b.add("blockdev", properties{{"driver", "copy-on-read"}, {"node-name", TopNode(d)}, {"file", below}, {"discard", "unmap"}})
	}
	return TopNode(d), nil
}

// removeNodes returns the commands that remove the block nodes of a disk, from the top down: QEMU keeps a
// node that another one uses.
func removeNodes(d *device.Disk) []Step {
	var steps []Step
	if d.CopyOnRead == device.On && d.Source != nil {
		steps = append(steps, removeStep("blockdev", TopNode(d)))
	}
	for _, number := range d.Nodes() {
		steps = append(steps, removeStep("blockdev", FormatNode(number)))
	}
	return steps
}

// FormatNode is the name of the node of the image with that number, as its format has it.
func FormatNode(number uint) string { return nodeBase(number) + "-format" }

// storageNode is the name of the node of the file or device that holds an image.
func storageNode(number uint) string { return nodeBase(number) + "-storage" }

// nodeBase is the prefix of the names that QEMU uses for an image.
func nodeBase(number uint) string { return fmt.Sprintf("libvirt-%d", number) }

// TopNode is the name of the node that a disk's device reads and writes.
func TopNode(d *device.Disk) string {
	if d.CopyOnRead == device.On {
		return "libvirt-CoR-" + d.Target
	}
	return FormatNode(d.Source.Index)
}

// cacheMode is the meaning of libvirt's words for caching.
type cacheMode struct{ direct, noFlush, writeBack bool }

var cacheModes = map[string]cacheMode{
	"none": {direct: true, writeBack: true}, "writethrough": {}, "writeback": {writeBack: true},
	"directsync": {direct: true}, "unsafe": {noFlush: true, writeBack: true},
}

// layer describes one image of a chain: its format, and the file or device that
// holds it. QEMU opens both again when the image becomes writable.
func (b *builder) layer(d *device.Disk, l device.Layer, number uint, readOnly bool) (properties, error) {
	if !slices.Contains(formats, l.Format) {
		return nil, unsupported("disk %s: images of format %q are not built", d.Target, l.Format)
	}
	storage, err := b.storage(d, l, number)
	if err != nil {
		return nil, err
	}
	props := formatProperties(d, l.Format, number, readOnly)
	props.add("file", storage)
	return props, nil
}

// formatProperties are the properties of an image's format, for any kind of storage.
func formatProperties(d *device.Disk, format string, number uint, readOnly bool) properties {
	props := properties{{"driver", format}, {"node-name", FormatNode(number)}, {"read-only", readOnly}}
	if d.Discard == "unmap" {
		props.add("discard", "unmap")
	}
	if !readOnly {
		switch {
		case d.DetectZeroes == "unmap" && d.Discard != "unmap":
			props.add("detect-zeroes", "on")
		default:
			props.text("detect-zeroes", d.DetectZeroes)
		}
	}
	cacheProperties(&props, d.Cache)
	return props
}

func (b *builder) storage(d *device.Disk, l device.Layer, number uint) (properties, error) {
	driver := "file"
	if l.Block {
		driver = "host_device"
	}
	path := l.Path
	if l.File != nil {
		path = b.addFDSet(l.File, number)
	}
	props := properties{{"driver", driver}, {"filename", path}, {"node-name", storageNode(number)}}
	switch d.IO {
	case "", "threads":
		props.text("aio", d.IO)
	case "native":
		if m := cacheModes[d.Cache]; !m.direct {
			return nil, unsupported("disk %s: io native needs cache none or directsync", d.Target)
		}
		if !b.Capabilities.Has(qemucaps.FactNativeAIO) {
			return nil, unsupported("disk %s: this QEMU has no native AIO", d.Target)
		}
		props.add("aio", "native")
	case "io_uring":
		if !b.Capabilities.Has(qemucaps.FactIOUring) {
			return nil, unsupported("disk %s: this QEMU has no io_uring", d.Target)
		}
		props.add("aio", "io_uring")
	default:
		return nil, invalid("disk %s has the unknown io mode %q", d.Target, d.IO)
	}
	cacheProperties(&props, d.Cache)
	// A file that was handed over has a fixed mode and cannot be opened in another.
	props.add("auto-read-only", l.File == nil)
	discard := "unmap"
	if d.Discard == "ignore" {
		discard = "ignore"
	}
	props.add("discard", discard)
	return props, nil
}

func cacheProperties(props *properties, mode string) {
	if m, ok := cacheModes[mode]; ok {
		props.add("cache", properties{{"direct", m.direct}, {"no-flush", m.noFlush}})
	}
}

// drive returns the device of a disk: its place on a bus, and its medium.
func (b *builder) drive(d *device.Disk, node string) (driver string, props properties, err error) {
	if d.Device == "lun" && d.Bus != "scsi" {
		return "", nil, unsupported("disk %s: device lun is built on bus scsi only; use that", d.Target)
	}
	if d.Bus != "virtio" && (d.IOThread != 0 || d.Queues != 0 || d.QueueSize != 0) {
		return "", nil, unsupported("disk %s: bus %s has no queues and iothreads of its disks' own", d.Target, d.Bus)
	}
	switch d.Bus {
	case "virtio":
		driver, err = b.virtioDisk(d, &props)
	case "ide", "sata":
		driver, err = b.ataDisk(d, &props)
	case "scsi":
		driver, err = b.scsiDisk(d, &props)
	case "usb":
		return b.usbDisk(d, node)
	case "fdc":
		driver = "floppy"
		at, _ := d.Address.(device.Drive)
		props.add("unit", at.Unit)
		if d.Device != "floppy" {
			err = unsupported("disk %s: only floppy drives sit on bus fdc", d.Target)
		}
	default:
		err = unsupported("disk %s: bus %q is not built", d.Target, d.Bus)
	}
	if err != nil {
		return "", nil, err
	}
	if err := b.place(&props, &d.Info); err != nil {
		return "", nil, err
	}
	driveProperties(&props, d, node)
	props.add("id", d.Alias)
	return driver, props, nil
}

func driveProperties(props *properties, d *device.Disk, node string) {
	if d.Shareable && d.Bus != "fdc" {
		props.add("share-rw", true)
	}
	props.text("drive", node)
}

// usbDisk adds a USB stick, or a CD drive behind a bridge of its own: only a CD drive
// can be empty.
func (b *builder) usbDisk(d *device.Disk, node string) (driver string, props properties, err error) {
	switch d.Device {
	case "disk":
		props.add("removable", d.Removable == device.On)
		if err := b.place(&props, &d.Info); err != nil {
			return "", nil, err
		}
		driveProperties(&props, d, node)
		props.add("id", d.Alias)
		return "usb-storage", props, nil
	case "cdrom":
		bridge := properties{{"id", d.Alias + "-bridge"}}
		if err := b.place(&bridge, &d.Info); err != nil {
			return "", nil, err
		}
		if err := b.addDevice("usb-bot", bridge); err != nil {
			return "", nil, err
		}
		props = properties{{"bus", d.Alias + "-bridge.0"}, {"scsi-id", 0}, {"lun", 0}}
		driveProperties(&props, d, node)
		props.add("id", d.Alias)
		return "scsi-cd", props, nil
	}
	return "", nil, unsupported("disk %s: there are no %s drives on bus usb", d.Target, d.Device)
}

func (b *builder) virtioDisk(d *device.Disk, props *properties) (string, error) {
	if d.Device != "disk" {
		return "", unsupported("disk %s: there are no %s drives on bus virtio", d.Target, d.Device)
	}
	if err := b.iothread(props, d.IOThread); err != nil {
		return "", err
	}
	props.toggle("ioeventfd", d.IOEventFD)
	props.number("num-queues", d.Queues)
	props.number("queue-size", d.QueueSize)
	return b.virtio("virtio-blk", d.Model, d.EventIdx, d.IOMMU, d.ATS, d.Packed, props)
}

func (b *builder) ataDisk(d *device.Disk, props *properties) (string, error) {
	at, ok := d.Address.(device.Drive)
	if !ok {
		return "", invalid("disk %s has no place on a controller", d.Target)
	}
	if d.Device != "disk" && d.Device != "cdrom" {
		return "", unsupported("disk %s: there are no %s drives on bus %s", d.Target, d.Device, d.Bus)
	}
	name := b.controllerName(d.Bus, at.Controller)
	if d.Bus == "ide" {
		if at.Bus > 1 || at.Unit > 1 {
			err := b.unlessDryRun(unsupported("disk %s is at %s, and an IDE controller has buses 0 and 1 with units 0 and 1; change its address, or use bus sata", d.Target, at))
			if err != nil {
				return "", err
			}
		}
		props.add("bus", fmt.Sprintf("%s.%d", name, at.Bus))
		props.add("unit", at.Unit)
	} else {
		if at.Unit > 5 {
			err := b.unlessDryRun(unsupported("disk %s is at %s, and a SATA controller has units 0 to 5; change its address", d.Target, at))
			if err != nil {
				return "", err
			}
		}
		props.add("bus", fmt.Sprintf("%s.%d", name, at.Unit))
	}
	if d.Device == "cdrom" {
		return "ide-cd", nil
	}
	return "ide-hd", nil
}

func (b *builder) scsiDisk(d *device.Disk, props *properties) (string, error) {
	at, ok := d.Address.(device.Drive)
	if !ok {
		return "", invalid("disk %s has no place on a controller", d.Target)
	}
	props.add("bus", b.controllerName("scsi", at.Controller)+".0")
	if err := b.scsiPlace(d, at, props); err != nil {
		return "", err
	}
	switch d.Device {
	case "cdrom":
		props.add("device_id", "drive-"+d.Alias)
		return "scsi-cd", nil
	case "lun":
		return "scsi-block", nil
	case "floppy":
		return "", unsupported("disk %s: there are no floppy drives on bus scsi", d.Target)
	}
	props.add("device_id", "drive-"+d.Alias)
	if d.Removable != device.Unset {
		props.add("removable", d.Removable == device.On)
	}
	return "scsi-hd", nil
}

// maxLUN is the highest logical unit that a target of a SCSI controller can have, by model; those of the
// virtio models are beyond what an address can say.
var maxLUN = map[string]uint{"lsisas1068": 1, "lsisas1078": 255, "am53c974": 7, "dc390": 7}

// scsiPlace says where a disk sits on its controller. An lsilogic controller has only units, which are its
// targets. Where the model has no logical unit of the number, the unit counts targets, too.
func (b *builder) scsiPlace(d *device.Disk, at device.Drive, props *properties) error {
	model := ""
	if c := b.controllersByKey[controllerKey{"scsi", at.Controller}]; c != nil {
		model = c.Model
	}
	isVirtio := strings.HasPrefix(model, "virtio")
	switch {
	case !isVirtio && at.Bus != 0:
		return unsupported("disk %s: a SCSI controller has one bus, and its number is 0", d.Target)
	case model == "lsilogic" && at.Target != 0:
		return unsupported("disk %s: a SCSI controller of model lsilogic has only target 0", d.Target)
	case model == "lsilogic" || !isVirtio && at.Target == 0 && at.Unit > maxLUN[model]:
		props.add("scsi-id", at.Unit)
		return nil
	}
	props.add("channel", at.Bus)
	props.add("scsi-id", at.Target)
	props.add("lun", at.Unit)
	return nil
}

// driveOptions adds the properties of the disk's device.
func (b *builder) driveOptions(d *device.Disk, props *properties) {
	props.text("vendor", d.Vendor)
	props.text("product", d.Product)
	b.bootDisk(d, props)
	if g := d.BlockIO; g != nil {
		props.number("logical_block_size", g.LogicalBlock)
		props.number("physical_block_size", cmp.Or(g.PhysicalBlock, g.LogicalBlock)) // QEMU takes no smaller one
		props.number("discard_granularity", g.DiscardGranularity)
	}
	if m, ok := cacheModes[d.Cache]; ok && d.Device == "disk" {
		props.add("write-cache", device.Bool(m.writeBack).String())
	}
	props.number("rotation_rate", d.RotationRate)
	props.text("serial", d.Serial)
	if d.Device == "lun" {
		return
	}
	props.text("werror", errorPolicies[d.ErrorPolicy])
	switch {
	case d.ReadPolicy != "":
		props.text("rerror", d.ReadPolicy)
	case d.ErrorPolicy == "enospace":
		props.add("rerror", "report")
	default:
		props.text("rerror", d.ErrorPolicy)
	}
}

// bootDisk sets the boot index of a disk. A floppy's is set on the controller.
func (b *builder) bootDisk(d *device.Disk, props *properties) {
	order := b.boot.of(d)
	if d.Bus != "fdc" {
		props.number("bootindex", order)
		return
	}
	if at, ok := d.Address.(device.Drive); ok && order > 0 {
		b.addWords("-global", fmt.Sprintf("isa-fdc.bootindex%c=%d", 'A'+rune(at.Unit&1), order))
	}
}

// errorPolicies are QEMU's words for the reaction to a failed write.
var errorPolicies = map[string]string{"stop": "stop", "report": "report", "ignore": "ignore", "enospace": "enospc"}
