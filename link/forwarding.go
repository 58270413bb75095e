package link

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/lodge-kvm/lodge/fault"
)

// ForwardIPv4 lets the host route between its links. It is never turned off
// again: others may have come to count on it.
func ForwardIPv4() error { return writeSetting("net/ipv4/ip_forward", "1") }

// ForwardIPv6 lets the host route IPv6 between its links.
func ForwardIPv6() error { return writeSetting("net/ipv6/conf/all/forwarding", "1") }

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
	path := filepath.Join("/proc/sys", name)
	now, err := os.ReadFile(path)
	if err == nil && strings.TrimSpace(string(now)) == value {
		return nil
	}
	if err == nil {
		err = os.WriteFile(path, []byte(value), 0o644)
	}
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot set the kernel setting %s to %s", strings.ReplaceAll(name, "/", "."), value)
}
