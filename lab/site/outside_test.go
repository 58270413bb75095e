package site

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/lab/experiment"
	"github.com/lodge-kvm/lodge/lab/image"
	"github.com/lodge-kvm/lodge/lab/target"
	"github.com/lodge-kvm/lodge/lab/target/targettest"
)

func TestBesideAnotherHostsGuestsNothingIsRun(t *testing.T) {
	s, dir := begin(t, &targettest.Daemon{}) // its host is called big
	o := NewOutside([]*target.Target{s.target}, image.Image{}, dir)
	err := o.Lacks(t.Context(), nil)
	if u, ok := errors.AsType[*experiment.Unavailable](err); !ok || !strings.Contains(u.Reason, "target x is on another host (big)") {
		t.Errorf("got %v", err)
	}
	if err := o.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("files are left: %v", left)
	}
}

// Every place has a subnet of its own in the run's, and the daemons have others.
func TestPlacesHaveAddressesOfTheirOwn(t *testing.T) {
	o := &Outside{number: 2, run: "lab-x"}
	seen := map[netip.Addr]bool{}
	for _, number := range []int{1, 2, 63, 64, 65, 4096} {
		host, own := o.ends(number)
		if host.Masked() != own.Masked() || host.Bits() != 30 || host.Addr().Next() != own.Addr() || !o.subnet().Contains(own.Addr()) {
			t.Errorf("place %d: %s and %s of %s", number, host, own, o.subnet())
		}
		if seen[own.Addr()] {
			t.Errorf("place %d has %s, as another one", number, own)
		}
		seen[own.Addr()] = true
	}
	if target.Subnet("lab-x", 1) == target.Subnet("lab-x", 2) {
		t.Error("places have the subnet of a daemon's guests")
	}
}
