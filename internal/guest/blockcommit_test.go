package guest_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/blockjob"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// committing has a guest run on three images, top, mid and base.
func (d *daemon) committing() *guest.Guest {
	d.t.Helper()
	g := d.define(small("a", qcow2Disk(d.chain("top", "mid", "base"), "vda")))
	ok(d.t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	return g
}

// writes has the guest's device write a megabyte of a pattern, and flush it.
func (d *daemon) writes(g *guest.Guest, pattern, at int) {
	d.t.Helper()
	for _, command := range []string{fmt.Sprintf("write -P %d %dM 1M", pattern, at), "flush"} {
		var said string
		d.qmp(g, &said, "human-monitor-command", map[string]any{
			"command-line": fmt.Sprintf(`qemu-io -d /machine/peripheral/virtio-disk0/virtio-backend "%s"`, command),
		})
		if strings.Contains(strings.ToLower(said), "error") || strings.Contains(said, "failed") {
			d.t.Fatalf("cannot write as the guest: %s", said)
		}
	}
}

// holds compares what an image holds: the pattern of each of its first megabytes.
func (d *daemon) holds(name string, patterns ...int) {
	d.t.Helper()
	for at, pattern := range patterns {
		out := d.run("qemu-io", "-U", "-r", "-f", "qcow2", "-c", fmt.Sprintf("read -P %d %dM 1M", pattern, at), filepath.Join(d.dir, name))
		if strings.Contains(out, "verification failed") {
			d.t.Errorf("%s does not hold %d at %d MiB: %s", name, pattern, at, out)
		}
	}
}

// isReady waits until clients see that the commit is ready.
func (d *daemon) isReady(g *guest.Guest) {
	d.t.Helper()
	eventually(d.t, "a commit that is ready", func() bool {
		return strings.Contains(d.shown(g, "vda"), "<mirror type='file' job='active-commit' ready='yes'>")
	})
	b, found, err := blockjob.QueryJob(d.ctx(), g, scope.Daemon("a test"), "vda")
	if err != nil || !found || b.Kind != "active-commit" || b.Done != b.Total {
		d.t.Errorf("the job is told as %+v, %v, %v", b, found, err)
	}
}

// noJobLeft checks that nothing of a job is left.
func (d *daemon) noJobLeft(g *guest.Guest) {
	d.t.Helper()
	eventually(d.t, "no job", func() bool {
		_, found, err := blockjob.QueryJob(d.ctx(), g, scope.Daemon("a test"), "vda")
		return err == nil && !found
	})
	if all := d.jobs(g); len(all) > 0 {
		d.t.Errorf("QEMU still has %+v", all)
	}
	noOperation(d.t, g)
	if text := d.shown(g, "vda"); strings.Contains(text, "<mirror") {
		d.t.Errorf("a mirror is still shown:\n%s", text)
	}
}

// startsAgain checks that the guest starts on a chain, whatever a QEMU wrote into the headers.
func (d *daemon) startsAgain(g *guest.Guest, chain string) {
	d.t.Helper()
	ok(d.t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
	ok(d.t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	d.wantChain(g, "started again", "vda", chain)
}

var activeCommit = blockjob.CommitOptions{Active: true}

func TestBlockCommit_Pivot(t *testing.T) {
	d := newDaemonOf(t, true)
	g := d.committing()
	ok(t, blockjob.BlockCommit(d.ctx(), g, scope.Daemon("a test"), "vda", activeCommit))
	d.isReady(g)
	d.writes(g, 9, 3)
	ok(t, blockjob.EndBlockJob(d.ctx(), g, scope.Daemon("a test"), "vda", true, false))
	d.noJobLeft(g)
	d.wantChain(g, "after the pivot", "vda", "3:base")
	d.want(g, domain.Running, domain.ReasonUnpaused)
	if path := g.View().Inactive.Devices.Disks[0].Source.Path(); filepath.Base(path) != "base" {
		t.Errorf("the stored definition has %s", path)
	}
	if got := strings.Join(d.nodes(g), " "); got != "libvirt-3-format libvirt-3-storage" {
		t.Errorf("QEMU has %s", got)
	}
	d.writes(g, 8, 4)
	for _, name := range []string{"top", "mid"} {
		if ways := d.opened(g, filepath.Join(d.dir, name)); len(ways) > 0 {
			t.Errorf("%s is still open %v", name, ways)
		}
		if mark := d.noted(filepath.Join(d.dir, name)); mark != "" {
			t.Errorf("of %s is noted still %q", name, mark)
		}
	}
	d.startsAgain(g, "1:base")
	ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
	d.holds("base", 1, 2, 3, 9, 8)
}

func TestBlockCommit_Aborted(t *testing.T) {
	d := newDaemonOf(t, true)
	g := d.committing()
	for range 2 {
		ok(t, blockjob.BlockCommit(d.ctx(), g, scope.Daemon("a test"), "vda", activeCommit))
		d.isReady(g)
		refused(t, blockjob.BlockCommit(d.ctx(), g, scope.Daemon("a test"), "vda", activeCommit), fault.Busy, "disk 'vda' already in active block job")
		refused(t, savestate.Save(d.ctx(), g, scope.Daemon("a test"), filepath.Join(d.dir, "saved"), savestate.SaveOptions{}), fault.WrongState, "blockcommit")
		refused(t, hotplug.Detach(d.ctx(), g, scope.Daemon("a test"), qcow2Disk("/x", "vda"), machine.Affect{Live: true}), fault.WrongState, "blockcommit")
		ok(t, blockjob.EndBlockJob(d.ctx(), g, scope.Daemon("a test"), "vda", false, false))
		d.noJobLeft(g)
		d.wantChain(g, "after the abort", "vda", "1:top 2:mid 3:base")
		if ways := d.opened(g, filepath.Join(d.dir, "base")); len(ways) != 1 || ways[0] != "ro" {
			t.Errorf("the base is open %v", ways)
		}
	}
	refused(t, blockjob.EndBlockJob(d.ctx(), g, scope.Daemon("a test"), "vda", true, false), fault.Invalid, "does not have an active block job")
	d.writes(g, 9, 3)
	d.startsAgain(g, "1:top 2:mid 3:base")
	ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
	d.holds("top", 1, 2, 3, 9)
}

func TestBlockCommit_BelowTheTop(t *testing.T) {
	for _, c := range []struct {
		name, top, chain, again string
		relative                bool
	}{
		{"right below", "b", "1:a 4:d", "1:a 2:d", false},
		{"further down", "c", "1:a 2:b 4:d", "1:a 2:b 3:d", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDaemonOf(t, true)
			g := d.define(small("a", qcow2Disk(d.chain("a", "b", "c", "d"), "vda")))
			ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
			ok(t, blockjob.BlockCommit(d.ctx(), g, scope.Daemon("a test"), "vda", blockjob.CommitOptions{Top: filepath.Join(d.dir, c.top), Base: filepath.Join(d.dir, "d")}))
			d.noJobLeft(g)
			d.wantChain(g, "after it", "vda", c.chain)
			if ways := d.opened(g, filepath.Join(d.dir, "d")); len(ways) != 1 || ways[0] != "ro" {
				t.Errorf("the base is open %v", ways)
			}
			d.startsAgain(g, c.again)
			ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
			d.holds("a", 1, 2, 3, 4)
		})
	}
}

// The next daemon finds a commit that is ready, shows it, and ends it as its client asks.
func TestBlockCommit_NextDaemon(t *testing.T) {
	d := newDaemonOf(t, true)
	g := d.committing()
	ok(t, blockjob.BlockCommit(d.ctx(), g, scope.Daemon("a test"), "vda", activeCommit))
	d.isReady(g)
	d.reopen(func() {})
	g = d.again(g)
	d.isReady(g)
	ok(t, blockjob.EndBlockJob(d.ctx(), g, scope.Daemon("a test"), "vda", true, false))
	d.noJobLeft(g)
	d.wantChain(g, "after the pivot", "vda", "3:base")
}

// After its QEMU is killed, a guest starts on a chain that contains all completed writes.
func TestBlockCommit_QEMUKilled(t *testing.T) {
	for _, c := range []struct {
		name  string
		pivot bool
		chain string
	}{{"ready", false, "1:top 2:mid 3:base"}, {"after the pivot", true, "1:base"}} {
		t.Run(c.name, func(t *testing.T) {
			d := newDaemonOf(t, true)
			g := d.committing()
			ok(t, blockjob.BlockCommit(d.ctx(), g, scope.Daemon("a test"), "vda", activeCommit))
			d.isReady(g)
			d.writes(g, 9, 3)
			if c.pivot {
				ok(t, blockjob.EndBlockJob(d.ctx(), g, scope.Daemon("a test"), "vda", true, false))
			}
			ok(t, syscall.Kill(g.View().PID, syscall.SIGKILL))
			d.settle(g, domain.ShutOff)
			ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
			d.wantChain(g, "started again", "vda", c.chain)
			ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
			d.holds(strings.Split(strings.Fields(c.chain)[0], ":")[1], 1, 2, 3, 9)
		})
	}
}

// A guest that is paused stays so, and what QEMU keeps of the images until it runs is taken from it then.
func TestBlockCommit_Paused(t *testing.T) {
	d := newDaemonOf(t, true)
	g := d.committing()
	ok(t, guest.Suspend(d.ctx(), g, scope.Daemon("a test")))
	ok(t, blockjob.BlockCommit(d.ctx(), g, scope.Daemon("a test"), "vda", activeCommit))
	d.isReady(g)
	ok(t, blockjob.EndBlockJob(d.ctx(), g, scope.Daemon("a test"), "vda", false, false))
	refused(t, blockjob.BlockCommit(d.ctx(), g, scope.Daemon("a test"), "vda", activeCommit), fault.Busy, "closes the images of a paused guest when it runs")
	ok(t, guest.Resume(d.ctx(), g, scope.Daemon("a test")))
	eventually(t, "no operation", func() bool { return len(operations(t, g)) == 0 })
	if ways := d.opened(g, filepath.Join(d.dir, "base")); len(ways) != 1 || ways[0] != "ro" {
		t.Errorf("the base is open %v", ways)
	}
	ok(t, guest.Suspend(d.ctx(), g, scope.Daemon("a test")))
	ok(t, blockjob.BlockCommit(d.ctx(), g, scope.Daemon("a test"), "vda", activeCommit))
	d.isReady(g)
	ok(t, blockjob.EndBlockJob(d.ctx(), g, scope.Daemon("a test"), "vda", true, false))
	d.want(g, domain.Paused, domain.ReasonUser)
	d.wantChain(g, "after the pivot", "vda", "3:base")
	ok(t, guest.Resume(d.ctx(), g, scope.Daemon("a test")))
	eventually(t, "the images closed", func() bool { return len(d.opened(g, filepath.Join(d.dir, "top"))) == 0 })
	eventually(t, "no operation", func() bool { return len(operations(t, g)) == 0 })
	if mark := d.noted(filepath.Join(d.dir, "top")); mark != "" {
		t.Errorf("of the image that went is noted still %q", mark)
	}
}

// slowCommit starts to commit b into d, below the a that the guest writes. The job does not end on its own.
func (d *daemon) slowCommit() *guest.Guest {
	d.t.Helper()
	g := d.define(small("a", qcow2Disk(d.chain("a", "b", "c", "d"), "vda")))
	ok(d.t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	ok(d.t, blockjob.BlockCommit(d.ctx(), g, scope.Daemon("a test"), "vda", blockjob.CommitOptions{Top: filepath.Join(d.dir, "b"), Base: filepath.Join(d.dir, "d"), Speed: 1}))
	return g
}

// libvirt says of each job that is not ready that it is not, also of one that never is.
func TestBlockCommit_NoPivotBelowTheTop(t *testing.T) {
	d := newDaemonOf(t, true)
	g := d.slowCommit()
	refused(t, blockjob.EndBlockJob(d.ctx(), g, scope.Daemon("a test"), "vda", true, false), fault.Busy, "not ready for pivot yet")
	refused(t, blockjob.EndBlockJob(d.ctx(), g, scope.Daemon("a test"), "vda", true, true), fault.Busy, "not ready for pivot yet")
	ok(t, blockjob.EndBlockJob(d.ctx(), g, scope.Daemon("a test"), "vda", false, false))
	d.noJobLeft(g)
}

// A guest's resources are released even if its images were removed.
func TestBlockCommit_ImageRemoved(t *testing.T) {
	d := newDaemonOf(t, true)
	d.reopen(func() { d.heard = make(chan string, 10_000) })
	g := d.slowCommit()
	ok(t, os.Remove(filepath.Join(d.dir, "a")))
	ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
	for len(d.heard) > 0 {
		if line := <-d.heard; strings.Contains(line, "cannot settle an operation") {
			t.Error(line)
		}
	}
}

// A daemon could not store the state of the chain, and QEMU has forgotten the commit job. The image header tells
// the state.
func TestBlockCommit_JobForgotten(t *testing.T) {
	d := newDaemonOf(t, true)
	g := d.slowCommit()
	d.close()
	s, err := qmp.Dial(d.ctx(), filepath.Join(guest.RunDir(g), "monitor.sock"), quiet())
	ok(t, err)
	forget := func() bool {
		var jobs []struct{ ID, Status string }
		ok(t, s.Execute(d.ctx(), "query-jobs", nil, &jobs))
		for _, j := range jobs {
			switch j.Status {
			case "pending":
				ok(t, s.Execute(d.ctx(), "job-finalize", map[string]any{"id": j.ID}, nil))
			case "concluded":
				ok(t, s.Execute(d.ctx(), "job-dismiss", map[string]any{"id": j.ID}, nil))
			}
		}
		return len(jobs) == 0
	}
	ok(t, s.Execute(d.ctx(), "block-job-set-speed", map[string]any{"device": "commit-vda-libvirt-2-format", "speed": 0}, nil))
	eventually(t, "no job", forget)
	s.Close()
	d.open()
	g = d.again(g)
	d.noJobLeft(g)
	d.wantChain(g, "after it", "vda", "1:a 4:d")
}
