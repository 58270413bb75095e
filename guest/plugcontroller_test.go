package guest_test

import (
	"os"
	"testing"

	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/guest"
)

// TestPlug_VSockChoosesACID: one that is plugged in gets a context id as one that is there from the
// start.
func TestPlug_VSockChoosesACID(t *testing.T) {
	d := newDaemonOf(t, true)
	g := d.define(small("vsock"))
	ok(t, g.Start(d.ctx(), guest.StartOptions{}))
	err := g.Attach(d.ctx(), "<vsock model='virtio'><cid auto='yes'/></vsock>", guest.Affect{Live: true})
	if _, lacking := os.Stat("/dev/vhost-vsock"); lacking != nil {
		refused(t, err, fault.Unsupported, "load the kernel module vhost_vsock")
		return
	}
	ok(t, err)
	if v := g.View().Active.Devices.VSock; v == nil || v.CID < 3 {
		t.Errorf("the vsock is %+v", v)
	}
}
