package link

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/lodge-kvm/lodge/fault"
)

// Forward lets the host route between its links, IPv4, IPv6 or both, and tells which of
// the kernel's settings said that it shall not. They are never turned off again: others may
// have come to count on them.
func Forward(four, six bool) (off []string, err error) {
	if four {
		off, err = turnOn(off, "net/ipv4/ip_forward")
	}
	if six {
		var e error
		off, e = turnOn(off, "net/ipv6/conf/all/forwarding")
		err = errors.Join(err, e)
	}
	return off, err
}

func turnOn(off []string, name string) ([]string, error) {
	if isSet(name, "1") {
		return off, nil
	}
	return append(off, strings.ReplaceAll(name, "/", ".")), writeSetting(name, "1")
}

// QuietIPv6 sets what a bridge with addresses of ours does with IPv6: it never
// learns addresses or routes from guests, and without an IPv6 address of its
// own the host stays out of IPv6 there altogether. A kernel without IPv6 has
// nothing to set.
func QuietIPv6(bridge string, hasAddress bool) error {
	dir := filepath.Join("net/ipv6/conf", bridge)
	if _, err := os.Stat(filepath.Join("/proc/sys", dir)); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	disable := "1"
	if hasAddress {
		disable = "0"
	}
	return errors.Join(
		writeSetting(filepath.Join(dir, "accept_ra"), "0"),
		writeSetting(filepath.Join(dir, "autoconf"), "0"),
		writeSetting(filepath.Join(dir, "disable_ipv6"), disable),
	)
}

// writeSetting sets one kernel setting unless it is so already, which spares
// writing where /proc/sys is read-only and all is well.
func writeSetting(name, value string) error {
	if isSet(name, value) {
		return nil
	}
	err := os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0o644)
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot set the kernel setting %s to %s", strings.ReplaceAll(name, "/", "."), value)
}

func isSet(name, value string) bool {
	now, err := os.ReadFile(filepath.Join("/proc/sys", name))
	return err == nil && strings.TrimSpace(string(now)) == value
}
