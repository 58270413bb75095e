package conformance

import (
	"strings"
	"testing"
)

// Several clients ask one daemon what the host is and which features it has.
// Promise: G12
func TestHost_Capabilities(t *testing.T) {
	needs(t)
	d := start(t)
	t.Run("exporters", func(t *testing.T) { readByExporters(t, d) })
	t.Run("the processor", func(t *testing.T) { comparesItsProcessor(t, d) })
}

// comparesItsProcessor makes the calls of virsh and of nova-compute. The latter compares the processor in the
// capabilities with the host when it starts.
func comparesItsProcessor(t *testing.T, d *daemon) {
	capabilities := d.virsh(t, "capabilities")
	if own, _, _ := strings.Cut(capabilities, "</cpu>"); !strings.Contains(own, "<model>") || !strings.Contains(own, "<feature name=") {
		t.Fatalf("the host's processor has no model or no features:\n%s", own)
	}
	file := d.file(t, "capabilities.xml", capabilities)
	contains(t, "the comparison", d.virsh(t, "cpu-compare", file), "is identical to host CPU")
	baseline := d.virsh(t, "cpu-baseline", file)
	contains(t, "the baseline", baseline, "<model fallback='forbid'>", "</cpu>")
	contains(t, "the baseline with its features", d.virsh(t, "cpu-baseline", "--features", file), "<feature policy='require' name='sse2'/>")
	if out := d.virsh(t, "cpu-baseline", "--migratable", file); strings.Contains(out, "invtsc") {
		t.Errorf("a guest could not move from a baseline of\n%s", out)
	}
	contains(t, "the comparison", d.virsh(t, "cpu-compare", d.file(t, "kvm64.xml", "<cpu><model>kvm64</model></cpu>")), "is a superset of")
	foreign := d.file(t, "foreign.xml", "<cpu><model>kvm64</model><vendor>Hygon</vendor></cpu>")
	contains(t, "the comparison", d.mustFail(t, "cpu-compare", foreign), "is incompatible with")
	contains(t, "the refusal", d.mustFail(t, "cpu-compare", "--error", foreign), "the CPU is incompatible with host CPU", "vendor Hygon")
	if out := d.virsh(t, "cpu-models", "x86_64"); !strings.Contains(out, "Haswell") || out != d.virsh(t, "cpu-models", "i686") {
		t.Errorf("the processor models are\n%s", out)
	}
	offered := d.file(t, "offered.xml", d.virsh(t, "domcapabilities"))
	contains(t, "the comparison", d.virsh(t, "hypervisor-cpu-compare", offered), "is identical to the CPU provided by hypervisor")
	contains(t, "the baseline of what is offered", d.virsh(t, "hypervisor-cpu-baseline", offered, "--features"),
		"<cpu mode='custom' match='exact'>", "<model fallback='forbid'>", "<feature policy='require' name='sse2'/>")
	contains(t, "the baseline", d.virsh(t, "hypervisor-cpu-baseline", "--features", file), "<model fallback='forbid'>")
	host := func(model, vendor string) string {
		return "<cpu><arch>x86_64</arch><model>" + model + "</model><vendor>" + vendor + "</vendor></cpu>"
	}
	cluster := d.file(t, "cluster.xml", host("Haswell", "Intel")+host("Skylake-Server", "Intel"))
	contains(t, "the baseline of a cluster", d.virsh(t, "cpu-baseline", cluster), "<model fallback='allow'>Haswell</model>", "<vendor>Intel</vendor>")
	strangers := d.file(t, "strangers.xml", host("Haswell", "Intel")+host("EPYC", "AMD"))
	contains(t, "the refusal", d.mustFail(t, "cpu-baseline", strangers), "CPU vendors do not match")
}
