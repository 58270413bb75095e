package guest_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/domainxml"
	"github.com/lodge-kvm/lodge/guest"
)

// chain makes qcow2 images that lie on each other, and gives the path of the topmost. Each has a megabyte of its
// own at its place, the lowest the first.
func (d *daemon) chain(names ...string) string {
	d.t.Helper()
	path, below := "", ""
	for i, name := range slices.Backward(names) {
		path = filepath.Join(d.dir, name)
		args := []string{"create", "-q", "-f", "qcow2"}
		if below != "" {
			args = append(args, "-F", "qcow2", "-b", below)
		}
		d.run("qemu-img", append(args, path, "16M")...)
		d.run("qemu-io", "-f", "qcow2", "-c", fmt.Sprintf("write -P %d %dM 1M", 1+i, i), path)
		below = path
	}
	return path
}

func (d *daemon) run(name string, args ...string) {
	d.t.Helper()
	out, err := exec.CommandContext(d.t.Context(), name, args...).CombinedOutput()
	if err != nil {
		d.t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
}

func qcow2Disk(path, target string) string {
	return fmt.Sprintf(`<disk type='file' device='disk'><driver name='qemu' type='qcow2'/><source file='%s'/><target dev='%s' bus='virtio'/></disk>`, path, target)
}

// lets is a guest of which QEMU takes devices away by itself.
func lets(name string, devices ...string) string {
	return strings.Replace(small(name, devices...), "<acpi/>", "", 1)
}

// qmp gives QEMU a command and its answer.
func (d *daemon) qmp(g *guest.Guest, into any, command string, args any) {
	d.t.Helper()
	if err := g.Session().Execute(d.ctx(), command, args, into); err != nil {
		d.t.Fatalf("%s: %v", command, err)
	}
}

// nodes lists QEMU's block nodes that are images.
func (d *daemon) nodes(g *guest.Guest) (all []string) {
	d.t.Helper()
	var nodes []struct {
		Name string `json:"node-name"`
	}
	d.qmp(g, &nodes, "query-named-block-nodes", map[string]any{"flat": true})
	for _, n := range nodes {
		if strings.HasPrefix(n.Name, "libvirt-") {
			all = append(all, n.Name)
		}
	}
	slices.Sort(all)
	return all
}

// shown is a disk of a running guest as a client sees it.
func (d *daemon) shown(g *guest.Guest, target string) string {
	d.t.Helper()
	for _, disk := range g.View().Active.Devices.Disks {
		if disk.Target == target {
			text, err := domainxml.FormatDevice(disk, domainxml.Style{Active: true})
			ok(d.t, err)
			return text
		}
	}
	return ""
}

// wantChain compares the chain that a disk is shown with: number and file name of each image.
func (d *daemon) wantChain(g *guest.Guest, when, target, want string) {
	d.t.Helper()
	var got []string
	for _, disk := range g.View().Active.Devices.Disks {
		if disk.Target != target {
			continue
		}
		for _, s := range disk.Images() {
			got = append(got, fmt.Sprintf("%d:%s", s.Index, filepath.Base(s.Path())))
		}
		if disk.Source != nil && (len(disk.Backing) != len(got) || !disk.Backing[len(got)-1].Terminator) {
			d.t.Errorf("%s: the chain of %s has no end: %+v", when, target, disk.Backing)
		}
	}
	if text := strings.Join(got, " "); text != want {
		d.t.Errorf("%s: %s is shown as %q, not %q", when, target, text, want)
	}
}

// A running guest's disks are shown with their chains, by numbers that are never given twice; each image has a
// block node of its own, which goes with its disk; the next daemon knows the same, and no definition says it.
func TestChain_IsShownWhileTheGuestRuns(t *testing.T) {
	d := newDaemonOf(t, true)
	top, medium := d.chain("top", "mid", "base"), d.chain("upper", "lower")
	drive := func(path string) string {
		return fmt.Sprintf(`<disk type='file' device='cdrom'><driver name='qemu' type='qcow2'/><source file='%s'/><target dev='sda' bus='sata'/></disk>`, path)
	}
	g := d.define(lets("a", qcow2Disk(top, "vda"), drive(medium), `<disk type='file' device='cdrom'><target dev='sdb' bus='sata'/></disk>`))
	ok(t, g.Start(d.ctx(), guest.StartOptions{}))
	d.wantChain(g, "started", "vda", "4:top 5:mid 6:base")
	d.wantChain(g, "started", "sda", "2:upper 3:lower")
	d.wantChain(g, "started", "sdb", "")
	if text := d.shown(g, "vda"); !strings.Contains(text, "<source file='"+top+"' index='4'/>\n  <backingStore type='file' index='5'>\n    <format type='qcow2'/>") {
		t.Errorf("vda is shown as\n%s", text)
	}
	const allOf = "libvirt-4-format libvirt-4-storage libvirt-5-format libvirt-5-storage libvirt-6-format libvirt-6-storage"
	if got := strings.Join(d.nodes(g), " "); got != "libvirt-2-format libvirt-2-storage libvirt-3-format libvirt-3-storage "+allOf {
		t.Errorf("QEMU has %s", got)
	}
	ok(t, g.Attach(d.ctx(), qcow2Disk(d.chain("plugged", "under"), "vdb"), guest.Affect{Live: true}))
	d.wantChain(g, "plugged", "vdb", "7:plugged 8:under")
	ok(t, g.Update(d.ctx(), drive(d.chain("next", "beneath")), guest.Affect{Live: true}, false))
	d.wantChain(g, "with another medium", "sda", "9:next 10:beneath")
	if text, err := domainxml.Format(g.View().Inactive, domainxml.Style{}); err != nil || strings.Contains(text, "backingStore") {
		t.Errorf("the definition says (%v)\n%s", err, text)
	}

	d.reopen(func() {})
	g = d.again(g)
	d.wantChain(g, "adopted", "vda", "4:top 5:mid 6:base")
	d.wantChain(g, "adopted", "vdb", "7:plugged 8:under")
	d.wantChain(g, "adopted", "sda", "9:next 10:beneath")
	ok(t, g.Detach(d.ctx(), qcow2Disk("/whatever", "vdb"), guest.Affect{Live: true}))
	if got := strings.Join(d.nodes(g), " "); got != "libvirt-10-format libvirt-10-storage "+allOf+" libvirt-9-format libvirt-9-storage" {
		t.Errorf("after a disk has gone QEMU has %s", got)
	}
	ok(t, g.Attach(d.ctx(), qcow2Disk(filepath.Join(d.dir, "plugged"), "vdb"), guest.Affect{Live: true}))
	d.wantChain(g, "plugged again", "vdb", "11:plugged 12:under")
	ok(t, g.Update(d.ctx(), strings.Replace(drive(""), "<source file=''/>", "", 1), guest.Affect{Live: true}, false))
	d.wantChain(g, "without a medium", "sda", "")
}
