package domainxml

import (
	"fmt"

	"github.com/google/uuid"

	"github.com/lodge-kvm/lodge/internal/word/device"
)

func describeDisk(n *node, d *device.Disk) {
	kind := sourceKind(d.Source)
	n.str("type", &kind, "file", "block", "volume")
	setDefault(&kind, "file")
	n.str("device", &d.Device, "disk", "cdrom", "floppy", "lun")
	n.str("model", &d.Model, "virtio", "virtio-transitional", "virtio-non-transitional")
	n.str("snapshot", &d.SnapshotMode, "internal", "external", "no")
	n.in("driver", func(n *node) { describeDiskDriver(n, d) })
	n.in("source", func(n *node) {
		describeSource(n, kind, &d.Source, &d.StartupPolicy)
		encryptionHere(n, d, false)
	})
	encryptionHere(n, d, true)
	describeBackingStore(n, d)
	object(n, "blockio", &d.BlockIO, func(n *node, b *device.BlockIO) {
		num(n, "logical_block_size", &b.LogicalBlock)
		num(n, "physical_block_size", &b.PhysicalBlock)
		num(n, "discard_granularity", &b.DiscardGranularity)
	})
	describeMirror(n, d)
	n.in("target", func(n *node) {
		n.str("dev", &d.Target)
		n.str("bus", &d.Bus, "virtio", "scsi", "sata", "ide", "usb", "fdc")
		n.str("tray", &d.Tray, "open", "closed")
		n.on("removable", &d.Removable)
		num(n, "rotation_rate", &d.RotationRate)
	})
	object(n, "iotune", &d.Tune, describeIOTune)
	n.flag("readonly", &d.ReadOnly)
	n.flag("shareable", &d.Shareable)
	n.flag("transient", &d.Transient)
	n.leaf("serial", &d.Serial)
	n.leaf("wwn", &d.WWN)
	n.leaf("vendor", &d.Vendor)
	n.leaf("product", &d.Product)
	n.info(&d.Info)
	if n.strict && d.StartupPolicy == "requisite" && d.Device != "cdrom" && d.Device != "floppy" {
		n.invalid("source", "startupPolicy requisite is for CD-ROM and floppy drives; say optional or mandatory")
	}
}

// encryptionHere describes a disk's encryption, which may be a child of the source or
// of the disk.
func encryptionHere(n *node, d *device.Disk, belowDisk bool) {
	if d.Encryption != nil && (n.reading() || d.Encryption.BelowDisk != belowDisk) {
		return
	}
	object(n, "encryption", &d.Encryption, describeEncryption)
	if n.reading() && d.Encryption != nil {
		d.Encryption.BelowDisk = belowDisk
	}
}

func describeEncryption(n *node, e *device.Encryption) {
	n.need("format", &e.Format, "luks")
	n.str("engine", &e.Engine, "qemu")
	for _, name := range []string{"cipher", "ivgen"} {
		if n.strict && n.child(name) != nil {
			n.refuse("", "%s stands in the image; leave it out", name)
		}
	}
	n.in("secret", func(n *node) {
		kind := "passphrase"
		n.need("type", &kind, "passphrase")
		n.str("uuid", &e.SecretUUID)
		n.str("usage", &e.SecretUsage)
		if n.writing || e.SecretUUID == "" {
			return
		}
		id, err := uuid.Parse(e.SecretUUID)
		if err != nil {
			n.invalid("uuid", "%q is not a UUID", e.SecretUUID)
		}
		e.SecretUUID = id.String()
	})
	if n.reading() && (e.SecretUUID == "") == (e.SecretUsage == "") {
		n.invalid("", "an encrypted disk names its secret by its uuid or by its usage")
	}
}

func describeDiskDriver(n *node, d *device.Disk) {
	n.driverName("qemu")
	n.str("type", &d.Format, "raw", "qcow2")
	n.str("cache", &d.Cache, "default", "none", "writethrough", "writeback", "directsync", "unsafe")
	n.str("error_policy", &d.ErrorPolicy, "stop", "report", "ignore", "enospace")
	n.str("rerror_policy", &d.ReadPolicy, "stop", "report", "ignore")
	n.str("io", &d.IO, "native", "threads", "io_uring")
	n.on("ioeventfd", &d.IOEventFD)
	n.on("event_idx", &d.EventIdx)
	n.on("copy_on_read", &d.CopyOnRead)
	n.str("discard", &d.Discard, "unmap", "ignore")
	num(n, "iothread", &d.IOThread)
	n.str("detect_zeroes", &d.DetectZeroes, "off", "on", "unmap")
	num(n, "queues", &d.Queues)
	num(n, "queue_size", &d.QueueSize)
	n.virtio(&d.IOMMU, &d.ATS, &d.Packed)
}

// driverName is the only driver; it has no effect.
func (n *node) driverName(name string) { n.str("name", &name, name) }

// virtio describes the options that every virtio device has.
func (n *node) virtio(iommu, ats, packed *device.Switch) {
	n.on("iommu", iommu)
	n.on("ats", ats)
	n.on("packed", packed)
}

// sourceKind returns the type attribute for a source.
func sourceKind(s *device.DiskSource) string {
	switch {
	case s != nil && s.Block != "":
		return "block"
	case s != nil && s.Volume != nil:
		return "volume"
	}
	return "file"
}

// describeSource leaves an empty source nil. The policy is nil if the
// element has none.
func describeSource(n *node, kind string, p **device.DiskSource, policy *string) {
	s := *p
	if s == nil {
		s = new(device.DiskSource)
	}
	switch kind {
	case "file":
		n.str("file", &s.File)
	case "block":
		n.str("dev", &s.Block)
	case "volume":
		v := s.Volume
		if v == nil {
			v = new(device.VolumeRef)
		}
		n.str("pool", &v.Pool)
		n.str("volume", &v.Volume)
		if n.e.Attr("mode") == "host" {
			n.ignore("mode") // as a file or block device of the host, which is all there is
		}
		switch {
		case n.writing:
		case v.Pool != "" && v.Volume != "":
			s.Volume = v
		default:
			n.invalid("", "a source of type volume names a pool and a volume")
		}
	}
	if policy != nil {
		n.str("startupPolicy", policy, "mandatory", "requisite", "optional")
	}
	num(n, "index", &s.Index)
	each(n, "seclabel", &s.SecLabels, describeSourceLabel)
	switch {
	case n.writing:
	case s.Path() != "" || s.Volume != nil:
		*p = s
	default:
		n.dropLabels() // there is nothing to label
	}
}

// dropLabels removes an element's labels from a document that is read.
func (n *node) dropLabels() {
	for _, e := range n.e.Elements("seclabel") {
		(&node{n.pass, e, n}).ignore("")
	}
}

// describeSourceLabel accepts labels of SELinux; those of AppArmor and DAC do not apply to files.
func describeSourceLabel(n *node, l *device.SourceLabel) {
	n.need("model", &l.Model, "selinux", "apparmor", "dac")
	if n.reading() && n.e.Attr("labelskip") == "yes" { // libvirt tells so of a running guest
		n.ignore("labelskip")
		n.implied("relabel", "no")
	}
	n.yes("relabel", &l.Relabel)
	if l.Model == "selinux" {
		n.leaf("label", &l.Label)
	}
	if n.reading() && l.Relabel != device.Off && l.Label == "" {
		n.invalid("", "a label of a source says relabel='no', or which label the source has")
	}
	if n.reading() && l.Relabel == device.Off && l.Label != "" {
		n.invalid("", "a source that is not relabelled has no label to be given")
	}
}

// describeBackingStore maps the nesting of layers to a list. An empty element
// ends the chain.
func describeBackingStore(n *node, d *device.Disk) {
	if n.writing {
		if d.BackingSaid || n.style.Active {
			writeBacking(n, d.Backing)
		}
		return
	}
	for c := n.child("backingStore"); c != nil && n.err == nil; c = c.child("backingStore") {
		d.BackingSaid = true
		var layer device.BackingLayer
		kind := "file"
		if len(c.e.Attrs) == 0 && len(c.e.Children) == 0 {
			layer.Terminator = true
		} else {
			c.str("type", &kind, "file", "block", "volume")
			setDefault(&kind, "file")
			var index uint
			num(c, "index", &index)
			c.in("format", func(n *node) { n.choice("type", &layer.Format, "raw", "qcow2") }) // headers name others, too
			c.in("source", func(n *node) { describeSource(n, kind, &layer.Source, nil) })
			if layer.Source != nil {
				layer.Source.Index = index
			}
		}
		d.Backing = append(d.Backing, layer)
	}
}

// describeMirror describes an element of running guests only. libvirt ignores it in submitted documents, too.
func describeMirror(n *node, d *device.Disk) {
	if n.writing {
		if d.Mirror == nil || !n.style.Active {
			return
		}
	} else if c := n.child("mirror"); c == nil || n.strict {
		if c != nil {
			c.ignore("")
		}
		return
	}
	object(n, "mirror", &d.Mirror, func(n *node, m *device.Mirror) {
		kind := sourceKind(m.Source)
		n.str("type", &kind)
		n.str("job", &m.Job)
		n.str("ready", &m.Ready)
		n.in("format", func(n *node) { n.str("type", &m.Format) })
		n.in("source", func(n *node) { describeSource(n, kind, &m.Source, nil) })
	})
}

func writeBacking(n *node, layers []device.BackingLayer) {
	if len(layers) == 0 {
		return
	}
	c := n.add("backingStore")
	n.append(c)
	layer := layers[0]
	if layer.Terminator {
		return
	}
	kind := sourceKind(layer.Source)
	c.str("type", &kind)
	if layer.Source != nil && layer.Source.Index > 0 {
		c.set("index", fmt.Sprint(layer.Source.Index))
	}
	c.in("format", func(n *node) { n.str("type", &layer.Format) })
	c.in("source", func(n *node) {
		if layer.Source != nil {
			source := *layer.Source
			source.Index = 0 // the layer has it
			s := &source
			describeSource(n, kind, &s, nil)
		}
	})
	writeBacking(c, layers[1:])
}

func describeIOTune(n *node, t *device.IOTune) {
	leafNum(n, "total_bytes_sec", &t.TotalBytes)
	leafNum(n, "read_bytes_sec", &t.ReadBytes)
	leafNum(n, "write_bytes_sec", &t.WriteBytes)
	leafNum(n, "total_iops_sec", &t.TotalIOPS)
	leafNum(n, "read_iops_sec", &t.ReadIOPS)
	leafNum(n, "write_iops_sec", &t.WriteIOPS)
	leafNum(n, "total_bytes_sec_max", &t.TotalBytesMax)
	leafNum(n, "read_bytes_sec_max", &t.ReadBytesMax)
	leafNum(n, "write_bytes_sec_max", &t.WriteBytesMax)
	leafNum(n, "total_iops_sec_max", &t.TotalIOPSMax)
	leafNum(n, "read_iops_sec_max", &t.ReadIOPSMax)
	leafNum(n, "write_iops_sec_max", &t.WriteIOPSMax)
	leafNum(n, "size_iops_sec", &t.SizeIOPS)
	n.leaf("group_name", &t.Group)
	leafNum(n, "total_bytes_sec_max_length", &t.TotalBytesMaxLen)
	leafNum(n, "read_bytes_sec_max_length", &t.ReadBytesMaxLen)
	leafNum(n, "write_bytes_sec_max_length", &t.WriteBytesMaxLen)
	leafNum(n, "total_iops_sec_max_length", &t.TotalIOPSMaxLen)
	leafNum(n, "read_iops_sec_max_length", &t.ReadIOPSMaxLen)
	leafNum(n, "write_iops_sec_max_length", &t.WriteIOPSMaxLen)
}
