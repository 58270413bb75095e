package conformance

import (
	"strings"
	"testing"
)

// contains fails unless a text contains every one of the pieces.
func contains(t *testing.T, what, text string, pieces ...string) {
	t.Helper()
	for _, p := range pieces {
		if !strings.Contains(text, p) {
			t.Errorf("%s has no %q:\n%s", what, p, text)
		}
	}
}

func TestDomain_Lifecycle(t *testing.T) {
	needs(t)
	d := start(t)
	g := d.define(t, shape{name: "life"})
	contains(t, "list --all", d.virsh(t, "list", "--all"), "life", "shut off")
	contains(t, "dominfo", d.virsh(t, "dominfo", "life"), "Name:           life", "State:          shut off", "CPU(s):         1",
		"Max memory:     163840 KiB", "Used memory:    163840 KiB", "Persistent:     yes", "Autostart:      disable", "Managed save:   no")
	d.virsh(t, "start", "life")
	g.waitForAgent(t)
	if len(d.guestGroups()) == 0 {
		t.Error("a running guest has no control group")
	}
	for _, step := range []struct{ command, state string }{
		{"", "running (booted)"},
		{"suspend", "paused (user)"},
		{"resume", "running (unpaused)"},
	} {
		if step.command != "" {
			d.virsh(t, step.command, "life")
		}
		if got := g.state(t); got != step.state {
			t.Errorf("after %q the state is %q, want %q", step.command, got, step.state)
		}
	}
	boot := g.waitForAgent(t).BootID
	for _, command := range []string{"reset", "reboot"} {
		d.virsh(t, command, "life")
		eventually(t, "a new boot after "+command, func() bool { return g.waitForAgent(t).BootID != boot })
		boot = g.waitForAgent(t).BootID
	}
	d.virsh(t, "shutdown", "life")
	eventually(t, "shut off", func() bool { return g.state(t) == "shut off (shutdown)" })
	d.virsh(t, "start", "life")
	d.virsh(t, "destroy", "life")
	if got := g.state(t); got != "shut off (destroyed)" {
		t.Errorf("after destroy the state is %q", got)
	}
	d.virsh(t, "undefine", "life")
	contains(t, "dominfo of what is gone", d.mustFail(t, "dominfo", "life"), "failed to get domain 'life'")
}
