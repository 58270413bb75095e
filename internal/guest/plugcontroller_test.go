package guest_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// TestPlug_VSockChoosesACID: one that is plugged in gets a context id as one that is there from the
// start.
func TestPlug_VSockChoosesACID(t *testing.T) {
	d := newDaemonOf(t, true)
	g := d.define(small("vsock"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	err := hotplug.Attach(d.ctx(), g, scope.Daemon("a test"), "<vsock model='virtio'><cid auto='yes'/></vsock>", machine.Affect{Live: true})
	if _, lacking := os.Stat("/dev/vhost-vsock"); lacking != nil {
		refused(t, err, fault.Unsupported, "load the kernel module vhost_vsock")
		return
	}
	ok(t, err)
	if v := g.View().Active.Devices.VSock; v == nil || v.CID < 3 {
		t.Errorf("the vsock is %+v", v)
	}
}

// TestPlug_SCSIDiskBringsItsControllers: a disk that is plugged into a guest without its controller
// brings that along, and those of lower numbers, as with libvirt.
func TestPlug_SCSIDiskBringsItsControllers(t *testing.T) {
	d := newDaemonOf(t, true)
	disk := func(target string) string {
		path := filepath.Join(d.dir, target)
		ok(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
		return "<disk type='file'><source file='" + path + "'/><target dev='" + target + "' bus='scsi'/></disk>"
	}
	controllers := func(def *domain.Definition) (all []string) {
		for _, c := range def.Devices.Controllers {
			if c.Type == "scsi" {
				all = append(all, fmt.Sprintf("%d %s", c.Index, c.Model))
			}
		}
		return all
	}
	both := machine.Affect{Live: true, Config: true}
	pc := d.define(strings.Replace(small("pc"), "'q35'", "'pc'", 1))
	ok(t, launch.Start(d.ctx(), pc, scope.Daemon("a test"), launch.StartOptions{}))
	ok(t, hotplug.Attach(d.ctx(), pc, scope.Daemon("a test"), disk("sdb"), machine.Affect{Live: true}))
	ok(t, hotplug.Attach(d.ctx(), pc, scope.Daemon("a test"), disk("sdh"), both)) // the eighth: lsilogic takes seven
	d.reopen(func() {})
	pc = d.again(pc)
	ok(t, hotplug.Attach(d.ctx(), pc, scope.Daemon("a test"), disk("sdq"), machine.Affect{Live: true}))
	if got := controllers(pc.View().Active); !slices.Equal(got, []string{"0 lsilogic", "1 lsilogic", "2 lsilogic"}) {
		t.Errorf("it runs with controllers %q", got)
	}
	if got := controllers(pc.View().Inactive); !slices.Equal(got, []string{"0 lsilogic", "1 lsilogic"}) {
		t.Errorf("its config has controllers %q", got)
	}
	at := map[string]string{}
	for _, disk := range pc.View().Active.Devices.Disks {
		a := disk.Address.(device.Drive)
		at[disk.Target] = fmt.Sprintf("%d:%d", a.Controller, a.Unit)
	}
	if at["sdb"] != "0:1" || at["sdh"] != "1:0" || at["sdq"] != "2:2" {
		t.Errorf("the disks are at %v", at)
	}

	virtio := d.define(small("virtio", "<controller type='scsi' model='virtio-scsi'/>"))
	ok(t, launch.Start(d.ctx(), virtio, scope.Daemon("a test"), launch.StartOptions{}))
	ok(t, hotplug.Attach(d.ctx(), virtio, scope.Daemon("a test"), disk("sdi"), machine.Affect{Live: true}))
	if got := controllers(virtio.View().Active); !slices.Equal(got, []string{"0 virtio-scsi", "1 virtio-scsi"}) {
		t.Errorf("it runs with controllers %q", got)
	}

	q35 := d.define(small("q35")) // its root ports accept no conventional PCI controller
	ok(t, launch.Start(d.ctx(), q35, scope.Daemon("a test"), launch.StartOptions{}))
	refused(t, hotplug.Attach(d.ctx(), q35, scope.Daemon("a test"), disk("sda"), machine.Affect{Live: true}), fault.NoCapacity, "needs a SCSI controller 0")
	if got := controllers(q35.View().Active); len(got) > 0 {
		t.Errorf("a plug that was refused has left controllers %q", got)
	}
}
