package provision

import (
	"fmt"
	"net/netip"

	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemucaps"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// insecure is the prefix of messages about displays that too many people can reach.
const insecure = "insecure: "

// ExposedDisplays returns a message for each display that anyone on the host's network may use. A display without a
// listen address listens on this host only.
func ExposedDisplays(def *domain.Definition) []string {
	var texts []string
	for _, g := range def.Devices.Graphics {
		if g.Password != "" || g.HasPassword || len(g.Listens) == 0 {
			continue // an empty password admits no client
		}
		if l := g.Listens[0]; (l.Type == "address" || l.Type == "network") && !isLoopback(l.Address) {
			texts = append(texts, fmt.Sprintf("%sthe %s display listens on %s without a password: make it listen on 127.0.0.1 or a socket, or set a password",
				insecure, g.Type, l.Address))
		}
	}
	return texts
}

// isLoopback reports whether an address reaches this host only. An empty address is the default, which
// does.
func isLoopback(address string) bool {
	if address == "" || address == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(address)
	return err == nil && ip.Unmap().IsLoopback()
}

// Remarks returns what an administrator should know about a definition that starts.
func Remarks(def *domain.Definition, c *qemucaps.Capabilities) []string {
	var texts []string
	if len(def.QEMUArgs)+len(def.QEMUEnv) > 0 {
		texts = append(texts, machine.Tainted+"custom configuration parameters specified")
	}
	if def.CPU.Mode == "host-passthrough" {
		texts = append(texts, machine.Tainted+"use of host cpu passthrough")
	}
	if m, known := c.Machine(def.OS.Machine); known && m.Deprecated {
		texts = append(texts, fmt.Sprintf("%smachine type '%s'", machine.Deprecated, m.Name))
	}
	for _, a := range c.Accelerators {
		if m, known := a.Model(def.CPU.Model); known && m.Deprecated {
			texts = append(texts, fmt.Sprintf("%sCPU model '%s'", machine.Deprecated, def.CPU.Model))
			break
		}
	}
	return append(texts, ExposedDisplays(def)...)
}
