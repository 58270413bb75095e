package guest_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

var both = machine.Affect{Live: true, Config: true}

// An interrupted update is continued later. It must not take back changes that were answered in between.
// Promise: F36
func TestUpdate_InterruptedKeepsOtherChanges(t *testing.T) {
	d := newDaemon(t)
	const memory = 32 << 20
	for name, goOn := range map[string]func(pid int){
		"same": func(pid int) { ok(t, syscall.Kill(pid, syscall.SIGCONT)) },
		"next": func(pid int) { d.reopen(func() { ok(t, syscall.Kill(pid, syscall.SIGCONT)) }) },
	} {
		g := d.define(small(name))
		ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
		pid := d.pid(name)
		underWay := func() bool {
			records, err := filepath.Glob(filepath.Join(guest.RunDir(g), "operation-*.json"))
			return err == nil && len(records) > 0
		}
		ok(t, syscall.Kill(pid, syscall.SIGSTOP))
		done := make(chan error, 1)
		go func() { done <- hotplug.SetMemory(d.ctx(), g, scope.Daemon("a test"), memory, both) }()
		eventually(t, "it is under way", underWay)
		guest.LoseMonitor(g)
		if err := <-done; err == nil {
			t.Fatal("it is done without a monitor")
		}
		d.define(strings.Replace(small(name), "<name>", "<uuid>"+g.UUID+"</uuid><title>stored</title><on_crash>restart</on_crash><name>", 1))
		title := "running"
		ok(t, guest.SetMetadata(d.ctx(), g, scope.Daemon("a test"), guest.Title, &title, "", "", machine.Affect{Live: true}))
		goOn(pid)
		eventually(t, "it has ended", func() bool { return !underWay() })
		v := d.again(g).View()
		if v.Inactive.Title != "stored" || v.Inactive.OnCrash != "restart" || v.Active.Title != title {
			t.Errorf("%s: the stored title is %q, the live one %q", name, v.Inactive.Title, v.Active.Title)
		}
		if v.Inactive.CurrentMemory != memory {
			t.Errorf("%s: the change is not stored", name)
		}
	}
}

// A value was changed twice, and the journal of the first change still exists. The second value stays.
// Promise: F36
func TestUpdate_LeftJournalAppliedOnce(t *testing.T) {
	d := newDaemon(t)
	config := machine.Affect{Config: true}
	source := func(name string) string {
		path := filepath.Join(d.dir, name)
		ok(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
		return `<driver name='qemu' type='raw'/><source file='` + path + `'/>`
	}
	stick := `<disk type='file' device='disk'>` + source("stick.raw") + `<target dev='sdb' bus='usb'/></disk>`
	drive := func(source string) string {
		return `<disk type='file' device='cdrom'>` + source + `<target dev='sda' bus='sata'/><readonly/></disk>`
	}
	g := d.define(small("left", `<controller type='usb' model='qemu-xhci'/>`, drive("")))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	for kind, c := range map[string]struct {
		change, back func() error
		made         func(*domain.Definition) bool
	}{
		"update": {
			func() error { return hotplug.SetMemory(d.ctx(), g, scope.Daemon("a test"), 32<<20, both) },
			func() error { return hotplug.SetMemory(d.ctx(), g, scope.Daemon("a test"), 64<<20, config) },
			func(def *domain.Definition) bool { return def.CurrentMemory == 32<<20 },
		},
		"attach": {
			func() error { return hotplug.Attach(d.ctx(), g, scope.Daemon("a test"), stick, both) },
			func() error { return hotplug.Detach(d.ctx(), g, scope.Daemon("a test"), stick, config) },
			func(def *domain.Definition) bool { return len(def.Devices.Disks) == 2 },
		},
		"media": {
			func() error {
				return hotplug.Update(d.ctx(), g, scope.Daemon("a test"), drive(source("medium.iso")), both, false)
			},
			func() error { return hotplug.Update(d.ctx(), g, scope.Daemon("a test"), drive(""), config, false) },
			func(def *domain.Definition) bool { return def.Devices.Disks[0].Source.Path() != "" },
		},
	} {
		var at string
		var text []byte
		ok(t, d.whileStopped(g, c.change, func() {
			eventually(t, "it is noted", func() bool {
				noted, _ := filepath.Glob(filepath.Join(guest.RunDir(g), "operation-*.json"))
				if len(noted) == 1 {
					at = noted[0]
					text, _ = os.ReadFile(at)
				}
				return len(text) > 0
			})
		}))
		if !c.made(g.View().Inactive) {
			t.Errorf("%s: the change is not stored", kind)
		}
		ok(t, c.back())
		d.reopen(func() { ok(t, os.WriteFile(at, text, 0o600)) })
		g = d.again(g)
		eventually(t, "the journal is read", func() bool { return gone(at) })
		if c.made(g.View().Inactive) {
			t.Errorf("%s: the change is made once more", kind)
		}
		eventually(t, "QEMU has been asked about missed events", func() bool { return g.Job().Kind == domain.JobNone })
	}
}
