package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/lodge-kvm/lodge/failpoint"
)

// The guests that start with the host.
const markedGuests = 3

func markedGuest(n int) libvirt.Domain {
	return libvirt.Domain{Name: fmt.Sprintf("marked%d", n), UUID: libvirt.UUID{0xc7, 15: byte(n)}, ID: -1}
}

// marked defines them, and lets the test say which boot of the host this is.
func (c *crash) marked() {
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

// boots kills the daemon amid the autostart of one boot after the other. The next
// daemon goes on: all guests run, each once. What its user has destroyed by then
// stays off for the rest of that boot.
func (c *crash) boots() {
	for i, a := range []failpoint.Armed{
		{Point: "autostart.listed"},
		{Point: "autostart.noted"},
		{Point: "autostart.start", Nth: 2},
		{Point: "autostart.struck", Nth: 2},
	} {
		a.Action = failpoint.Kill
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
		c.settled()
		if n := len(c.emulators()); n != markedGuests {
			c.t.Fatalf("%s: %d guests have %d processes", what, markedGuests, n)
		}
		for n := range markedGuests {
			c.must(c.l.DomainDestroy(markedGuest(n)))
		}
	}
	c.signal(c.t, "KILL")
	c.begin()
	c.settled()
	if n := c.running() + len(c.emulators()); n != 0 {
		c.t.Fatalf("%d of the guests that were destroyed run again in the same boot", n)
	}
}

// running counts the guests that run.
func (c *crash) running() (n int) {
	for i := range markedGuests {
		if state, _, err := c.l.DomainGetState(markedGuest(i), 0); err == nil && libvirt.DomainState(state) == libvirt.DomainRunning {
			n++
		}
	}
	return n
}
