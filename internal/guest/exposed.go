package guest

import (
	"fmt"
	"net/netip"

	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// insecure begins messages about what lets in more people than is wise.
const insecure = "insecure: "

// exposed are messages about displays that whoever reaches the host's network may use.
// A display that says no place listens on this host alone.
func exposed(def *domain.Definition) []string {
	var texts []string
	for _, g := range def.Devices.Graphics {
		if g.Password != "" || g.HasPassword || len(g.Listens) == 0 {
			continue // an empty password lets nobody in
		}
		if l := g.Listens[0]; (l.Type == "address" || l.Type == "network") && !isLoopback(l.Address) {
			texts = append(texts, fmt.Sprintf("%sthe %s display listens on %s without a password: let it listen on 127.0.0.1 or a socket, or give it a password",
				insecure, g.Type, l.Address))
		}
	}
	return texts
}

// isLoopback says whether an address reaches this host alone; none is the default, which does.
func isLoopback(address string) bool {
	if address == "" || address == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(address)
	return err == nil && ip.Unmap().IsLoopback()
}
