package device

import "os"

// NIC is a network interface of the guest.
type NIC struct {
	Info
	// Type is network, bridge, direct, user, ethernet.
	Type string
	// Network and PortGroup are the source of type network.
	Network, PortGroup string
	// Bridge is the source of type bridge.
	Bridge string
	// HostDev and DirectMode (vepa, bridge, private, passthrough) are the source of type direct.
	HostDev, DirectMode string
	// Managed: Lodge makes the tap of type ethernet (Unset: it does).
	Managed Switch

	MAC    string // lower-case, six octets
	Model  string // virtio, e1000, e1000e, rtl8139, ...
	Target string // name of the host's interface; empty: chosen at start
	MTU    uint   // 0: the link's own
	Link   string // "up", "down" or empty

	Backend   string // driver name: vhost, qemu or empty for the host's choice
	Queues    uint   // 0 or 1: one queue pair
	RxQueue   uint   // descriptors
	TxQueue   uint
	TxMode    string // iothread, timer
	IOEventFD Switch
	EventIdx  Switch
	RSS       Switch
	RSSHash   Switch
	IOMMU     Switch
	ATS       Switch
	Packed    Switch
	Host      Offloads
	Guest     Offloads
	MrgRxBuf  Switch // host attribute mrg_rxbuf

	// Inbound and Outbound bound the traffic; nil is unlimited.
	Inbound, Outbound *Rate
	// Isolated ports of a bridge reach only its uplink.
	Isolated Switch
	// TrustGuestRxFilters lets the guest's filter reach a macvtap.
	TrustGuestRxFilters Switch
}

// Offloads are the segmentation and checksum features of one side of a NIC.
type Offloads struct{ Csum, GSO, TSO4, TSO6, ECN, UFO Switch }

// Rate is a traffic bound: KiB per second, and KiB of burst.
type Rate struct{ Average, Peak, Floor, Burst uint64 }

// NICAttachment holds the host's resources for a NIC. The files belong to the owner of
// the attachment, which calls Close once QEMU has its own copies.
type NICAttachment struct {
	// IfName is the host's interface ("vnet3", "macvtap0"); empty for type user.
	IfName string
	// Bridge that the interface was put on, if any.
	Bridge string
	// Tap and VHost hold one file a queue. VHost is empty where vhost is not used.
	Tap, VHost []*os.File
	// Wire leads to the program that serves a network of type user, where QEMU does not do that
	// itself.
	Wire *os.File
	// MTU of the link, so that the guest can be told; 0: the default.
	MTU uint
	// VHostReason is the reason why vhost is not used, shown to users.
	VHostReason string
}

// Close returns the files back. Safe to call twice.
func (a *NICAttachment) Close() {
	for _, f := range append(a.Tap, a.VHost...) {
		_ = f.Close()
	}
	if a.Wire != nil {
		_ = a.Wire.Close()
	}
	a.Tap, a.VHost, a.Wire = nil, nil, nil
}
