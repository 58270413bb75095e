package guest_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// The emulator of a guest's TPM has no capability and cannot gain one, and still serves the guest.
// Promise: I20
func TestTPM_NoPrivileges(t *testing.T) {
	if _, err := exec.LookPath("swtpm"); err != nil {
		t.Skip("needs swtpm")
	}
	for _, isolated := range []bool{true, false} {
		t.Run(fmt.Sprintf("isolated=%v", isolated), func(t *testing.T) { testTPM(t, isolated) })
	}
}

func testTPM(t *testing.T, isolated bool) {
	d := newDaemonOf(t, isolated)
	g := d.define(small("tpm", "<tpm model='tpm-crb'><backend type='emulator' version='2.0'/></tpm>"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	own := filepath.Join(d.dir, "run/guest", g.UUID)
	if isolated {
		own = filepath.Join(own, "own")
	}
	pid, err := os.ReadFile(filepath.Join(own, "swtpm.pid"))
	ok(t, err)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%s/status", strings.TrimSpace(string(pid))))
	ok(t, err)
	var of unix.Stat_t
	ok(t, unix.Stat(fmt.Sprintf("/proc/%d", d.pid("tpm")), &of)) // QEMU's
	for _, want := range []string{fmt.Sprintf("Uid:\t%d\t", of.Uid), "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1"} {
		if !strings.Contains(string(status), want) {
			t.Errorf("swtpm has no %q:\n%s", want, status)
		}
	}
	if isolated == (of.Uid == 0) {
		t.Errorf("it runs as user %d", of.Uid)
	}
	for _, bound := range []string{"cgroup", "oom_score_adj"} { // QEMU's, too
		its, err := os.ReadFile(fmt.Sprintf("/proc/%s/%s", strings.TrimSpace(string(pid)), bound))
		ok(t, err)
		qemus, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", d.pid("tpm"), bound))
		if ok(t, err); string(its) != string(qemus) {
			t.Errorf("its %s is\n%s and QEMU's\n%s", bound, its, qemus)
		}
	}
	if !isolated {
		return
	}
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%s/limits", strings.TrimSpace(string(pid))))
	ok(t, err)
	if !regexp.MustCompile(`(?s)Max file size +4194304 +4194304 .*Max open files +256 +256 `).Match(limits) {
		t.Errorf("its limits of file size and descriptors are\n%s", limits)
	}
	// The next start has another user, who must find the same state.
	before := stateOf(t, d, g.UUID)
	ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
	// In the meantime it belongs to root: another guest may get the number of the old user.
	ok(t, filepath.WalkDir(filepath.Join(d.dir, "data/guest/tpm", g.UUID), func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err == nil && info.Sys().(*syscall.Stat_t).Uid != 0 {
			t.Errorf("%s belongs to user %d", path, info.Sys().(*syscall.Stat_t).Uid)
		}
		return err
	}))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	if after := stateOf(t, d, g.UUID); !os.SameFile(before, after) || before.Sys().(*syscall.Stat_t).Uid == after.Sys().(*syscall.Stat_t).Uid {
		t.Errorf("the state belonged to user %d, and now to %d", before.Sys().(*syscall.Stat_t).Uid, after.Sys().(*syscall.Stat_t).Uid)
	}
}

// stateOf looks at the directory of a TPM's state.
func stateOf(t *testing.T, d *daemon, uuid string) os.FileInfo {
	t.Helper()
	info, err := os.Stat(filepath.Join(d.dir, "data/guest/tpm", uuid))
	ok(t, err)
	return info
}

// The state of a TPM holds secrets: it goes with a guest that was undefined as it ran, or
// never was defined, when that ends, for the next of its UUID must not find it.
// Promise: K9
func TestTPM_TransientGuest(t *testing.T) {
	if _, err := exec.LookPath("swtpm"); err != nil {
		t.Skip("needs swtpm")
	}
	d := newDaemon(t)
	doc := func(name, more string) string {
		return small(name, "<tpm model='tpm-crb'><backend type='emulator' version='2.0'"+more+"/></tpm>")
	}
	undefined := func(o guest.UndefineOptions) func(string, string) *guest.Guest {
		return func(name, more string) *guest.Guest {
			g := d.define(doc(name, more))
			ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{Paused: true}))
			ok(t, guest.Undefine(d.ctx(), g, scope.Daemon("a test"), o))
			return g
		}
	}
	created := func(name, more string) *guest.Guest {
		g, err := guest.Create(d.ctx(), d.Registry, scope.Daemon("a test"), doc(name, more), launch.StartOptions{Paused: true})
		ok(t, err)
		return g
	}
	destroyed := func(g *guest.Guest) { ok(t, guest.Destroy(d.ctx(), d.again(g), scope.Daemon("a test"), false)) }
	for name, c := range map[string]struct {
		more  string
		begin func(name, more string) *guest.Guest
		end   func(*guest.Guest)
		stays bool
	}{
		"undefined":   {"", undefined(guest.UndefineOptions{}), destroyed, false},
		"kept":        {"", undefined(guest.UndefineOptions{KeepTPM: true}), destroyed, true},
		"persistent":  {" persistent_state='yes'", undefined(guest.UndefineOptions{}), destroyed, true},
		"transient":   {"", created, destroyed, false},
		"handed-over": {"", undefined(guest.UndefineOptions{KeepTPM: true}), func(g *guest.Guest) { d.reopen(func() {}); destroyed(g) }, true},
		"buried": {"", undefined(guest.UndefineOptions{}), func(g *guest.Guest) {
			pid := d.pid("buried")
			d.reopen(func() {
				ok(t, syscall.Kill(pid, syscall.SIGKILL))
				_, err := syscall.Wait4(pid, nil, 0, nil)
				ok(t, err)
			})
		}, false},
	} {
		g := c.begin(name, c.more)
		stateOf(t, d, g.UUID)
		c.end(g)
		if _, err := os.Stat(filepath.Join(d.dir, "data/guest/tpm", g.UUID)); (err == nil) != c.stays {
			t.Errorf("%s: after the guest's end its TPM's state: %v", name, err)
		}
	}
	before, err := os.ReadDir(filepath.Join(d.dir, "data/guest/tpm"))
	ok(t, err)
	_, err = guest.Create(d.ctx(), d.Registry, scope.Daemon("a test"), strings.Replace(doc("refused", ""), "</domain>",
		`<commandline xmlns='http://libvirt.org/schemas/domain/qemu/1.0'><arg value='-no-such-option'/></commandline></domain>`, 1), launch.StartOptions{})
	refused(t, err, fault.Failed, "no-such-option")
	if after, err := os.ReadDir(filepath.Join(d.dir, "data/guest/tpm")); err != nil || len(after) != len(before) {
		t.Errorf("a guest that never ran leaves a TPM's state: %v, %v", after, err)
	}
}

// The end of a guest's TPM is reported, also by a daemon that did not run at that time. The guest keeps running,
// and has the TPM again after its next start.
// Promise: F27
func TestTPM_EndReported(t *testing.T) {
	if _, err := exec.LookPath("swtpm"); err != nil {
		t.Skip("needs swtpm")
	}
	d := newDaemonOf(t, true)
	const tpm = "<tpm model='tpm-crb'><backend type='emulator' version='2.0'/></tpm>"
	seen, unseen := d.define(small("seen", tpm)), d.define(small("unseen", tpm))
	kill := func(g *guest.Guest) {
		pid, err := os.ReadFile(filepath.Join(guest.RunDir(g), "own/swtpm.pid"))
		ok(t, err)
		n, err := strconv.Atoi(strings.TrimSpace(string(pid)))
		ok(t, err)
		ok(t, syscall.Kill(n, syscall.SIGKILL))
	}
	told := func(g *guest.Guest) bool { return strings.Contains(strings.Join(g.View().Messages, "\n"), "swtpm") }
	for _, g := range []*guest.Guest{seen, unseen} {
		ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	}
	kill(seen)
	eventually(t, "the guest says that its TPM has ended", func() bool { return told(seen) })
	if told(unseen) {
		t.Error("one is told of whose TPM is there")
	}
	d.reopen(func() { kill(unseen) })
	seen, unseen = d.again(seen), d.again(unseen)
	eventually(t, "the next daemon tells of TPMs that have ended", func() bool { return told(seen) && told(unseen) })
	d.want(unseen, domain.Running, domain.ReasonBooted)
	ok(t, guest.Destroy(d.ctx(), unseen, scope.Daemon("a test"), false))
	ok(t, launch.Start(d.ctx(), unseen, scope.Daemon("a test"), launch.StartOptions{}))
	if told(unseen) {
		t.Error("it has its TPM again and is still said to have none")
	}
}

// A TPM emulator that ends slowly with its guest is not reported as failed.
// Promise: F27
func TestTPM_EndWithGuestNotReported(t *testing.T) {
	if _, err := exec.LookPath("swtpm"); err != nil {
		t.Skip("needs swtpm")
	}
	d := newDaemonOf(t, true)
	d.heard = make(chan string, 1000)
	d.reopen(func() {})
	g := d.define(small("slow", "<tpm model='tpm-crb'><backend type='emulator' version='2.0'/></tpm>"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	pid, err := os.ReadFile(filepath.Join(guest.RunDir(g), "own/swtpm.pid"))
	ok(t, err)
	n, err := strconv.Atoi(strings.TrimSpace(string(pid)))
	ok(t, err)
	d.reopen(func() {})
	g = d.again(g)
	ok(t, syscall.Kill(d.pid("slow"), syscall.SIGSTOP))
	ok(t, syscall.Kill(n, syscall.SIGKILL))
	if err := guest.Destroy(d.ctx(), g, scope.Daemon("a test"), true); !fault.Is(err, fault.Timeout) { // for longer than an emulator is waited for
		t.Errorf("a QEMU that is stopped ended gracefully: %v", err)
	}
	ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
	for len(d.heard) > 0 {
		if said := <-d.heard; strings.Contains(said, "TPM emulator") {
			t.Errorf("of a guest that is being ended is said: %s", said)
		}
	}
}
