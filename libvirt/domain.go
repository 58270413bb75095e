package libvirt

import (
	"github.com/lodge-kvm/lodge/guest"
	"github.com/lodge-kvm/lodge/xdr"
)

// guest finds the guest that a call names. The UUID counts; names and IDs may
// have changed since the client saw them.
func (h *handlers) guest(dom xdr.Domain) (*guest.Guest, error) {
	return h.Guests.ByUUID(formatUUID(dom.UUID))
}
