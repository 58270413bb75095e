package rpc

import (
	"testing"

	"github.com/lodge-kvm/lodge/internal/mechanism/listener"
)

func TestAdmit_ForeignUser(t *testing.T) {
	for _, readOnly := range []bool{false, true} {
		s := newSession(&Client{Server: &Server{groups: []uint32{36}}}, listener.Peer{UID: 1000, GID: 1000}, readOnly)
		err := s.admit()
		if readOnly != (err == nil) || s.authenticated() != readOnly {
			t.Errorf("read-only %v: %v, authenticated %v", readOnly, err, s.authenticated())
		}
		if err != nil && CodeOf(err) != codeAuthFailed {
			t.Errorf("code %d", CodeOf(err))
		}
	}
}
