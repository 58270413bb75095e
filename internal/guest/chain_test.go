package guest_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/host/volume"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/word/scope"
	"github.com/lodge-kvm/lodge/internal/word/scope/scopetest"
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

func (d *daemon) run(name string, args ...string) string {
	d.t.Helper()
	out, err := exec.CommandContext(d.t.Context(), name, args...).CombinedOutput()
	if err != nil {
		d.t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
	return string(out)
}

func qcow2Disk(path, target string) string {
	return fmt.Sprintf(`<disk type='file' device='disk'><driver name='qemu' type='qcow2'/><source file='%s'/><target dev='%s' bus='virtio'/></disk>`, path, target)
}

// lets is a guest without ACPI. QEMU removes its devices without the guest's cooperation.
func lets(name string, devices ...string) string {
	return strings.Replace(small(name, devices...), "<acpi/>", "", 1)
}

// qmp gives QEMU a command and its answer.
func (d *daemon) qmp(g *guest.Guest, into any, command string, args any) {
	d.t.Helper()
	if err := guest.Session(g).Execute(d.ctx(), command, args, into); err != nil {
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
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
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
	ok(t, hotplug.Attach(d.ctx(), g, scope.Daemon("a test"), qcow2Disk(d.chain("plugged", "under"), "vdb"), machine.Affect{Live: true}))
	d.wantChain(g, "plugged", "vdb", "7:plugged 8:under")
	ok(t, hotplug.Update(d.ctx(), g, scope.Daemon("a test"), drive(d.chain("next", "beneath")), machine.Affect{Live: true}, false))
	d.wantChain(g, "with another medium", "sda", "9:next 10:beneath")
	if text, err := domainxml.Format(g.View().Inactive, domainxml.Style{}); err != nil || strings.Contains(text, "backingStore") {
		t.Errorf("the definition says (%v)\n%s", err, text)
	}

	d.reopen(func() {})
	g = d.again(g)
	d.wantChain(g, "adopted", "vda", "4:top 5:mid 6:base")
	d.wantChain(g, "adopted", "vdb", "7:plugged 8:under")
	d.wantChain(g, "adopted", "sda", "9:next 10:beneath")
	ok(t, hotplug.Detach(d.ctx(), g, scope.Daemon("a test"), qcow2Disk("/whatever", "vdb"), machine.Affect{Live: true}))
	if got := strings.Join(d.nodes(g), " "); got != "libvirt-10-format libvirt-10-storage "+allOf+" libvirt-9-format libvirt-9-storage" {
		t.Errorf("after a disk has gone QEMU has %s", got)
	}
	ok(t, hotplug.Attach(d.ctx(), g, scope.Daemon("a test"), qcow2Disk(filepath.Join(d.dir, "plugged"), "vdb"), machine.Affect{Live: true}))
	d.wantChain(g, "plugged again", "vdb", "11:plugged 12:under")
	ok(t, hotplug.Update(d.ctx(), g, scope.Daemon("a test"), strings.Replace(drive(""), "<source file=''/>", "", 1), machine.Affect{Live: true}, false))
	d.wantChain(g, "without a medium", "sda", "")
}

// jobs are QEMU's, with their status and why they failed.
func (d *daemon) jobs(g *guest.Guest) (all []struct{ ID, Status, Error string }) {
	d.t.Helper()
	d.qmp(g, &all, "query-jobs", nil)
	return all
}

// awaitJob waits until a QEMU job has a status that its events report.
func (d *daemon) awaitJob(g *guest.Guest, status string) {
	d.t.Helper()
	for ctx := d.ctx(); ctx.Err() == nil; {
		if all := d.jobs(g); len(all) == 1 && all[0].Status == status {
			return
		}
	}
	d.t.Fatalf("no job is %s: %+v", status, d.jobs(g))
}

// opened lists how QEMU has an image open.
func (d *daemon) opened(g *guest.Guest, path string) (ways []string) {
	d.t.Helper()
	fds := fmt.Sprintf("/proc/%d/fd", g.View().PID)
	entries, err := os.ReadDir(fds)
	ok(d.t, err)
	for _, e := range entries {
		if at, err := os.Readlink(filepath.Join(fds, e.Name())); err != nil || at != path {
			continue
		}
		info, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", g.View().PID, e.Name()))
		ok(d.t, err)
		var pos, flags int
		_, err = fmt.Sscanf(string(info), "pos:\t%d\nflags:\t%o", &pos, &flags)
		ok(d.t, err)
		ways = append(ways, map[int]string{unix.O_RDONLY: "ro", unix.O_RDWR: "rw"}[flags&unix.O_ACCMODE])
	}
	slices.Sort(ways)
	return slices.Compact(ways)
}

// An image that QEMU reads is lent to it to write, whether its disk was there from the start or was plugged in; a
// job writes there then, and is refused before. When it is taken back QEMU cannot write there any more.
func TestLendToWrite(t *testing.T) {
	d := newDaemonOf(t, true)
	d.chain("top", "mid", "base")
	d.chain("top2", "mid2", "base2")
	at := func(name string) string { return filepath.Join(d.dir, name) }
	g := d.define(lets("a", qcow2Disk(at("top"), "vda")))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	ok(t, hotplug.Attach(d.ctx(), g, scope.Daemon("a test"), qcow2Disk(at("top2"), "vdb"), machine.Affect{Live: true}))
	for _, c := range []struct {
		target, suffix string
		top            uint
	}{{"vda", "", 1}, {"vdb", "2", 4}} {
		mid, base := c.top+1, c.top+2
		commit := map[string]any{
			"job-id": "j", "device": qemu.FormatNode(c.top), "top-node": qemu.FormatNode(mid), "base-node": qemu.FormatNode(base),
			"backing-file": at("base" + c.suffix), "auto-finalize": false, "auto-dismiss": false,
		}
		if err := guest.Session(g).Execute(d.ctx(), "block-commit", commit, nil); err == nil {
			t.Fatal("QEMU writes to an image that it was not lent")
		}
		for range 2 { // as a daemon would that was killed after it had lent it
			ok(t, guest.LendToWrite(d.ctx(), g, c.target, 2))
		}
		d.qmp(g, nil, "block-commit", commit)
		d.awaitJob(g, "pending")
		if d.noted(at("top"+c.suffix)) != "" && d.noted(at("base"+c.suffix)) == "" { // else no file here keeps notes
			t.Errorf("%s: of what the base lies on nothing is noted", c.target)
		}
		if ways := d.opened(g, at("base"+c.suffix)); !slices.Contains(ways, "rw") {
			t.Errorf("%s: during the job the base is open %v", c.target, ways)
		}
		d.qmp(g, nil, "job-finalize", map[string]any{"id": "j"})
		d.awaitJob(g, "concluded")
		if all := d.jobs(g); all[0].Error != "" {
			t.Errorf("%s: %s", c.target, all[0].Error)
		}
		d.qmp(g, nil, "job-dismiss", map[string]any{"id": "j"})
		for range 2 {
			kept, err := guest.TakeBackToRead(d.ctx(), g, base, at("base"+c.suffix), "qcow2")
			if err != nil || kept {
				t.Errorf("%s: taken back: %v, kept is %v", c.target, err, kept)
			}
		}
		if ways := d.opened(g, at("base"+c.suffix)); !slices.Equal(ways, []string{"ro"}) {
			t.Errorf("%s: after the job the base is open %v", c.target, ways)
		}
		if out := d.run("qemu-io", "-U", "-r", "-f", "qcow2", "-c", "read -P 2 1M 1M", at("base"+c.suffix)); strings.Contains(out, "verification failed") {
			t.Errorf("%s: the base lacks committed data: %s", c.target, out)
		}
		if out := d.run("qemu-img", "info", "-U", at("top"+c.suffix)); !strings.Contains(out, "backing file: "+at("base"+c.suffix)+"\n") || !strings.Contains(out, "backing file format: qcow2") {
			t.Errorf("%s: the top lies on\n%s", c.target, out)
		}
	}
}

// A job that was to put an image in the place of the top one and is cancelled leaves it open to write, until it is
// taken back.
func TestLendToWrite_CancelledJob(t *testing.T) {
	d := newDaemonOf(t, true)
	top, base := d.chain("top", "mid", "base"), filepath.Join(d.dir, "mid")
	g := d.define(small("a", strings.Replace(qcow2Disk(top, "vda"), "type='qcow2'", "type='qcow2' cache='none' discard='unmap'", 1)))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	for range 2 {
		ok(t, guest.LendToWrite(d.ctx(), g, "vda", 1))
		d.qmp(g, nil, "block-commit", map[string]any{
			"job-id": "j", "device": "libvirt-1-format", "top-node": "libvirt-1-format", "base-node": "libvirt-2-format", "auto-dismiss": false,
		})
		d.awaitJob(g, "ready")
		d.qmp(g, nil, "job-cancel", map[string]any{"id": "j"})
		d.awaitJob(g, "concluded")
		d.qmp(g, nil, "job-dismiss", map[string]any{"id": "j"})
		if ways := d.opened(g, base); !slices.Contains(ways, "rw") {
			t.Errorf("QEMU has the base open %v by itself", ways)
		}
		for range 2 {
			if kept, err := guest.TakeBackToRead(d.ctx(), g, 2, base, "qcow2"); err != nil || kept {
				t.Errorf("taken back: %v, kept is %v", err, kept)
			}
		}
		if ways := d.opened(g, base); !slices.Equal(ways, []string{"ro"}) {
			t.Errorf("taken back, the base is open %v", ways)
		}
	}
	if mark := d.noted(base); mark != "" {
		t.Errorf("of the base is noted still %q", mark)
	}
}

// noted returns the note on an image that a QEMU has to write: an extended attribute.
func (d *daemon) noted(path string) string {
	text := make([]byte, 256)
	n, err := unix.Getxattr(path, "trusted.lodge.backing", text)
	if err != nil {
		return ""
	}
	return string(text[:n])
}

// What others have of a disk's images is not changed: a guest that is defined, a template, a volume that lies on it,
// another disk of the guest's own.
func TestCheckSoleUser(t *testing.T) {
	d := newDaemonOf(t, true)
	top := d.chain("top", "mid", "base")
	at := func(name string) string { return filepath.Join(d.dir, name) }
	g := d.define(small("a", qcow2Disk(top, "vda")))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	ok(t, guest.CheckSoleUser(d.ctx(), g, "vda", 0, 2))

	d.run("qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", at("mid"), at("other"))
	b := d.define(small("b", qcow2Disk(at("other"), "vda")))
	refused(t, guest.CheckSoleUser(d.ctx(), g, "vda", 1, 2), fault.WrongState, `cannot change `+at("mid")+`: disk vda of domain "b" uses it`)
	refused(t, guest.CheckSoleUser(d.ctx(), g, "vda", 2, 2), fault.WrongState, `cannot change `+at("base"))
	ok(t, guest.CheckSoleUser(d.ctx(), g, "vda", 0, 0))
	ok(t, guest.Undefine(d.ctx(), b, scope.Daemon("a test"), guest.UndefineOptions{}))
	ok(t, guest.CheckSoleUser(d.ctx(), g, "vda", 0, 2))

	pool, err := d.pools.Define(d.ctx(), scope.Daemon("a test"), "<pool type='dir'><name>p</name><target><path>"+at("pool")+"</path></target></pool>", false)
	ok(t, err)
	ok(t, pool.Start(d.ctx(), scope.Daemon("a test"), volume.MakeTarget))
	_, err = pool.CreateVolume(d.ctx(), scope.Daemon("a test"), "<volume><name>thin</name><target><format type='qcow2'/></target><backingStore><path>"+at("base")+"</path><format type='qcow2'/></backingStore></volume>", volume.CreateOptions{})
	ok(t, err)
	refused(t, guest.CheckSoleUser(d.ctx(), g, "vda", 1, 2), fault.WrongState, `volume "thin" of pool "p" is backed by it`)
	ok(t, pool.DeleteVolume(d.ctx(), scope.Daemon("a test"), "thin"))
	ok(t, guest.CheckSoleUser(d.ctx(), g, "vda", 0, 2))
}

// TestCheckSoleUser_HeldClient: a client that may not open the files of other guests cannot change their data, and
// does not learn their names.
//
// Promise: A1, A3
func TestCheckSoleUser_HeldClient(t *testing.T) {
	d := newDaemonOf(t, true)
	top := d.chain("top", "mid", "base")
	at := func(name string) string { return filepath.Join(d.dir, name) }
	g := d.define(small("a", qcow2Disk(top, "vda")))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	ok(t, os.Mkdir(at("others"), 0o755))
	d.run("qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", at("mid"), at("others/top"))
	b := d.define(small("hidden", qcow2Disk(at("others/top"), "vda")))
	client := func(mayChange bool) scope.Scope {
		return scopetest.Client(scopetest.Limits{Call: func(uuid string) error {
			if uuid == b.UUID() && !mayChange {
				return fault.New(fault.Denied, fault.Call, "no")
			}
			return nil
		}}).Within([]string{at("mine")}).AlreadyAuthorized()
	}
	err := guest.CheckSoleUserFor(d.ctx(), g, client(false), "vda", 1, 2)
	refused(t, err, fault.WrongState, `cannot change `+at("mid")+`: a domain that this client may not change uses it`)
	if err != nil && (strings.Contains(err.Error(), "hidden") || strings.Contains(err.Error(), "others")) {
		t.Errorf("the client learns of the other guest: %v", err)
	}
	refused(t, guest.CheckSoleUserFor(d.ctx(), g, client(true), "vda", 1, 2), fault.WrongState, `disk vda of domain "hidden" uses it`)
	ok(t, guest.CheckSoleUserFor(d.ctx(), g, client(false), "vda", 0, 0))
}
