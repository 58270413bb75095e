package network

import (
	"crypto/rand"
	"net"
	"strconv"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet"
)

// RandomMAC returns a random address in QEMU's range (52:54:00).
func RandomMAC() string {
	b := [6]byte{0x52, 0x54, 0x00}
	_, _ = rand.Read(b[3:]) // never fails
	return net.HardwareAddr(b[:]).String()
}

// bridgePattern is the pattern of libvirt's bridge names.
const bridgePattern = "virbr%d"

// isBridgePattern says whether a bridge's name is a pattern such as "virbr%d".
func isBridgePattern(name string) bool {
	return strings.Count(name, "%") == 1 && strings.Contains(name, "%d")
}

// patternOf returns the pattern of a chosen name: the name's last digits are its number.
func patternOf(name string) string {
	if row := strings.TrimRight(name, "0123456789"); row != "" && row != name {
		return row + "%d"
	}
	return bridgePattern
}

// freeBridgeName finds an unused name of a pattern.
func freeBridgeName(row string, taken func(string) bool) (string, error) {
	for i := range 2 * maxNetworks {
		name := strings.Replace(row, "%d", strconv.Itoa(i), 1)
		if hostnet.CheckName(name) != nil { // the numbers have become too long for the kernel
			break
		}
		if !taken(name) {
			return name, nil
		}
	}
	return "", fault.New(fault.NoCapacity, fault.Network, "no bridge name like %q is free", row)
}
