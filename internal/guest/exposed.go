package guest

import (
	"fmt"
	"net/netip"

	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// insecure is the prefix of messages about displays that too many people can reach.
const insecure = "insecure: "

// exposed returns a message for each display that anyone on the host's network may use. A display without a
// listen address listens on this host only.
func exposed(def *domain.Definition) []string {
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
