package hostnet

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Forward lets the host route between its links, IPv4, IPv6 or both. It returns the
// settings of the kernel that were off. Lodge never turns them off again, because other
// programs may rely on them since.
func Forward(four, six bool) (off []string, err error) {
	if four && !isSet(routesIPv4, "1") {
		off = append(off, dotted(routesIPv4))
		err = writeSetting(routesIPv4, "1")
	}
	if six && !isSet(routesIPv6, "1") {
		off = append(off, dotted(routesIPv6))
		e := admitIPv6()
		if e == nil {
			e = writeSetting(routesIPv6, "1")
		}
		err = errors.Join(err, e)
	}
	return off, err
}

// The settings that make the host route.
const (
	routesIPv4 = "net/ipv4/ip_forward"
	routesIPv6 = "net/ipv6/conf/all/forwarding"
)

// admitIPv6 refuses to make the host route IPv6 if that would cut off the host: the kernel drops the default
// routes that routers advertised, and no longer listens to them, except on links with accept_ra 2.
func admitIPv6() error {
	links, err := learntRouters()
	if err != nil {
		return err
	}
	for _, l := range links {
		if accepts := filepath.Join("net/ipv6/conf", l, "accept_ra"); isSet(accepts, "1") {
			return fault.New(fault.WrongState, fault.Host,
				"if it forwarded IPv6, the host would lose its default route on %s, which a router there advertises; have it kept (sysctl -w %s) and try again", l, fault.Word(accepts+"=2"))
		}
	}
	return nil
}

// QuietIPv6 sets the IPv6 behaviour of a bridge with addresses of ours. The host
// never learns addresses or routes from guests there. Without an IPv6 address of
// its own on the bridge, the host does not use IPv6 there at all. A kernel without
// IPv6 has nothing to set.
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

// writeSetting sets one kernel setting unless it has that value already. So it
// works where /proc/sys is read-only, if the value is right.
func writeSetting(name, value string) error {
	if isSet(name, value) {
		return nil
	}
	err := os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0o644)
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot set the kernel setting %s to %s", dotted(name), value)
}

func isSet(name, value string) bool {
	now, err := os.ReadFile(filepath.Join("/proc/sys", name))
	return err == nil && strings.TrimSpace(string(now)) == value
}

// dotted is how sysctl writes a setting's name.
func dotted(name string) string { return strings.ReplaceAll(name, "/", ".") }
