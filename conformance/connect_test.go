package conformance

import (
	"os"
	"strings"
	"testing"
)

// Promise: G1
func TestConnection(t *testing.T) {
	needs(t)
	d := start(t)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		command string
		pieces  []string
	}{
		{"version", []string{"Using API: QEMU", "Running hypervisor: QEMU "}},
		{"hostname", []string{host}},
		{"uri", []string{"qemu:///system"}},
		{"nodeinfo", []string{"CPU model:           x86_64", "CPU(s):", "NUMA cell(s):", "Memory size:"}},
		{"node-memory-tune", []string{"shm_pages_to_scan", "shm_sleep_millisecs", "shm_full_scans"}},
		{"nodememstats", []string{"total  :", "free   :", "buffers:", "cached :"}},
		{"nodecpustats", []string{"user:", "system:", "idle:", "iowait:"}},
		{"freecell --all", []string{"0:", "KiB"}},
		{"maxvcpus", []string{"255"}},
		{"cpu-models x86_64", []string{"qemu64", "Nehalem"}},
		{"capabilities", []string{
			"<capabilities>", "<uuid>", "<arch>x86_64</arch>", "<topology>", "<cell id='0'>", "<os_type>hvm</os_type>",
			"<arch name='x86_64'>", "<emulator>/usr/bin/qemu-system-x86_64</emulator>", "canonical='pc-q35-", "<domain type='qemu'/>",
		}},
		{"domcapabilities --virttype qemu --machine q35", []string{
			"<domainCapabilities>", "<domain>qemu</domain>", "<machine>pc-q35-", "<vcpu max='", "<loader supported='yes'>",
			"<mode name='custom' supported='yes'>", "<disk supported='yes'>", "<value>virtio</value>", "<rng supported='yes'>",
		}},
	} {
		t.Run(c.command, func(t *testing.T) {
			contains(t, c.command, d.virsh(t, strings.Fields(c.command)...), c.pieces...)
		})
	}
}

// Promise: G4
func TestReadOnlySocket_RefusesChanges(t *testing.T) {
	needs(t)
	d := start(t)
	d.define(t, shape{name: "safe"})
	reader := "qemu:///system?socket=" + d.run + "/libvirt-sock-ro"
	contains(t, "list", d.output(t, "virsh", "-q", "-r", "-c", reader, "list", "--all"), "safe")
	// A client claims more rights than its socket gives: virsh without -r.
	out, err := d.command(t.Context(), "virsh", "-q", "-c", reader, "start", "safe").CombinedOutput()
	if err == nil {
		t.Error("the read-only socket starts guests")
	}
	contains(t, "the refusal", string(out), "read")
	if state := d.virsh(t, "domstate", "safe"); state != "shut off" {
		t.Errorf("the guest is %s", state)
	}
}

func TestSocket_StockNames(t *testing.T) {
	needs(t)
	d := start(t, "--libvirt-sockets")
	contains(t, "virsh without a socket in its URI", d.output(t, "virsh", "-c", "qemu:///system", "uri"), "qemu:///system")
	contains(t, "virsh -r", d.output(t, "virsh", "-r", "-c", "qemu:///system", "list", "--all"), "Name")
}
