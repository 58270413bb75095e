package remote

import (
	"errors"
	"io/fs"
	"net/url"
	"os"
	"strings"

	"github.com/lodge-kvm/lodge/fault"
)

// System is the name of the host's daemon, as every client asks for it.
const System = "qemu:///system"

// Where stock clients look for the host's daemon, in their order.
var wellKnown = []string{"/run/libvirt/virtqemud-sock", "/run/libvirt/libvirt-sock"}

// Socket gives the path of the Unix socket that an address means. An address
// is a path, or a URI such as qemu:///system or qemu:///system?socket=/path.
func Socket(address string) (string, error) {
	if strings.HasPrefix(address, "/") || strings.HasPrefix(address, "./") {
		return address, nil
	}
	uri, err := url.Parse(address)
	if err != nil || uri.Scheme == "" {
		return "", fault.New(fault.Invalid, fault.Call, "%q is neither a path of a socket (/...) nor a URI such as %s?socket=/path", address, System)
	}
	if uri.Scheme != "qemu" || uri.Host != "" || uri.Path != "/system" {
		return "", fault.New(fault.Unsupported, fault.Call, "cannot connect to %q: only %s is measured, by a local socket", address, System)
	}
	if path := uri.Query().Get("socket"); path != "" {
		return path, nil
	}
	for _, path := range wellKnown {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			return path, nil
		}
	}
	return "", fault.New(fault.NotFound, fault.Host, "no daemon listens where clients look for it (%s); name its socket", strings.Join(wellKnown, ", "))
}
