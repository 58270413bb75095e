package guest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	whole "github.com/lodge-kvm/lodge/internal/daemon"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/console"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
	"github.com/lodge-kvm/lodge/internal/guest/statistics"
	"github.com/lodge-kvm/lodge/internal/host/volume"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/event"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

const emulator = "/usr/bin/qemu-system-x86_64"

// daemon is a registry with everything below it, as lodged has it.
type daemon struct {
	*guest.Registry
	t      *testing.T
	dir    string
	whole  *whole.Daemon
	events *event.Log
	store  *store.Store
	pools  *volume.Pools
	groups *kernel.Cgroups
	// prepared is how many QEMUs may wait for guests.
	prepared int
	// isolated runs QEMU in sandboxes.
	isolated bool
	// boot names the boot of the host.
	boot string
	// gives has new guests be given a source of random numbers.
	gives bool
	// enforces is a recorded tree of a host that has mandatory access control; "": it
	// has none. Required has guests start only with labels.
	enforces string
	required bool
	// heard gets the daemon's log; nil: it is discarded.
	heard chan string
}

// newDaemon creates a daemon. Its guests end with the test.
func newDaemon(t *testing.T) *daemon {
	t.Helper()
	return newDaemonOf(t, false)
}

// newDaemonOf makes one that isolates its guests, or does not.
func newDaemonOf(t *testing.T, isolated bool) *daemon {
	t.Helper()
	if testing.Short() {
		t.Skip("starts QEMU: not among the short tests")
	}
	if _, err := os.Stat(emulator); err != nil {
		t.Skipf("no QEMU: %v", err)
	}
	if os.Getuid() != 0 {
		t.Skip("needs root for networks and control groups")
	}
	// Socket paths are bounded, and t.TempDir can be long.
	dir, err := os.MkdirTemp("", "lodge-guest-") //nolint:usetesting // for that reason
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{t: t, dir: dir, isolated: isolated}
	d.open()
	t.Cleanup(func() {
		d.destroyAll()
		d.close()
		if left := d.groups.Guests(); len(left) > 0 {
			t.Errorf("control groups are left: %v", left)
		}
		if left, err := filepath.Glob(filepath.Join(dir, "run/guest/*")); err != nil || len(left) > 0 {
			t.Errorf("run directories are left: %v (%v)", left, err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return d
}

func (d *daemon) open() {
	d.t.Helper()
	c := whole.Config{
		Data: filepath.Join(d.dir, "data"), Run: filepath.Join(d.dir, "run"),
		Log:      slog.New(slog.NewTextHandler(testLog{d.t, d.heard}, nil)),
		Prepared: d.prepared, Boot: d.boot, GiveRNG: d.gives, Isolated: d.isolated,
	}
	if d.enforces != "" {
		c.Security = kernel.At(d.enforces)
	}
	if d.required {
		c.Labels = whole.LabelsRequired
	}
	var err error
	d.whole, err = whole.Open(d.t.Context(), c)
	if d.isolated && fault.Is(err, fault.Unsupported) {
		d.t.Skipf("no sandbox here: %v", err)
	}
	if err != nil {
		d.t.Fatal(err)
	}
	d.Registry, d.events, d.store, d.pools, d.groups = d.whole.Guests, d.whole.Events, d.whole.Store, d.whole.Pools, d.whole.Groups
}

// close ends the daemon and leaves its guests running.
func (d *daemon) close() { d.whole.Close() }

func (d *daemon) destroyAll() {
	for _, g := range d.All() {
		ctx, stop := context.WithTimeout(context.Background(), time.Minute)
		if err := guest.Destroy(ctx, g, scope.Daemon("a test"), false); err != nil && !fault.Is(err, fault.WrongState) && !fault.Is(err, fault.NotFound) {
			d.t.Errorf("cannot destroy %s: %v", g.Name(), err)
		}
		stop()
	}
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// testLog shows what the daemon logs where the test fails.
type testLog struct {
	t     *testing.T
	heard chan string
}

func (l testLog) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(p)))
	if strings.Contains(string(p), "cannot close cleanly") {
		l.t.Fail()
	}
	select {
	case l.heard <- string(p):
	default:
	}
	return len(p), nil
}

// logged waits until the daemon logs a line with all pieces.
func (d *daemon) logged(pieces ...string) {
	d.t.Helper()
	late := time.After(30 * time.Second)
	for {
		select {
		case line := <-d.heard:
			if !slices.ContainsFunc(pieces, func(piece string) bool { return !strings.Contains(line, piece) }) {
				return
			}
		case <-late:
			d.t.Fatalf("no line of the log has %q", pieces)
		}
	}
}

// shelf makes a pool with a volume, and gives a disk that is this volume.
func (d *daemon) shelf() (pool *volume.Pool, disk string) {
	d.t.Helper()
	pool, err := d.pools.Define(d.ctx(), scope.Daemon("a test"), "<pool type='dir'><name>shelf</name><target><path>"+filepath.Join(d.dir, "shelf")+"</path></target></pool>", false)
	ok(d.t, err)
	ok(d.t, pool.Start(d.ctx(), scope.Daemon("a test"), volume.MakeTarget))
	_, err = pool.CreateVolume(d.ctx(), scope.Daemon("a test"), "<volume><name>v</name><capacity unit='MiB'>1</capacity></volume>", volume.CreateOptions{})
	ok(d.t, err)
	return pool, "<disk type='volume' device='disk'><driver name='qemu' type='raw'/><source pool='shelf' volume='v'/><target dev='vda' bus='virtio'/></disk>"
}

func (d *daemon) define(doc string) *guest.Guest {
	d.t.Helper()
	g, err := guest.Define(d.ctx(), d.Registry, scope.Daemon("a test"), doc, false)
	if err != nil {
		d.t.Fatal(err)
	}
	return g
}

func (d *daemon) ctx() context.Context {
	ctx, stop := context.WithTimeout(d.t.Context(), time.Minute)
	d.t.Cleanup(stop)
	return ctx
}

// small is a guest without anything to boot.
func small(name string, devices ...string) string {
	return fmt.Sprintf(`<domain type='qemu'><name>%s</name><memory unit='MiB'>64</memory><vcpu>1</vcpu>
		<os><type arch='x86_64' machine='q35'>hvm</type></os><features><acpi/><tcg><tb-cache unit='MiB'>32</tb-cache></tcg></features>
		<devices><serial type='pty'/>%s</devices></domain>`, name, strings.Join(devices, ""))
}

// wordy is a guest with more memory to save than pipes and sockets buffer, even if all its pages are empty: nine
// bytes for each page.
func wordy(name string) string {
	return strings.Replace(small(name), "<memory unit='MiB'>64<", "<memory unit='MiB'>512<", 1)
}

func (d *daemon) want(g *guest.Guest, state domain.State, reason domain.Reason) {
	d.t.Helper()
	if v := g.View(); v.State != state || v.Reason != reason {
		d.t.Fatalf("%s is %s (%s), want %s (%s)", v.Name, v.State, v.Reason, state, reason)
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func refused(t *testing.T, err error, kind fault.Kind, says string) {
	t.Helper()
	if !fault.Is(err, kind) || !strings.Contains(err.Error(), says) {
		t.Fatalf("got %v (%v), want %v saying %q", err, fault.Of(err), kind, says)
	}
}

// changes reads life-cycle events of a guest until the one wanted.
func until(t *testing.T, r *event.Reader, change event.Change, detail string) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	for {
		e, _, err := r.Next(ctx)
		if err != nil {
			t.Fatalf("no event %s %s: %v", change, detail, err)
		}
		if c, is := e.Payload.(event.DomainChange); is && c.Change == change && c.Detail == detail {
			return
		}
	}
}

func TestLifecycle_StartToShutdown(t *testing.T) {
	d := newDaemon(t)
	events := d.events.Reader()
	g := d.define(small("life"))
	until(t, events, event.Defined, event.DetailAdded)
	d.want(g, domain.ShutOff, domain.ReasonUnknown)

	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	d.want(g, domain.Running, domain.ReasonBooted)
	until(t, events, event.Started, event.DetailBooted)
	refused(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}), fault.WrongState, "already running")
	if found, err := d.ByID(g.View().ID); err != nil || found != g {
		t.Fatalf("the running guest is not found by its id: %v", err)
	}

	ok(t, guest.Suspend(d.ctx(), g, scope.Daemon("a test")))
	until(t, events, event.Suspended, event.DetailPaused)
	d.want(g, domain.Paused, domain.ReasonUser)
	ok(t, guest.Resume(d.ctx(), g, scope.Daemon("a test")))
	until(t, events, event.Resumed, event.DetailUnpaused)
	d.want(g, domain.Running, domain.ReasonUnpaused)

	ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
	until(t, events, event.Stopped, event.DetailDestroyed)
	d.want(g, domain.ShutOff, domain.ReasonDestroyed)
	refused(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false), fault.WrongState, "not running")

	ok(t, guest.Undefine(d.ctx(), g, scope.Daemon("a test"), guest.UndefineOptions{}))
	until(t, events, event.Undefined, event.DetailRemoved)
	if _, err := d.ByName("life"); !fault.Is(err, fault.NotFound) {
		t.Fatalf("an undefined guest is still there: %v", err)
	}
}

func TestTransient_ForgottenAtEnd(t *testing.T) {
	d := newDaemon(t)
	g, err := guest.Create(d.ctx(), d.Registry, scope.Daemon("a test"), small("passing"), launch.StartOptions{Paused: true})
	ok(t, err)
	d.want(g, domain.Paused, domain.ReasonUser)
	if g.View().Persistent {
		t.Fatal("a created guest is persistent")
	}
	// A definition while it runs makes it persistent.
	ok(t, func() error {
		_, err := guest.Define(d.ctx(), d.Registry, scope.Daemon("a test"), strings.Replace(small("passing"), "<name>", "<uuid>"+g.UUID+"</uuid><name>", 1), false)
		return err
	}())
	if !g.View().Persistent {
		t.Fatal("a guest defined while it ran is not persistent")
	}
	ok(t, guest.Undefine(d.ctx(), g, scope.Daemon("a test"), guest.UndefineOptions{}))
	ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
	if _, err := d.ByName("passing"); !fault.Is(err, fault.NotFound) {
		t.Fatalf("a transient guest is still there: %v", err)
	}
}

func TestStart_FailureLeavesNothing(t *testing.T) {
	d := newDaemon(t)
	g := d.define(small("broken", `<disk type='file' device='disk'><source file='/nowhere/at-all.raw'/><target dev='vda' bus='virtio'/></disk>`))
	refused(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}), fault.NotFound, "/nowhere/at-all.raw")
	d.want(g, domain.ShutOff, domain.ReasonUnknown)
	if left, _ := filepath.Glob(filepath.Join(d.dir, "run/guest/*")); len(left) > 0 {
		t.Fatalf("a failed start left %v", left)
	}
	g = d.define(strings.Replace(small("refused"), "</domain>",
		`<commandline xmlns='http://libvirt.org/schemas/domain/qemu/1.0'><arg value='-no-such-option'/></commandline></domain>`, 1))
	refused(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}), fault.Failed, "no-such-option")
}

func TestAdoption_ReplacedDaemon(t *testing.T) {
	d := newDaemon(t)
	running := d.define(small("running"))
	ok(t, launch.Start(d.ctx(), running, scope.Daemon("a test"), launch.StartOptions{}))
	paused, err := guest.Create(d.ctx(), d.Registry, scope.Daemon("a test"), small("paused"), launch.StartOptions{Paused: true})
	ok(t, err)
	dies := d.define(small("dies"))
	ok(t, launch.Start(d.ctx(), dies, scope.Daemon("a test"), launch.StartOptions{}))
	before := running.View()
	pid := d.pid("dies")

	d.close()
	ok(t, syscall.Kill(pid, syscall.SIGKILL))
	d.open()

	g, err := d.ByUUID(running.UUID)
	ok(t, err)
	after := g.View()
	if after.State != domain.Running || after.ID != before.ID || !after.StuckSince.IsZero() {
		t.Fatalf("adopted as %s with id %d, stuck since %v; want running with id %d", after.State, after.ID, after.StuckSince, before.ID)
	}
	ok(t, guest.Suspend(d.ctx(), g, scope.Daemon("a test")))
	ok(t, guest.Resume(d.ctx(), g, scope.Daemon("a test")))
	g, err = d.ByUUID(paused.UUID)
	ok(t, err)
	d.want(g, domain.Paused, domain.ReasonUser)
	ok(t, guest.Resume(d.ctx(), g, scope.Daemon("a test")))
	g, err = d.ByName("dies")
	ok(t, err)
	if g.View().State != domain.ShutOff {
		t.Fatalf("a guest that died in between is %s", g.View().State)
	}
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
}

// pid finds the QEMU process of a guest, as an administrator does: by name.
func (d *daemon) pid(name string) int {
	d.t.Helper()
	out, err := exec.CommandContext(d.ctx(), "pgrep", "-P", strconv.Itoa(os.Getpid()), "-f", "guest="+name+",").Output()
	if err != nil {
		d.t.Fatalf("no process of %s: %v", name, err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		d.t.Fatal(err)
	}
	return pid
}

// Promise: W1, W2
func TestDestroy_StuckGuest(t *testing.T) {
	d := newDaemon(t)
	stuck, healthy := d.define(small("stuck")), d.define(small("healthy"))
	ok(t, launch.Start(d.ctx(), stuck, scope.Daemon("a test"), launch.StartOptions{}))
	ok(t, launch.Start(d.ctx(), healthy, scope.Daemon("a test"), launch.StartOptions{}))
	_, err := statistics.Stats(d.ctx(), stuck, 0)
	ok(t, err)
	ok(t, syscall.Kill(d.pid("stuck"), syscall.SIGSTOP))

	waiting := make(chan error, 1)
	go func() { waiting <- guest.Suspend(context.WithoutCancel(d.ctx()), stuck, scope.Daemon("a test")) }()
	ctx, stop := context.WithTimeout(d.ctx(), 200*time.Millisecond)
	defer stop()
	st, err := statistics.Stats(ctx, stuck, 0)
	if err != nil || st.Stale == nil {
		t.Fatalf("statistics of a stuck guest: %v, %v; want stale ones", st, err)
	}
	ok(t, guest.Suspend(d.ctx(), healthy, scope.Daemon("a test")))
	if _, err := statistics.Stats(d.ctx(), healthy, 0); err != nil {
		t.Fatal(err)
	}
	ok(t, guest.Destroy(d.ctx(), stuck, scope.Daemon("a test"), false))
	if err := <-waiting; err == nil {
		t.Fatal("a suspend of a destroyed guest succeeded")
	}
	d.want(stuck, domain.ShutOff, domain.ReasonDestroyed)
}

// Promise: F3
func TestExit_QEMUKilled(t *testing.T) {
	d := newDaemon(t)
	g := d.define(small("killed"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	events := d.events.Reader()
	ok(t, syscall.Kill(d.pid("killed"), syscall.SIGKILL))
	until(t, events, event.Stopped, event.DetailCrashed)
	d.want(g, domain.ShutOff, domain.ReasonCrashed)
}

func TestSave_Restore(t *testing.T) {
	d := newDaemon(t)
	g := d.define(small("saved"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	ok(t, savestate.ManagedSave(d.ctx(), g, scope.Daemon("a test"), savestate.SaveOptions{}))
	d.settle(g, domain.ShutOff)
	d.want(g, domain.ShutOff, domain.ReasonSaved)
	if !g.View().ManagedSave {
		t.Fatal("no managed save image")
	}
	refused(t, guest.Undefine(d.ctx(), g, scope.Daemon("a test"), guest.UndefineOptions{}), fault.WrongState, "managed save")
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	d.want(g, domain.Running, domain.ReasonRestored)
	if g.View().ManagedSave {
		t.Fatal("the image is still there after the start that used it")
	}

	path := filepath.Join(d.dir, "image")
	ok(t, guest.Suspend(d.ctx(), g, scope.Daemon("a test")))
	ok(t, savestate.Save(d.ctx(), g, scope.Daemon("a test"), path, savestate.SaveOptions{}))
	d.settle(g, domain.ShutOff)
	again, err := guest.Restore(d.ctx(), d.Registry, scope.Daemon("a test"), path, savestate.SaveOptions{})
	ok(t, err)
	if again != g {
		t.Fatal("the restored guest is another one")
	}
	d.want(g, domain.Paused, domain.ReasonUser)
	ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
	info, err := os.Stat(path)
	ok(t, err)
	ok(t, os.Truncate(path, info.Size()*3/4))
	_, err = guest.Restore(d.ctx(), d.Registry, scope.Daemon("a test"), path, savestate.SaveOptions{})
	refused(t, err, fault.Failed, "load of migration failed") // QEMU's own words
	ok(t, os.WriteFile(path, []byte("LibvirtQemudSave and nonsense"), 0o600))
	_, err = guest.Restore(d.ctx(), d.Registry, scope.Daemon("a test"), path, savestate.SaveOptions{})
	refused(t, err, fault.Failed, "cannot read the saved image")
}

// The owner of an image's directory must neither read the guest's memory nor choose a file of the host to
// overwrite.
func TestSave_ImageFileMode(t *testing.T) {
	d := newDaemon(t)
	g := d.define(small("private"))
	path, other := filepath.Join(d.dir, "image"), filepath.Join(d.dir, "other")
	ok(t, os.WriteFile(other, []byte("of the host"), 0o600))
	for what, lay := range map[string]func() error{
		"a file that all may read": func() error {
			return errors.Join(os.WriteFile(path+".partial", nil, 0o600), os.Chmod(path+".partial", 0o666))
		},
		"a link": func() error { return os.Symlink(other, path+".partial") },
	} {
		ok(t, lay())
		ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{Paused: true}))
		ok(t, savestate.Save(d.ctx(), g, scope.Daemon("a test"), path, savestate.SaveOptions{}))
		d.settle(g, domain.ShutOff)
		if info, err := os.Lstat(path); err != nil || info.Mode() != 0o600 {
			t.Errorf("with %s in its place the image has mode %v (%v)", what, info.Mode(), err)
		}
		ok(t, os.Remove(path))
	}
	if text, err := os.ReadFile(other); err != nil || string(text) != "of the host" {
		t.Errorf("the other file was overwritten with %d bytes (%v)", len(text), err)
	}
}

// settle waits until the guest has come into a state.
func (d *daemon) settle(g *guest.Guest, state domain.State) {
	d.t.Helper()
	r := d.events.Reader()
	ctx := d.ctx()
	for g.View().State != state {
		if _, _, err := r.Next(ctx); err != nil {
			d.t.Fatalf("%s is still %s: %v", g.Name(), g.View().State, err)
		}
	}
}

func TestDefine_Conflict(t *testing.T) {
	d := newDaemon(t)
	g := d.define(small("taken"))
	_, err := guest.Define(d.ctx(), d.Registry, scope.Daemon("a test"), small("taken"), false)
	refused(t, err, fault.Exists, "already exists with uuid "+g.UUID)
	other := d.define(small("other"))
	refused(t, guest.Rename(d.ctx(), other, scope.Daemon("a test"), "taken"), fault.Exists, "taken")
	ok(t, guest.Rename(d.ctx(), other, scope.Daemon("a test"), "renamed"))
	if found, err := d.ByName("renamed"); err != nil || found != other {
		t.Fatal(err)
	}
}

func TestConsole_Shared(t *testing.T) {
	d := newDaemon(t)
	g := d.define(strings.Replace(small("talks"), "</type>", "</type><bios useserial='yes'/>", 1))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{Paused: true}))
	first, err := console.OpenConsole(d.ctx(), g, scope.Daemon("a test"), "", machine.ConsoleOptions{})
	ok(t, err)
	second, err := console.OpenConsole(d.ctx(), g, scope.Daemon("a test"), "", machine.ConsoleOptions{})
	ok(t, err)
	_, err = console.OpenConsole(d.ctx(), g, scope.Daemon("a test"), "", machine.ConsoleOptions{Safe: true})
	refused(t, err, fault.WrongState, "Active console session exists")
	ok(t, guest.Resume(d.ctx(), g, scope.Daemon("a test")))
	for _, c := range []io.Reader{first, second} { // SeaBIOS speaks on the serial port
		readUntil(t, c, "SeaBIOS")
	}
	third, err := console.OpenConsole(d.ctx(), g, scope.Daemon("a test"), "", machine.ConsoleOptions{Force: true})
	ok(t, err)
	if _, err := io.Copy(io.Discard, first); err != nil && !errors.Is(err, io.ErrClosedPipe) {
		t.Fatal(err)
	}
	ok(t, third.Close())
}

func readUntil(t *testing.T, r io.Reader, wanted string) {
	t.Helper()
	var seen strings.Builder
	buffer := make([]byte, 4096)
	for !strings.Contains(seen.String(), wanted) {
		n, err := r.Read(buffer)
		seen.Write(buffer[:n])
		if err != nil {
			t.Fatalf("the console ended before %q: %v; it said %q", wanted, err, seen.String())
		}
	}
}

// A guest learns from a new generation ID that it may have run from the same state before. After a normal start it
// must not be told so.
// Promise: H8
func TestGenID_AfterRestore(t *testing.T) {
	d := newDaemon(t)
	g := d.define(strings.Replace(small("generations"), "<memory", "<genid/><memory", 1))
	defined := g.View().Inactive.GenID
	generation := func() string {
		t.Helper()
		ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
		var seen struct{ GUID string }
		ok(t, guest.Session(g).Execute(d.ctx(), "query-vm-generation-id", nil, &seen))
		if told := g.View().Active.GenID; told != seen.GUID {
			t.Errorf("the guest sees %s and is said to see %s", seen.GUID, told)
		}
		return seen.GUID
	}
	first := generation()
	ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
	if again := generation(); first != defined || again != defined {
		t.Errorf("it is defined with %q, and started with %s and %s", defined, first, again)
	}
	ok(t, savestate.ManagedSave(d.ctx(), g, scope.Daemon("a test"), savestate.SaveOptions{}))
	d.settle(g, domain.ShutOff)
	if restored := generation(); restored == defined {
		t.Errorf("it is restored with %s, as which it has gone on", restored)
	}
}
