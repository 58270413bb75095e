package guest_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
	"github.com/lodge-kvm/lodge/internal/word/event"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// dropped reads events until one tells of a disk that a guest started without.
func dropped(t *testing.T, r *event.Reader) event.DomainMediaChange {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	for {
		e, _, err := r.Next(ctx)
		if err != nil {
			t.Fatalf("no event tells of a disk: %v", err)
		}
		if c, is := e.Payload.(event.DomainMediaChange); is {
			return c
		}
	}
}

// liveText is the definition of a guest as it runs.
func liveText(t *testing.T, g *guest.Guest) string {
	t.Helper()
	v := g.View()
	text, err := domainxml.Format(v.Active, domainxml.Style{Active: true, ID: v.ID})
	ok(t, err)
	return text
}

// TestStartupPolicy_OptionalDiskIsDropped: where the file, volume, pool or a layer of an optional disk
// is missing, the guest starts without it, and says so.
func TestStartupPolicy_OptionalDiskIsDropped(t *testing.T) {
	d := newDaemonOf(t, true)
	d.shelf()
	broken := filepath.Join(d.dir, "broken.qcow2")
	ok(t, exec.CommandContext(d.ctx(), "qemu-img", "create", "-q", "-u", "-f", "qcow2", "-b", d.dir+"/nosuch", "-F", "raw", broken, "1M").Run())
	for name, c := range map[string]struct{ disk, path string }{
		"file":    {"<disk type='file'><source file='/nosuch.img' startupPolicy='optional'/><target dev='sda' bus='sata'/></disk>", "/nosuch.img"},
		"block":   {"<disk type='block'><source dev='/dev/nosuch' startupPolicy='optional'/><target dev='sda' bus='virtio'/></disk>", "/dev/nosuch"},
		"chain":   {"<disk type='file'><driver type='qcow2'/><source file='" + broken + "' startupPolicy='optional'/><target dev='sda' bus='scsi'/></disk>", broken},
		"volume":  {"<disk type='volume'><source pool='shelf' volume='nosuch' startupPolicy='optional'/><target dev='sda' bus='virtio'/></disk>", ""},
		"no pool": {"<disk type='volume'><source pool='nosuch' volume='v' startupPolicy='optional'/><target dev='sda' bus='usb'/></disk>", ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := d.define(small(strings.ReplaceAll(name, " ", "-"), c.disk))
			events := d.events.Reader()
			ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
			if got := dropped(t, events); got.Reason != "drop missing on start" || got.OldPath != c.path || got.NewPath != "" || got.Alias == "" {
				t.Errorf("the event is %+v", got)
			}
			if text := liveText(t, g); strings.Contains(text, "<disk") {
				t.Errorf("it has the disk:\n%s", text)
			}
			if len(g.View().Inactive.Devices.Disks) != 1 {
				t.Error("its definition has lost the disk")
			}
			d.reopen(func() {})
			if text := liveText(t, d.again(g)); strings.Contains(text, "<disk") {
				t.Errorf("to the next daemon it has the disk:\n%s", text)
			}
		})
	}
}

// TestStartupPolicy_DamagedDiskIsNotDropped: a guest does not boot without data that are there.
func TestStartupPolicy_DamagedDiskIsNotDropped(t *testing.T) {
	d := newDaemonOf(t, true)
	damaged := filepath.Join(d.dir, "damaged.qcow2")
	ok(t, os.WriteFile(damaged, append([]byte("QFI\xfb"), make([]byte, 1<<16)...), 0o600))
	g := d.define(small("damaged", "<disk type='file'><driver type='qcow2'/><source file='"+damaged+"' startupPolicy='optional'/><target dev='sda' bus='sata'/></disk>"))
	if err := launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}); err == nil || !strings.Contains(err.Error(), damaged) {
		t.Errorf("it starts without its disk: %v", err)
	}
}

// TestStartupPolicy_Drives: a drive is empty where its medium is missing: an optional one always, a
// requisite one when its guest goes on from an image. A disk is never dropped then.
func TestStartupPolicy_Drives(t *testing.T) {
	d := newDaemonOf(t, true)
	medium := filepath.Join(d.dir, "medium")
	ok(t, os.WriteFile(medium, make([]byte, 1<<20), 0o600))
	drive := func(policy string) string {
		return "<disk type='file' device='cdrom'><source file='" + medium + "' startupPolicy='" + policy + "'/><target dev='sda' bus='sata'/><readonly/></disk>"
	}
	start := func(g *guest.Guest) error {
		return launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{})
	}
	isEmpty := func(g *guest.Guest, events *event.Reader) {
		t.Helper()
		if got := dropped(t, events); got.Reason != "missing on start" || got.OldPath != medium {
			t.Errorf("the event is %+v", got)
		}
		if text := liveText(t, g); !strings.Contains(text, "device='cdrom'") || strings.Contains(text, medium) || strings.Contains(text, "startupPolicy") {
			t.Errorf("the drive is not empty:\n%s", text)
		}
	}

	requisite := d.define(small("requisite", drive("requisite")))
	fixed := d.define(small("fixed", strings.Replace(strings.Replace(drive("optional"), "device='cdrom'", "", 1), "<readonly/>", "<shareable/>", 1)))
	for _, g := range []*guest.Guest{requisite, fixed} {
		ok(t, start(g))
		ok(t, savestate.ManagedSave(d.ctx(), g, scope.Daemon("a test"), savestate.SaveOptions{}))
	}
	ok(t, os.Remove(medium))
	events := d.events.Reader()
	ok(t, start(requisite))
	isEmpty(requisite, events)
	if err := start(fixed); err == nil || !strings.Contains(err.Error(), medium) {
		t.Errorf("a guest is restored without its disk: %v", err)
	}
	ok(t, guest.Destroy(d.ctx(), requisite, scope.Daemon("a test"), false))
	if err := start(requisite); err == nil || !strings.Contains(err.Error(), medium) {
		t.Errorf("a guest boots without a medium that it requires: %v", err)
	}
	optional := d.define(small("optional", drive("optional")))
	events = d.events.Reader()
	ok(t, start(optional))
	isEmpty(optional, events)
}

// TestUSB_MissingDevice: a guest is neither started with a USB device that the host has not, nor given
// one while it runs; one that is optional is left out at a start.
func TestUSB_MissingDevice(t *testing.T) {
	d := newDaemonOf(t, true)
	usb := func(policy string) string {
		return "<hostdev mode='subsystem' type='usb'><source" + policy + "><vendor id='0x1234'/><product id='0xbeef'/></source></hostdev>"
	}
	for name, policy := range map[string]string{"default": "", "mandatory": " startupPolicy='mandatory'", "requisite": " startupPolicy='requisite'"} {
		g := d.define(small(name, usb(policy)))
		refused(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}), fault.NotFound, "no USB device 1234:beef")
	}
	g := d.define(small("optional", usb(" startupPolicy='optional'")))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	if text := liveText(t, g); strings.Contains(text, "<hostdev") {
		t.Errorf("it has the device:\n%s", text)
	}
	refused(t, hotplug.Attach(d.ctx(), g, scope.Daemon("a test"), usb(" startupPolicy='optional'"), machine.Affect{Live: true}), fault.NotFound, "no USB device 1234:beef")
	refused(t, hotplug.Attach(d.ctx(), g, scope.Daemon("a test"), "<hostdev mode='subsystem' type='usb'><source><address bus='7' device='9'/></source></hostdev>", machine.Affect{Live: true}),
		fault.NotFound, "no USB device at bus 7, device 9")
}
