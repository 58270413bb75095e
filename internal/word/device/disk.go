package device

import "os"

// Disk is a block device of the guest: a disk, a CD-ROM, a floppy or a LUN.
type Disk struct {
	Info
	// Device is "disk", "cdrom", "floppy" or "lun".
	Device string
	// Source is the image behind the disk; nil is an empty drive (removable ones only).
	Source *DiskSource
	// Format of Source ("raw", "qcow2"); never guessed from the bytes of a raw disk.
	Format string
	// Backing is the chain below Source. For a running guest it is the chain on the host, and ends in a
	// Terminator. Otherwise it is the definition's chain, and BackingSaid says whether there is one.
	Backing     []BackingLayer
	BackingSaid bool

	// Mirror is the image that a job is about to put in the place of Source; nil: there is no such job.
	Mirror *Mirror

	// Encryption says that the image is encrypted and which secret opens it; nil: not encrypted.
	Encryption *Encryption

	Target       string // name in the definition: "vda", "sdb", "hdc", "fda"
	Bus          string // virtio, scsi, sata, ide, usb, fdc
	Tray         string // "open", "closed" or empty; removable media only
	Removable    Switch // USB and SCSI
	RotationRate uint   // 1 is solid state

	Cache        string // none, writethrough, writeback, directsync, unsafe, default or empty
	IO           string // native, threads, io_uring or empty
	Discard      string // unmap, ignore
	DetectZeroes string // off, on, unmap
	ErrorPolicy  string // stop, report, ignore, enospace
	ReadPolicy   string // rerror_policy: stop, report, ignore
	CopyOnRead   Switch
	IOThread     uint // 0: none
	Queues       uint
	QueueSize    uint
	EventIdx     Switch
	IOEventFD    Switch
	IOMMU, ATS   Switch // virtio driver options
	Packed       Switch

	Serial, WWN, Vendor, Product string
	ReadOnly, Shareable          bool
	Transient                    bool
	StartupPolicy                string // mandatory, requisite, optional
	SnapshotMode                 string // attribute "snapshot": internal, external, no
	Model                        string // virtio, virtio-transitional, virtio-non-transitional
	BlockIO                      *BlockIO
	Tune                         *IOTune
}

// BlockIO is the sector geometry that the guest is shown, in bytes.
type BlockIO struct{ LogicalBlock, PhysicalBlock, DiscardGranularity uint }

// DiskSource is where a disk's bytes live. Exactly one of File, Block and
// Volume is set.
type DiskSource struct {
	File   string // path of a regular file
	Block  string // path of a block device
	Volume *VolumeRef
	// Index numbers the node in a running guest's chain; 0 when not running.
	Index uint
	// SecLabels say which label the source gets; none: the guest's.
	SecLabels []SourceLabel
}

// SourceLabel is the label of a source for one security model: Relabel off keeps the present
// label, and Label replaces the guest's.
type SourceLabel struct {
	Model   string
	Relabel Switch
	Label   string
}

// VolumeRef names a volume of a pool.
type VolumeRef struct{ Pool, Volume string }

// Path returns the file or device behind the source, or "" for an unresolved volume.
func (s *DiskSource) Path() string {
	if s == nil {
		return ""
	}
	if s.File != "" {
		return s.File
	}
	return s.Block
}

// BackingLayer is one image below a disk's top image.
type BackingLayer struct {
	Source     *DiskSource // nil: the chain ends here by decision of the definition
	Format     string
	Terminator bool
}

// Mirror is the image that the guest writes once a block job has ended.
type Mirror struct {
	Job    string // active-commit
	Ready  string // yes, abort, pivot; empty: it still copies
	Source *DiskSource
	Format string
}

// Images returns the sources of a disk's chain, the top one first; none for an empty drive.
func (d *Disk) Images() []*DiskSource {
	if d.Source == nil {
		return nil
	}
	all := make([]*DiskSource, 1, 1+len(d.Backing))
	all[0] = d.Source
	for _, l := range d.Backing {
		if l.Source != nil {
			all = append(all, l.Source)
		}
	}
	return all
}

// Nodes returns the numbers of the block nodes of a disk's images, the top one's first.
func (d *Disk) Nodes() []uint {
	images := d.Images()
	all := make([]uint, len(images))
	for i, s := range images {
		all[i] = s.Index
	}
	return all
}

// Number gives a number to each image that has none, from the top down.
func (d *Disk) Number(next func() uint) {
	for _, s := range d.Images() {
		if s.Index == 0 {
			s.Index = next()
		}
	}
}

// SetChain makes the chain on the host the chain below the disk's source. Its images have no numbers yet.
func (d *Disk) SetChain(found DiskAttachment) {
	if d.Source == nil || len(found.Layers) == 0 {
		return
	}
	d.Backing = make([]BackingLayer, 0, len(found.Layers))
	for _, l := range found.Layers[1:] {
		source := &DiskSource{File: l.Path}
		if l.Block {
			source = &DiskSource{Block: l.Path}
		}
		d.Backing = append(d.Backing, BackingLayer{Source: source, Format: l.Format})
	}
	d.Backing = append(d.Backing, BackingLayer{Terminator: true})
}

// IOTune bounds a disk's throughput. Bytes and operations are per second,
// lengths are in seconds; 0 is unlimited.
type IOTune struct {
	TotalBytes, ReadBytes, WriteBytes                   uint64
	TotalIOPS, ReadIOPS, WriteIOPS                      uint64
	TotalBytesMax, ReadBytesMax, WriteBytesMax          uint64
	TotalIOPSMax, ReadIOPSMax, WriteIOPSMax             uint64
	TotalBytesMaxLen, ReadBytesMaxLen, WriteBytesMaxLen uint64
	TotalIOPSMaxLen, ReadIOPSMaxLen, WriteIOPSMaxLen    uint64
	SizeIOPS                                            uint64
	Group                                               string
}

// Encryption says how an image is encrypted, and with which secret it is opened.
type Encryption struct {
	Format string // luks
	Engine string // qemu or empty
	// Secret is known by its UUID or, where that is empty, by its use for a volume.
	SecretUUID, SecretUsage string
	// BelowDisk says that the element is a child of the disk, as in older documents, and
	// not of its source.
	BelowDisk bool
}

// DiskAttachment is the chain of a disk as the host finds it when the guest starts: real
// paths and formats, top image first. The guest writes to Layers[0].
type DiskAttachment struct {
	Layers []Layer
	Size   uint64 // that the guest sees, in bytes
}

// Close returns the files back. Safe to call twice.
func (a DiskAttachment) Close() {
	for i := range a.Layers {
		if f := a.Layers[i].File; f != nil {
			_ = f.Close() // QEMU writes through its own copy
		}
	}
}

// Layer is one image of a chain as QEMU will open it.
type Layer struct {
	Path   string
	Format string
	Block  bool // a host block device, not a file
	// File is the image, open as QEMU is to use it; nil: QEMU opens the path.
	File *os.File
}
