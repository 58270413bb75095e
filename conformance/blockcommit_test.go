package conformance

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/digitalocean/go-libvirt"
)

// images makes a chain of qcow2 images of 16 MiB, the lowest first. Each contains one megabyte of its own data.
func (d *daemon) images(t *testing.T, names ...string) (top string) {
	t.Helper()
	below := ""
	for i, name := range names {
		args := []string{"create", "-q", "-f", "qcow2"}
		if below != "" {
			args = append(args, "-F", "qcow2", "-b", below)
		}
		path := filepath.Join(d.dir, name)
		imageTool(t, "qemu-img", append(args, path, "16M")...)
		imageTool(t, "qemu-io", "-f", "qcow2", "-c", fmt.Sprintf("write -q -P %d %dM 1M", i+1, i), path)
		below = path
	}
	return below
}

func imageTool(t *testing.T, name string, args ...string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
}

// layeredGuest runs a guest with a chain of three images on disk vda. It also returns a flat copy of the disk.
func (d *daemon) layeredGuest(t *testing.T) (g *guest, like string) {
	t.Helper()
	top := d.images(t, "low", "mid", "top")
	like = filepath.Join(d.dir, "like")
	imageTool(t, "qemu-img", "convert", "-O", "qcow2", top, like)
	g = d.define(t, shape{name: "layered", devices: fmt.Sprintf(
		"<disk type='file' device='disk'><driver name='qemu' type='qcow2'/><source file='%s'/><target dev='vda' bus='virtio'/></disk>", top)})
	d.virsh(t, "start", "layered")
	return g, like
}

// compareDisk shuts the guest off and compares the content of its disk with the flat copy.
func (g *guest) compareDisk(t *testing.T, image, like string) {
	t.Helper()
	g.d.virsh(t, "destroy", "layered")
	imageTool(t, "qemu-img", "compare", filepath.Join(g.d.dir, image), like)
	g.d.virsh(t, "start", "--paused", "layered") // the headers are believed
	g.d.virsh(t, "destroy", "layered")
}

// virsh commits, shows the progress, pivots, aborts and limits the speed, as with libvirt.
func TestBlockCommit_Virsh(t *testing.T) {
	needs(t, "qemu-img", "qemu-io")
	d := start(t)
	g, like := d.layeredGuest(t)
	if said := d.virsh(t, "blockjob", "layered", "vda"); strings.Contains(said, "Commit") {
		t.Errorf("without a job virsh says %s", said)
	}
	contains(t, "deletion", d.mustFail(t, "blockcommit", "layered", "vda", "--active", "--delete"), "--delete is not built")
	contains(t, "without --active", d.mustFail(t, "blockcommit", "layered", "vda"), "requires active flag")

	contains(t, "begun", d.virsh(t, "blockcommit", "layered", "vda", "--active", "--wait", "--verbose"), "[100 %]")
	contains(t, "progress", d.virsh(t, "blockjob", "layered", "vda"), "Active Block Commit: [100 %]")
	d.virsh(t, "blockjob", "layered", "vda", "--bandwidth", "7")
	contains(t, "speed", d.virsh(t, "blockjob", "layered", "vda", "--info"), "(7.000 MiB/s)")
	contains(t, "xml", d.virsh(t, "dumpxml", "layered"), "<mirror type='file' job='active-commit' ready='yes'>")
	for _, refused := range [][]string{
		{"save", "layered", filepath.Join(d.dir, "saved")},
		{"detach-disk", "layered", "vda", "--live"},
		{"blockresize", "layered", "vda", "32M"},
	} {
		contains(t, refused[0], d.mustFail(t, refused...), "Requested operation is not valid")
	}
	// virsh 9.0 may wait for the progress of a dump that the daemon refused at once.
	l := d.connect(t)
	guest, err := l.DomainLookupByName("layered")
	if err == nil {
		err = l.DomainCoreDump(guest, filepath.Join(d.dir, "dumped"), 0)
	}
	if refused, is := errors.AsType[libvirt.Error](err); !is || refused.Code != uint32(libvirt.ErrOperationInvalid) {
		t.Errorf("dump: %v", err)
	}
	contains(t, "a second one", d.mustFail(t, "blockcommit", "layered", "vda", "--active"), "block copy still active: disk 'vda' already in active block job")
	d.virsh(t, "setmem", "layered", "150M", "--live") // other changes go
	d.virsh(t, "blockjob", "layered", "vda", "--abort")
	if said := d.virsh(t, "blockjob", "layered", "vda"); strings.Contains(said, "Commit") {
		t.Errorf("without a job virsh says %s", said)
	}
	contains(t, "no job", d.mustFail(t, "blockjob", "layered", "vda", "--pivot"), "does not have an active block job")

	low, mid := filepath.Join(d.dir, "low"), filepath.Join(d.dir, "mid")
	contains(t, "below", d.virsh(t, "blockcommit", "layered", "vda", "--base", low, "--top", mid, "--wait", "--verbose"), "[100 %]")
	if xml := d.virsh(t, "dumpxml", "layered"); strings.Contains(xml, mid) || !strings.Contains(xml, low) {
		t.Errorf("after the commit it is shown as\n%s", xml)
	}
	contains(t, "pivot", d.virsh(t, "blockcommit", "layered", "vda", "--active", "--wait", "--verbose", "--pivot"), "[100 %]")
	for _, flags := range [][]string{{}, {"--inactive"}} {
		if xml := d.virsh(t, append([]string{"dumpxml", "layered"}, flags...)...); strings.Contains(xml, "/top'") || !strings.Contains(xml, low) {
			t.Errorf("after the pivot %v shows\n%s", flags, xml)
		}
	}
	g.compareDisk(t, "low", like)
}

// Clients of the library get block job events with the path and with the target.
func TestBlockCommit_Events(t *testing.T) {
	needs(t, "qemu-img", "qemu-io", "python3")
	d := start(t)
	g, like := d.layeredGuest(t)
	const ready = "by-path top 4 ready|by-target vda 4 ready|info 4|"
	d.checkCommitEvents(t, "abort", ready+"by-path top 4 canceled|by-target vda 4 canceled|info {}")
	d.checkCommitEvents(t, "pivot", ready+"by-path low 4 completed|by-target vda 4 completed|info {}")
	g.compareDisk(t, "low", like)
}

func (d *daemon) checkCommitEvents(t *testing.T, how, want string) {
	t.Helper()
	out, err := d.command(t.Context(), "/usr/bin/python3", script(t, "blockcommit.py"), d.uri(), "layered", how).CombinedOutput()
	if got := strings.ReplaceAll(strings.TrimSpace(string(out)), "\n", "|"); err != nil || got != want {
		t.Errorf("%s: %v\n%s\nwant\n%s", how, err, got, want)
	}
}
