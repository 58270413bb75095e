package kernel

import (
	"math"
	"unsafe"

	"golang.org/x/sys/unix"
)

// NetDevice is one network interface of the host.
type NetDevice struct {
	Name, Path, MAC string
	// State is the kernel's word: up, down, unknown, lowerlayerdown, ...
	State string
	// Mbps is the speed of the link, 0 when it is down or unknown.
	Mbps uint
	// Wireless says that it is a radio.
	Wireless bool
	// Features are the offloads that are switched on, in libvirt's words. They are
	// read from the live host only.
	Features []string
}

// NetDevices reads every network interface in this network namespace, by name.
func (r Root) NetDevices() []NetDevice {
	const dir = "sys/class/net"
	var devices []NetDevice
	for _, name := range r.list(dir) {
		path := r.resolve(dir, name)
		if !r.exists(dir, name, "ifindex") {
			continue // bonding_masters is a file
		}
		d := NetDevice{
			Name: name, Path: path, MAC: r.attr(dir, name, "address"), State: r.attr(dir, name, "operstate"),
			Wireless: r.exists(dir, name, "phy80211"),
		}
		if mbps := r.number(0, dir, name, "speed"); d.State == "up" && mbps > 0 && mbps < math.MaxInt32 {
			d.Mbps = uint(mbps)
		}
		if r.isLive() {
			d.Features = offloads(name)
		}
		devices = append(devices, d)
	}
	return devices
}

// ethtoolOffloads are the requests of the first ethtool interface; each is answered
// with a yes or no.
var ethtoolOffloads = []struct {
	name    string
	command uint32
}{
	{"rx", unix.ETHTOOL_GRXCSUM},
	{"tx", unix.ETHTOOL_GTXCSUM},
	{"sg", unix.ETHTOOL_GSG},
	{"tso", unix.ETHTOOL_GTSO},
	{"gso", unix.ETHTOOL_GGSO},
	{"gro", unix.ETHTOOL_GGRO},
}

// ethtoolFlags are the bits that ETHTOOL_GFLAGS answers.
var ethtoolFlags = []struct {
	name string
	bit  uint32
}{
	{"lro", 1 << 15}, {"rxvlan", 1 << 8}, {"txvlan", 1 << 7}, {"ntuple", 1 << 27}, {"rxhash", 1 << 28},
}

// offloads asks which offloads of an interface are on. An interface that does
// not answer has none.
func offloads(name string) []string {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer func() { _ = unix.Close(fd) }()
	var on []string
	for _, o := range ethtoolOffloads {
		if ethtool(fd, name, o.command) != 0 {
			on = append(on, o.name)
		}
	}
	flags := ethtool(fd, name, unix.ETHTOOL_GFLAGS)
	for _, f := range ethtoolFlags {
		if flags&f.bit != 0 {
			on = append(on, f.name)
		}
	}
	return on
}

// ethtool makes one request that has a number as its answer; 0 on any error.
func ethtool(fd int, name string, command uint32) uint32 {
	if len(name) >= unix.IFNAMSIZ {
		return 0
	}
	// The kernel's struct ethtool_value, and a struct ifreq that points to it.
	value := struct{ command, data uint32 }{command: command}
	var request struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	copy(request.name[:], name)
	request.data = unsafe.Pointer(&value)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
	if errno != 0 {
		return 0
	}
	return value.data
}
