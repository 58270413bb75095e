package guest_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/event"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// What a guest does to itself is done here by QEMU's monitor, which writes to the
// ports of the machine that a guest would write to.
const (
	panics   = "o /b 0x505 1"      // pvpanic's
	resets   = "o /b 0xcf9 6"      // the chip set's
	powerOff = "o /h 0x604 0x2000" // ACPI's, once the firmware has set it up
)

// poke has a guest do something to itself.
func (d *daemon) poke(g *guest.Guest, what string) {
	d.t.Helper()
	_, err := g.MonitorCommand(d.ctx(), scope.Daemon("a test"), what, true)
	ok(d.t, err)
}

// bear starts a guest with policies.
func (d *daemon) bear(name, policies string) *guest.Guest {
	d.t.Helper()
	g := d.define(strings.Replace(small(name, `<panic model='isa'/>`), "<devices>", policies+"<devices>", 1))
	ok(d.t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	return g
}

// Power-off, reset and panic that come from the guest are followed as its definition
// says, with the state, the reason and the events that say what happened.
// Promise: F8
func TestOwnEnd_Policies(t *testing.T) {
	d := newDaemon(t)
	for _, c := range []struct {
		policies, does string
		state          domain.State
		reason         domain.Reason
		change         event.Change
		detail         string
	}{
		{"", powerOff, domain.ShutOff, domain.ReasonShutdown, event.Stopped, event.DetailShutdown},
		{"<on_reboot>destroy</on_reboot>", resets, domain.ShutOff, domain.ReasonShutdown, event.Stopped, event.DetailShutdown},
		{"", panics, domain.ShutOff, domain.ReasonCrashed, event.Crashed, event.DetailPanicked},
		{"<on_crash>preserve</on_crash>", panics, domain.Paused, domain.ReasonPanicked, event.Crashed, event.DetailPanicked},
		{"<on_crash>coredump-destroy</on_crash>", panics, domain.ShutOff, domain.ReasonCrashed, event.Crashed, event.DetailPanicked},
	} {
		name := strings.NewReplacer("<", "", ">", "", "/", "").Replace(fmt.Sprintf("own-%d%d%s", len(c.policies), len(c.does), c.detail))
		name = strings.ReplaceAll(name, " ", "")
		t.Run(c.policies+c.does, func(t *testing.T) {
			g := d.bear(name, c.policies)
			if c.does == powerOff {
				d.awaitFirmware(g)
			}
			events := d.events.Reader()
			d.poke(g, c.does)
			until(t, events, c.change, c.detail)
			eventually(t, "its end", func() bool { return g.View().State == c.state })
			d.want(g, c.state, c.reason)
			ok(t, guest.Undefine(d.ctx(), g, scope.Daemon("a test"), guest.UndefineOptions{}))
			if c.state != domain.ShutOff {
				d.reopen(func() {}) // and it is the same for the next daemon
				g = d.again(g)
				d.want(g, c.state, c.reason)
				ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
			}
		})
	}
	cores, err := filepath.Glob(filepath.Join(d.dir, "data/guest/core/*.core"))
	ok(t, err)
	if len(cores) != 1 {
		t.Fatalf("dumps of memory: %v", cores)
	}
	text, err := os.ReadFile(cores[0])
	ok(t, err)
	if !strings.HasPrefix(string(text), "\x7fELF") || len(text) < 64<<20 {
		t.Errorf("a dump of %d bytes that no debugger reads", len(text))
	}
}

// If its definition asks for a restart after a panic, a power-off or a reset, a guest restarts in the same
// process.
// Promise: F8
func TestOwnEnd_Continues(t *testing.T) {
	d := newDaemon(t)
	for name, policies := range map[string]string{
		"again":  "<on_poweroff>restart</on_poweroff><on_crash>restart</on_crash>",
		"dumped": "<on_poweroff>restart</on_poweroff><on_crash>coredump-restart</on_crash>",
	} {
		g := d.bear(name, policies)
		pid := d.pid(name)
		for _, does := range []string{panics, panics, powerOff} {
			d.awaitFirmware(g)
			events := d.events.Reader()
			d.poke(g, does)
			if does == panics {
				until(t, events, event.Crashed, event.DetailPanicked)
			}
			restarted(t, events)
			d.settle(g, domain.Running)
			eventually(t, "it runs", func() bool {
				answer, err := g.MonitorCommand(d.ctx(), scope.Daemon("a test"), `{"execute":"query-status"}`, false)
				return err == nil && strings.Contains(answer, `"running": true`) || strings.Contains(answer, `"running":true`)
			})
		}
		if now := d.pid(name); now != pid {
			t.Errorf("%s: it was process %d and is %d", name, pid, now)
		}
	}
}

// A panic that no daemon saw is followed by the next one.
// Promise: F8
func TestPanic_WhileNoDaemonRan(t *testing.T) {
	d := newDaemon(t)
	g := d.bear("unseen", "<on_crash>coredump-destroy</on_crash>")
	monitor := filepath.Join(guest.RunDir(g), "monitor.sock")
	d.reopen(func() { d.alone(monitor, panics) })
	g = d.again(g)
	d.settle(g, domain.ShutOff)
	d.want(g, domain.ShutOff, domain.ReasonCrashed)
	if cores, _ := filepath.Glob(filepath.Join(d.dir, "data/guest/core/*.core")); len(cores) != 1 {
		t.Errorf("dumps of memory: %v", cores)
	}
}

// A policy that is not built is refused by name.
// Promise: F8
func TestDefine_UnsupportedPolicy(t *testing.T) {
	d := newDaemon(t)
	_, err := guest.Define(d.ctx(), d.Registry, scope.Daemon("a test"), strings.Replace(small("renamed"), "<devices>", "<on_crash>rename-restart</on_crash><devices>", 1), false)
	if err == nil {
		g, e := d.ByName("renamed")
		ok(t, e)
		err = launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{})
	}
	refused(t, err, fault.Unsupported, "rename-restart")
}

// awaitFirmware waits until the firmware has set up the ports for power-off.
func (d *daemon) awaitFirmware(g *guest.Guest) {
	d.t.Helper()
	eventually(d.t, "the firmware has set up power-off", func() bool {
		answer, err := g.MonitorCommand(d.ctx(), scope.Daemon("a test"), "i /h 0x604", true)
		return err == nil && strings.Contains(answer, "0x") && !strings.Contains(answer, "0xffff")
	})
}

// restarted reads events until the machine was reset.
func restarted(t *testing.T, r *event.Reader) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	for {
		e, _, err := r.Next(ctx)
		if err != nil {
			t.Fatalf("the machine is not reset: %v", err)
		}
		if _, is := e.Payload.(event.DomainReboot); is {
			return
		}
	}
}

// alone tells a QEMU something while no daemon does.
func (d *daemon) alone(monitor, human string) {
	d.t.Helper()
	s, err := qmp.Dial(d.ctx(), monitor, quiet())
	ok(d.t, err)
	ok(d.t, s.Execute(d.ctx(), "human-monitor-command", map[string]any{"command-line": human}, nil))
	s.Close()
}

// A guest that is kept after its panic cannot be resumed, and says so. A reset boots it,
// as often as it is asked for, in the same process.
// Promise: F8
func TestPreserve_ResetBootsTheGuest(t *testing.T) {
	d := newDaemon(t)
	g := d.bear("kept", "<on_crash>preserve</on_crash>")
	d.awaitFirmware(g)
	d.poke(g, panics)
	d.settle(g, domain.Paused)
	refused(t, guest.Resume(d.ctx(), g, scope.Daemon("a test")), fault.WrongState, "reset")
	pid := d.pid(g.Name())
	for range 2 { // the firmware resets once more on its own
		events := d.events.Reader()
		ok(t, guest.Reset(d.ctx(), g, scope.Daemon("a test")))
		restarted(t, events)
		d.awaitFirmware(g)
		d.want(g, domain.Running, domain.ReasonUnpaused)
	}
	if now := d.pid(g.Name()); now != pid {
		t.Errorf("it was process %d and is %d", pid, now)
	}
}

// libvirt's driver for QEMU preserves a guest after a panic alone.
// Promise: F8
func TestSetPolicy_PreserveIsForCrashesAlone(t *testing.T) {
	d := newDaemon(t)
	g := d.define(small("policies"))
	for _, on := range []guest.LifecycleEvent{guest.PoweredOff, guest.Rebooted} {
		refused(t, guest.SetPolicy(d.ctx(), g, scope.Daemon("a test"), on, "preserve", machine.Affect{Config: true}), fault.Unsupported, "preserve")
	}
	ok(t, guest.SetPolicy(d.ctx(), g, scope.Daemon("a test"), guest.Crashed, "preserve", machine.Affect{Config: true}))
}
