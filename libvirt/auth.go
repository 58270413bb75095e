package libvirt

import (
	"context"

	"github.com/lodge-kvm/lodge/xdr"
)

// authNone tells a client that it is in.
const authNone = 0

// authCalls are the calls before authentication. Who connects over a unix
// socket is known to the kernel, so nothing needs to be proved.
func authCalls(g group) {
	on(g, xdr.ProcAuthList, (*handlers).authList)
}

// authList is every client's first call. A peer that may not come in gets the
// reason, and its connection ends when the time for authentication is over.
func (h *handlers) authList(_ context.Context, s *session, _ *void) (*xdr.AuthListRet, error) {
	if err := s.admit(); err != nil {
		return nil, err
	}
	return &xdr.AuthListRet{Types: []int32{authNone}}, nil
}
