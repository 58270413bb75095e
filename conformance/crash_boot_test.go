package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
)

// The guests that are marked for autostart.
const markedGuests = 3

func markedGuest(n int) libvirt.Domain {
	return libvirt.Domain{Name: fmt.Sprintf("marked%d", n), UUID: libvirt.UUID{0xc7, 15: byte(n)}, ID: -1}
}

// defineMarkedGuests defines them, and lets the test choose the boot ID that the daemon reads.
func (c *crash) defineMarkedGuests() {
	c.must(os.WriteFile(c.bootFile(), []byte("0\n"), 0o644)) //nolint:gosec // as the kernel's is
	c.output(c.t, "mount", "--bind", c.bootFile(), "/proc/sys/kernel/random/boot_id")
	for n := range markedGuests {
		g := markedGuest(n)
		_, err := c.l.DomainDefineXML(fmt.Sprintf(`<domain type='qemu'><name>%s</name><uuid>%s</uuid><memory unit='MiB'>48</memory><vcpu>1</vcpu>
			<os><type arch='x86_64' machine='q35'>hvm</type></os><features><acpi/><tcg><tb-cache unit='MiB'>32</tb-cache></tcg></features></domain>`,
			g.Name, uuidText(g.UUID)))
		c.must(err)
		c.must(c.l.DomainSetAutostart(g, 1))
	}
}

func (c *crash) bootFile() string { return filepath.Join(c.dir, "commands", "boot") }

// killDuringAutostart kills the daemon during the autostart of one boot after the other. The next daemon continues: all
// guests run, each once. A guest that its user destroyed before the kill stays off for the rest of that boot.
func (c *crash) killDuringAutostart() {
	died := false
	for i, a := range []failpoint.Armed{
		{Point: "autostart.listed"},
		{Point: "autostart.noted"},
		{Point: "autostart.start", Nth: 2},
		{Point: "autostart.struck", Nth: 2},
	} {
		a.Action = failpoint.Kill
		if !c.drawn("boot", a) {
			continue
		}
		died = true
		what := fmt.Sprintf("a boot's autostart, killed at %s", a.Point)
		c.signal(c.t, "KILL")
		c.must(os.WriteFile(c.bootFile(), fmt.Appendf(nil, "%d\n", i+1), 0o644)) //nolint:gosec // as the kernel's is
		c.ask(a)
		c.launch(c.t, "--prepared", "0")
		select {
		case <-c.ended:
		case <-time.After(patience):
			c.t.Fatalf("%s: it lives", what)
		}
		c.tally.note(a.Point)
		c.ask(failpoint.Armed{})
		c.begin()
		eventually(c.t, what+": all run", func() bool { return c.running() == markedGuests })
		c.waitForStableState()
		if n := len(c.emulatorPIDs()); n != markedGuests {
			c.t.Fatalf("%s: %d guests have %d processes", what, markedGuests, n)
		}
		for n := range markedGuests {
			c.must(c.l.DomainDestroy(markedGuest(n)))
		}
	}
	if !died { // the guests of the first boot run, and no user has destroyed one
		return
	}
	c.signal(c.t, "KILL")
	c.begin()
	c.waitForStableState()
	if n := c.running() + len(c.emulatorPIDs()); n != 0 {
		c.t.Fatalf("%d of the guests that were destroyed run again in the same boot", n)
	}
}

// running counts the running guests.
func (c *crash) running() (n int) {
	for i := range markedGuests {
		if state, _, err := c.l.DomainGetState(markedGuest(i), 0); err == nil && libvirt.DomainState(state) == libvirt.DomainRunning {
			n++
		}
	}
	return n
}

// restarted is the definition of a guest that restarts when its QEMU crashes.
func restarted(c *crash) error {
	_, err := c.l.DomainDefineXML(crashDoc("<on_crash>restart</on_crash>"))
	return err
}

// crashes kills the guest's QEMU as kill -9 does, and kills the daemon while it handles that. The guest must run
// again, once. A guest that its user destroyed stays off.
func (c *crash) crashes() {
	c.must(restarted(c))
	c.must(startRunning(c))
	runsAgain := func(what string, pid int) {
		c.t.Helper()
		eventually(c.t, what+": the guest runs again", func() bool {
			state, _, err := c.l.DomainGetState(crashGuest, 0)
			now := c.pids()[crashGuest.Name]
			return err == nil && libvirt.DomainState(state) == libvirt.DomainRunning && now != 0 && now != pid
		})
		c.waitForStableState()
		if n := len(c.emulatorPIDs()); n != 1 {
			c.t.Fatalf("%s: the guest has %d processes", what, n)
		}
	}
	for _, point := range []string{"", "release.step", "revive.noted", "release.done", "destroy.released", "revive.start", "launch.executed", "launch.take"} {
		if !c.drawn("crash", failpoint.Armed{Point: point}) {
			continue
		}
		what := fmt.Sprintf("a crash whose daemon is killed at %q", point)
		pid := c.pids()[crashGuest.Name]
		if point == "" {
			what = "a crash while there is no daemon"
			c.signal(c.t, "KILL")
		} else {
			c.ask(failpoint.Armed{Point: point, Action: failpoint.Kill})
		}
		c.must(syscall.Kill(pid, syscall.SIGKILL))
		if point != "" {
			c.checkDied(point)
		}
		c.begin()
		runsAgain(what, pid)
	}
	c.must(destroy(c))
	c.signal(c.t, "KILL")
	c.begin()
	if c.waitForStableState(); len(c.emulatorPIDs()) != 0 {
		c.t.Fatal("a guest that was destroyed is started again, because it had crashed before")
	}
}
