package device

// CharRole is the XML element of a character device.
type CharRole string

// The four roles.
const (
	Serial   CharRole = "serial"
	Parallel CharRole = "parallel"
	Console  CharRole = "console"
	Channel  CharRole = "channel"
)

// Char is a character device: serial or parallel port, console, or channel.
// A console of target "serial" that mirrors the first serial port shares its
// backend and has no device of its own.
type Char struct {
	Info
	Role    CharRole
	Backend Backend
	// TargetType: isa-serial, pci-serial, usb-serial (serial); serial, virtio
	// (console); virtio, guestfwd (channel).
	TargetType string
	// TargetModel: isa-serial, pci-serial, usb-serial, ...
	TargetModel string
	// Port of the target; PortSaid tells an explicit 0 from a missing port.
	Port     uint
	PortSaid bool
	// Name of a virtio channel, as the guest sees it under /dev/virtio-ports.
	Name string
	// State of a channel's guest end: connected, disconnected or empty.
	State string
}

// Backend is the host's end of a character device.
type Backend struct {
	// Type: pty, file, unix, tcp, udp, null, dev, pipe, stdio, vc, spicevmc, spiceport.
	Type string
	// Path of file, unix, dev, pipe; of pty when running (the slave's path).
	Path   string
	Append Switch
	// Mode: bind or connect (unix, tcp).
	Mode string
	// Host and Service are the address (tcp; udp's remote end).
	Host, Service string
	// BindHost and BindService are udp's local end.
	BindHost, BindService string
	// Protocol of tcp: raw or telnet.
	Protocol string
	// Channel is the name of a spiceport.
	Channel string
	// ReconnectSeconds for mode connect; 0: no.
	Reconnect    Switch
	ReconnectSec uint
	// LogFile records the guest's output; empty: no recording.
	LogFile   string
	LogAppend Switch
}

// Listens reports whether it is a listening unix socket with a
// path.
func (b *Backend) Listens() bool { return b.Type == "unix" && b.Mode != "connect" && b.Path != "" }

// Connects reports whether it is a client of a socket among the host's files.
func (b *Backend) Connects() bool { return b.Type == "unix" && b.Mode == "connect" && b.Path != "" }

// Reconnects reports whether it is a client that connects again when the connection is lost.
func (b *Backend) Reconnects() bool { return b.Mode == "connect" && b.Reconnect == On }
