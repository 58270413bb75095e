package device

// Controller is a bus of the guest that other devices sit on.
type Controller struct {
	Info
	// Type: pci, usb, scsi, sata, ide, fdc, virtio-serial, ccid.
	Type  string
	Index uint
	// Model: pcie-root, pcie-root-port, qemu-xhci, virtio-scsi, lsilogic, ...
	Model string
	// Ports and Vectors of virtio-serial and USB; 0: the model's own.
	Ports, Vectors uint
	// PCI describes a PCI controller's own numbers.
	PCI *PCIController
	// Driver options of virtio-scsi.
	Queues, CmdPerLUN, MaxSectors, IOThread uint
	IOEventFD                               Switch
	EventIdx, IOMMU, ATS, Packed            Switch
	// Master is the companion link of a USB 1 controller: its first port.
	MasterStart  uint
	HasMaster    bool
	PCIHole64KiB uint64
	HasPCIHole64 bool
}

// PCIController holds the target element of a PCI controller. The pointers tell an explicit 0
// from a missing value.
type PCIController struct {
	ModelName        string // pcie-root-port, ioh3420, pcie-pci-bridge, ...
	Chassis, Port    *uint
	ChassisNr, BusNr *uint
	Index            *uint
	NUMANode         *uint
	HotPlug          Switch
}

// Input is a keyboard, mouse or tablet.
type Input struct {
	Info
	Type  string // mouse, tablet, keyboard, passthrough, evdev
	Bus   string // ps2, usb, virtio
	Model string
	// Source is the host's event device (passthrough, evdev).
	Source string
}

// TPM is a trusted platform module.
type TPM struct {
	Info
	Model   string // tpm-tis, tpm-crb
	Type    string // emulator, passthrough
	Version string // 1.2, 2.0 (emulator)
	// Persistent keeps the state when a transient guest ends.
	Persistent Switch
	// Path of the host's device (passthrough).
	Path string
}

// Graphics is a remote display.
type Graphics struct {
	Info
	Type string // vnc, spice
	// Port and TLSPort: 0 unset, -1 automatic.
	Port, TLSPort, WebSocket int
	AutoPort                 Switch
	Listens                  []Listen
	Password                 string
	HasPassword              bool
	PasswordValidTo          string
	Connected                string // keep, disconnect, fail
	SharePolicy              string // vnc: allow-exclusive, force-shared, ignore
	KeyMap                   string
	PowerControl             Switch
	Spice                    SpiceOptions
	// GL of spice.
	GL         Switch
	RenderNode string
	AudioID    uint // 0: none
}

// Listen is an address on which a display is served.
type Listen struct {
	Type    string // address, network, socket, none
	Address string
	Network string
	Socket  string
}

// SpiceOptions are the knobs of a spice display; empty: spice's own.
type SpiceOptions struct {
	DefaultMode, ImageCompression, JPEGCompression, ZlibCompression string
	Playback, Clipboard, FileTransfer                               Switch
	Streaming, Mouse                                                string
	// Channels maps a channel ("main") to its mode ("secure").
	Channels []SpiceChannel
}

// SpiceChannel sets the security of one spice channel.
type SpiceChannel struct{ Name, Mode string }

// Sound is a sound card.
type Sound struct {
	Info
	Model   string   // ich6, ich9, ac97, es1370, sb16, usb, pcspk
	Codecs  []string // duplex, micro, output
	AudioID uint
}

// Audio is the host's end of sound.
type Audio struct {
	Info
	ID   uint
	Type string // none, spice, ...
}

// Video is a graphics adapter. Memory sizes are in KiB, 0: the model's own.
type Video struct {
	Info
	Model             string // vga, cirrus, qxl, virtio, bochs, ramfb, vmvga, none
	Heads             uint
	RAM, VRAM, VRAM64 uint
	VGAMem            uint
	Primary           Switch
	Accel3D           Switch
	Blob              Switch
	ResolutionX       uint
	ResolutionY       uint
}

// HostDevice is a device of the host that is given to the guest.
type HostDevice struct {
	Info
	Type    string // pci, usb
	Managed Switch
	// PCI is the host's address of a PCI device.
	PCI PCI
	// Driver of a PCI device: vfio.
	Driver string
	// USB names a device by ids, or by Bus and Device where these are not zero.
	USBVendor, USBProduct uint
	USBBus, USBDevice     uint
	// USBFound says that Bus and Device were found by the ids. The device may have others when
	// the guest is restored from a saved image.
	USBFound      Switch
	StartupPolicy string
	GuestReset    string
}

// Redir is a USB redirection channel.
type Redir struct {
	Info
	Bus     string
	Backend Backend
}

// Hub is a USB hub.
type Hub struct {
	Info
	Type string
}

// Watchdog is a watchdog timer.
type Watchdog struct {
	Info
	Model  string // itco, i6300esb, ib700, diag288
	Action string // reset, shutdown, poweroff, pause, none, dump, inject-nmi
}

// Balloon is the memory balloon. Model "none" is a decision against one.
type Balloon struct {
	Info
	Model             string // virtio, virtio-transitional, virtio-non-transitional, none
	AutoDeflate       Switch
	FreePageReporting Switch
	// StatsPeriod is the seconds between the guest's reports; 0: none.
	StatsPeriod        uint
	IOMMU, ATS, Packed Switch
}

// RNG is a source of entropy.
type RNG struct {
	Info
	Model string // virtio, ...
	// Backend: random (Path), builtin, egd (Char).
	Backend string
	Path    string
	Char    *Backend
	// RateBytes per RatePeriod milliseconds; 0: unlimited.
	RateBytes, RatePeriod uint
	IOMMU, ATS, Packed    Switch
}

// Panic is a device through which the guest reports its panic.
type Panic struct {
	Info
	Model string // isa, pvpanic, hyperv, ...
}

// VSock is a socket between guest and host.
type VSock struct {
	Info
	Model string
	// CID of the guest; 0 with Auto: chosen at start.
	CID  uint
	Auto Switch
	// IOMMU, ATS and Packed are virtio driver options.
	IOMMU, ATS, Packed Switch
}
