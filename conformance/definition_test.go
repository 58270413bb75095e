package conformance

import (
	"strings"
	"testing"
)

// TestDefinitions works on guests that do not run.
func TestDefinitions(t *testing.T) {
	needs(t)
	d := start(t)
	v := func(args ...string) string {
		t.Helper()
		return d.virsh(t, args...)
	}
	g := d.define(t, shape{name: "paper"})
	uuid := v("domuuid", "paper")

	v("autostart", "paper")
	contains(t, "dominfo", v("dominfo", "paper"), "Autostart:      enable")
	v("autostart", "paper", "--disable")
	contains(t, "dominfo", v("dominfo", "paper"), "Autostart:      disable")

	v("domrename", "paper", "papyrus")
	if got := v("domuuid", "papyrus"); got != uuid {
		t.Errorf("renaming changes the UUID from %s to %s", uuid, got)
	}
	contains(t, "the old name", d.mustFail(t, "domuuid", "paper"), "paper")
	v("domrename", "papyrus", "paper")

	v("setmaxmem", "paper", "262144", "--config")
	v("setmem", "paper", "131072", "--config")
	contains(t, "dominfo", v("dominfo", "paper"), "Max memory:     262144 KiB", "Used memory:    131072 KiB")
	v("setvcpus", "paper", "2", "--config", "--maximum")
	contains(t, "vcpucount", v("vcpucount", "paper", "--maximum", "--config"), "2")
	v("desc", "paper", "--config", "Words about it")
	contains(t, "desc", v("desc", "paper"), "Words about it")

	contains(t, "a second one of the name", d.mustFail(t, "define", d.file(t, "twin.xml",
		"<domain type='qemu'><name>paper</name><uuid>11111111-2222-3333-4444-555555555555</uuid><memory>65536</memory><os><type>hvm</type></os></domain>")),
		"'paper' already exists with uuid "+uuid)
	contains(t, "XML that is none", d.mustFail(t, "define", d.file(t, "broken.xml", "<domain type='qemu'><name>x</domain>")), "error")
	contains(t, "what is not built", d.mustFail(t, "define", d.file(t, "exotic.xml",
		"<domain type='qemu'><name>exotic</name><memory>65536</memory><os><type>hvm</type></os><launchSecurity type='sev'><policy>1</policy></launchSecurity></domain>")), "unsupported", "launchSecurity")

	_, xml := shape{name: "mayfly"}.xml(t, d)
	v("create", d.file(t, "mayfly.xml", xml))
	contains(t, "dominfo of a transient guest", v("dominfo", "mayfly"), "Persistent:     no", "State:          running")
	v("destroy", "mayfly")
	contains(t, "a transient guest after its end", d.mustFail(t, "domstate", "mayfly"), "mayfly")
	v("create", d.file(t, "mayfly.xml", xml), "--paused")
	v("define", d.file(t, "mayfly.xml", v("dumpxml", "--inactive", "mayfly")))
	contains(t, "dominfo of one defined on the run", v("dominfo", "mayfly"), "Persistent:     yes", "State:          paused")
	v("destroy", "mayfly")
	v("undefine", "mayfly")

	v("define", d.file(t, "again.xml", v("dumpxml", "paper")))
	if got := g.state(t); got != "shut off (unknown)" {
		t.Errorf("a guest that never ran is %q", got)
	}
	v("undefine", "paper")
	if list := v("list", "--all", "--name"); strings.TrimSpace(list) != "" {
		t.Errorf("left: %s", list)
	}
}
