package network

import (
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet/linktest"
)

// TestDisplayAddress_HostsAddressInNetwork: for a managed network it is the address that its definition
// gives.
func TestDisplayAddress_HostsAddressInNetwork(t *testing.T) {
	linktest.Need(t)
	s := newDaemon(t).open(t)
	t.Cleanup(func() { endAll(t, s) })
	_, err := s.DisplayAddress("shown")
	if !fault.Is(err, fault.NotFound) {
		t.Errorf("of no network: %v", err)
	}
	n := started(t, s, "<network><name>shown</name><bridge stp='off'/><ip address='10.77.88.1' prefix='24'/></network>")
	bridge, err := n.BridgeName()
	ok(t, err)
	started(t, s, "<network><name>other</name><forward mode='bridge'/><bridge name='"+bridge+"'/></network>")
	for _, name := range []string{"shown", "other"} {
		if got, err := s.DisplayAddress(name); err != nil || got != "10.77.88.1" {
			t.Errorf("of %s: %q, %v", name, got, err)
		}
	}
	started(t, s, "<network><name>bare</name><bridge stp='off'/></network>")
	if _, err := s.DisplayAddress("bare"); !fault.Is(err, fault.Failed) {
		t.Errorf("without an address: %v", err)
	}
}
