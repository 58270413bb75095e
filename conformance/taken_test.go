package conformance

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Another program removes host objects of a running guest. Its network's firewall rules are back at once. Then its
// link, its bridge and its control groups are removed. The guest is still listed and measured. A call that needs a
// missing object fails or works without it, and nothing prevents the guest's end or its next start.
// Promise: F9, F23
func TestHostObjects_RemovedByOthers(t *testing.T) {
	needs(t, "dnsmasq", "nft", "ip")
	d := start(t)
	d.lan(t, "lan", 1)
	d.virsh(t, "define", d.file(t, "robbed.xml", `<domain type='qemu'><name>robbed</name><memory unit='MiB'>48</memory><vcpu>1</vcpu>
		<os><type arch='x86_64' machine='q35'>hvm</type></os><features><acpi/><tcg><tb-cache unit='MiB'>32</tb-cache></tcg></features>
		<cputune><shares>512</shares></cputune>
		<devices><interface type='network'><source network='lan'/><model type='virtio'/></interface></devices></domain>`))
	d.virsh(t, "start", "robbed")
	d.output(t, "nft", "flush", "ruleset")
	eventually(t, "the network's rules are back", func() bool {
		return strings.Contains(d.output(t, "nft", "list", "ruleset"), "jump br-lan_in")
	})
	d.output(t, "ip", "link", "delete", "vnet0")
	d.output(t, "ip", "link", "delete", "br-lan")
	for _, group := range d.guestGroups() {
		removeGroup(t, group)
	}
	if left := d.guestGroups(); len(left) > 0 {
		t.Fatalf("control groups are left: %v", left)
	}
	contains(t, "the guest", d.virsh(t, "domstate", "robbed"), "running")
	contains(t, "its statistics", d.virsh(t, "domstats", "robbed"), "state.state=1")
	_, _ = d.try(t, "schedinfo", "robbed", "--live", "--set", "cpu_shares=256") // there is nothing to set
	d.virsh(t, "suspend", "robbed")
	d.virsh(t, "resume", "robbed")
	d.signal(t, "KILL")
	d.launch(t)
	contains(t, "the guest under the next daemon", d.virsh(t, "domstate", "robbed"), "running")
	d.virsh(t, "destroy", "robbed")
	_, _ = d.try(t, "net-destroy", "lan") // a daemon may find it inactive without its bridge
	d.virsh(t, "net-start", "lan")
	d.virsh(t, "start", "robbed")
	if len(d.guestGroups()) == 0 {
		t.Error("the guest has no control group again")
	}
	d.virsh(t, "destroy", "robbed")
}

// removeGroup moves the processes of a control group, and of its descendants, to the root group and removes the
// groups.
func removeGroup(t *testing.T, group string) {
	t.Helper()
	var all []string
	_ = filepath.WalkDir(group, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			all = append(all, path)
		}
		return nil
	})
	top := filepath.Dir(filepath.Dir(group))
	for _, path := range slices.Backward(all) {
		pids, _ := os.ReadFile(filepath.Join(path, "cgroup.procs")) // groups of threads have none
		for pid := range strings.FieldsSeq(string(pids)) {
			if err := os.WriteFile(filepath.Join(top, "cgroup.procs"), []byte(pid), 0); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

// A second daemon with its own data starts in the run directory of the first. It must refuse to run, and change
// nothing of the first one's.
// Promise: S6
func TestRunDirectory_SecondDaemonRefused(t *testing.T) {
	needs(t)
	d := start(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, err := d.command(ctx, program(t, "lodged"), "--data", filepath.Join(d.dir, "other"), "--run", d.run).CombinedOutput()
	if err == nil {
		t.Fatalf("a second daemon runs in %s", d.run)
	}
	contains(t, "its refusal", string(out), "another lodged uses this run directory", "--run")
	contains(t, "the first one", d.virsh(t, "uri"), "qemu")
}
