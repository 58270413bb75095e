package device

import (
	"fmt"
	"net"
	"strconv"
	"strings"
)

// ParseMAC reads an Ethernet address of six octets with colons between them, as libvirt
// does: an octet may be written with one digit (0:0:6c:28:30:d5).
func ParseMAC(s string) (net.HardwareAddr, error) {
	octets := strings.Split(s, ":")
	if len(octets) != 6 {
		return nil, fmt.Errorf("%q is not a MAC address: it needs six octets with colons between them", s)
	}
	mac := make(net.HardwareAddr, len(octets))
	for i, octet := range octets {
		n, err := strconv.ParseUint(octet, 16, 8)
		if err != nil || len(octet) > 2 {
			return nil, fmt.Errorf("%q is not a MAC address: %q is not a hexadecimal octet", s, octet)
		}
		mac[i] = byte(n)
	}
	return mac, nil
}
