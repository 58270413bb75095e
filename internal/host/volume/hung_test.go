package volume

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/host/volume/blockdev"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard/mounttest"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/word/event"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// until waits for something that another goroutine does.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(20 * time.Second)
	for !is() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatal("never:", what)
		}
	}
}

// prompt fails when work takes longer than it can without waiting for something.
func prompt(t *testing.T, what string, work func()) {
	t.Helper()
	begun := time.Now()
	work()
	if d := time.Since(begun); d > time.Second {
		t.Errorf("%s took %v", what, d)
	}
}

func TestHungPool_BlocksNoOtherPool(t *testing.T) {
	d := newDaemon(t)
	hung, well := d.dirPool("hung"), d.dirPool("well")
	v := d.volume(hung, volXML("disk", "raw", mib, ""))
	release := mounttest.Hang(t, hung.View().Target)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	wantKind(t, hung.Refresh(ctx, scope.Daemon("a test")), fault.Timeout)
	until(t, "the hung pool shows as inaccessible", func() bool { return hung.View().State == Inaccessible })
	if view := hung.View(); view.Stale == "" || len(view.Volumes) != 1 {
		t.Errorf("the stale view is %+v", view)
	}
	prompt(t, "reading", func() {
		if view := hung.Fresh(t.Context()); view.State != Inaccessible {
			t.Errorf("state %v", view.State)
		}
		if got, err := hung.FreshVolume(t.Context(), "disk"); err != nil || got != v {
			t.Errorf("%v, %v", got, err)
		}
		if _, got, err := d.ByPath(v.Path); err != nil || got != v {
			t.Errorf("%v, %v", got, err)
		}
		if len(d.List()) != 2 {
			t.Error("a pool is missing")
		}
		must(t, hung.SetAutostart(t.Context(), scope.Daemon("a test"), true))
		if _, err := hung.XML(false); err != nil {
			t.Error(err)
		}
	})
	prompt(t, "the other pool", func() {
		d.volume(well, volXML("x", "raw", mib, ""))
		must(t, well.Refresh(t.Context(), scope.Daemon("a test")))
		must(t, well.DeleteVolume(t.Context(), scope.Daemon("a test"), "x"))
		_, err := d.Define(t.Context(), scope.Daemon("a test"), dirXML("third", t.TempDir()), true)
		must(t, err)
	})
	for _, work := range []func(ctx context.Context) error{
		func(ctx context.Context) error { return hung.DeleteVolume(ctx, scope.Daemon("a test"), "disk") },
		func(ctx context.Context) error {
			_, err := hung.Download(ctx, scope.Daemon("a test"), "disk", 0, 0)
			return err
		},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		wantKind(t, work(ctx), fault.Timeout)
		cancel()
	}
	release()
	until(t, "the pool answers again", func() bool { return hung.Refresh(t.Context(), scope.Daemon("a test")) == nil })
	if view := hung.View(); view.State != Running || view.Stale != "" {
		t.Errorf("view %+v", view)
	}
}

func TestHungPool_DoesNotDelayDaemonStart(t *testing.T) {
	d := newDaemon(t)
	hung, well := d.dirPool("hung"), d.dirPool("well")
	d.volume(well, volXML("disk", "raw", mib, ""))
	target := hung.View().Target
	d.Close()
	release := mounttest.Hang(t, target)
	var err error
	prompt(t, "Open", func() {
		d.Pools, err = Open(Options{Store: d.store, Events: event.NewLog(), Log: slog.New(slog.DiscardHandler), Boot: d.boot})
		must(t, err)
	})
	prompt(t, "Settle", func() { wantKind(t, d.Settle(t.Context()), fault.Timeout) })
	until(t, "the other pool is read", func() bool {
		p, err := d.ByName("well")
		must(t, err)
		return len(p.View().Volumes) == 1
	})
	p, err := d.ByName("hung")
	must(t, err)
	if v := p.View(); !v.Active() || v.Stale == "" {
		t.Errorf("the hung pool is %+v", v)
	}
	release()
	until(t, "the hung pool is read", func() bool { return d.Settle(t.Context()) == nil })
}

// A bug in work on one pool costs its caller, not the daemon.
// Promise: W1
func TestWorker_PanicFailsOnlyItsCaller(t *testing.T) {
	d := newDaemon(t)
	p := d.dirPool("a")
	wantKind(t, runInWorker(t.Context(), p.worker, func() error { panic("a bug") }), fault.Internal)
	if _, err := p.beginJob(scope.Daemon("a test"), "disk", "test", true); err != nil {
		t.Fatal(err)
	}
	wantKind(t, p.runJob(t.Context(), scope.Daemon("a test"), "disk", func(context.Context) error { panic("a bug") }), fault.Internal)
	if jobs := p.Jobs(); len(jobs) > 0 {
		t.Errorf("the mark is left: %v", jobs)
	}
	d.volume(p, volXML("disk", "raw", mib, ""))
	p.worker.stop() // as the daemon ends
	must(t, p.Stop(t.Context(), scope.Daemon("a test")))
	must(t, p.Undefine(t.Context(), scope.Daemon("a test")))
}

func TestWorker_QueueBound(t *testing.T) {
	l := newWorker()
	defer l.stop()
	block, begun := make(chan struct{}), make(chan struct{})
	results := make(chan error, workerQueue+2)
	ask1 := func(work func() error) { results <- runInWorker(t.Context(), l, work) }
	go ask1(func() error { close(begun); <-block; return nil })
	<-begun
	for range workerQueue + 1 {
		go ask1(func() error { return nil })
	}
	wantKind(t, <-results, fault.Busy) // one more than the queue holds
	close(block)
	for range workerQueue + 1 {
		must(t, <-results)
	}
}

// A task that makes progress is waited for, however long it takes; one that does not is given up. Before, a
// refresh of a large pool ended the copies that ran in it.
// Promise: W1
func TestRunWithin_TaskProgresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ps := &Pools{}
		ps.life, ps.end = context.WithCancelCause(t.Context())
		p := &Pool{pools: ps, name: "a", worker: newWorker(), active: &definition{kind: Logical}, jobs: map[string]*job{}}
		nothing := func() error { return nil }
		var busy sync.WaitGroup
		read := func(work func()) {
			busy.Go(func() { _ = runInWorker(t.Context(), p.worker, func() error { work(); return nil }) })
			synctest.Wait()
		}
		read(func() {
			for range 100 {
				p.worker.progress()
				<-time.After(time.Second)
			}
		})
		if _, err := p.beginJob(scope.Daemon("a test"), "disk", "test", true); err != nil {
			t.Fatal(err)
		}
		must(t, p.runJob(t.Context(), scope.Daemon("a test"), "disk", func(ctx context.Context) error {
			select {
			case <-time.After(90 * time.Second):
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}))
		wantKind(t, tryInWorker(t.Context(), p.worker, nothing), fault.Timeout) // readers do not wait
		must(t, runInWorker(t.Context(), p.worker, nothing))
		goOn := make(chan struct{})
		read(func() { <-goOn })
		began := time.Now()
		wantKind(t, runInWorker(t.Context(), p.worker, nothing), fault.Timeout)
		if waited := time.Since(began); waited != answerTime {
			t.Errorf("given up after %v", waited)
		}
		close(goOn)
		busy.Wait()
		p.worker.stop()
		<-p.worker.done
	})
}

func TestRunWithin_LateAnswerDiscarded(t *testing.T) {
	l := newWorker()
	defer l.stop()
	block, discarded := make(chan struct{}), make(chan int, 1)
	ctx, cancel := context.WithCancelCause(t.Context())
	go cancel(fault.New(fault.Aborted, fault.Call, "gone"))
	_, err := runWithin(ctx, l, time.Minute, func() (int, error) { <-block; return 7, nil }, func(n int) { discarded <- n })
	wantKind(t, err, fault.Aborted)
	close(block)
	// Either it never began, or its answer was delivered.
	if _, err := runWithin(t.Context(), l, time.Minute, func() (int, error) { return 0, nil }, nil); err != nil {
		t.Fatal(err)
	}
	select {
	case n := <-discarded:
		if n != 7 {
			t.Errorf("discarded %d", n)
		}
	default:
	}
}

// loopDevice makes a block device from a file, with the file's size.
func loopDevice(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to mount")
	}
	backing := filepath.Join(t.TempDir(), "backing")
	must(t, os.WriteFile(backing, nil, 0o600))
	must(t, os.Truncate(backing, 32*mib))
	out, err := exec.CommandContext(t.Context(), "losetup", "--find", "--show", backing).CombinedOutput()
	if err != nil {
		t.Skipf("needs a loop device: %s", out)
	}
	device := strings.TrimSpace(string(out))
	t.Cleanup(func() {
		if out, err := exec.CommandContext(context.Background(), "losetup", "--detach", device).CombinedOutput(); err != nil {
			t.Errorf("%s: %s", device, out)
		}
	})
	return device
}

// Promise: F20
func TestFileSystemPool_Lifecycle(t *testing.T) {
	if _, err := exec.LookPath("mkfs.ext4"); err != nil {
		t.Skip("needs mkfs.ext4")
	}
	device := loopDevice(t)
	d := newDaemon(t)
	target := filepath.Join(t.TempDir(), "a b\\c") // characters that the kernel's list escapes
	doc := "<pool type='fs'><name>a</name><source><device path='" + device + "'/><format type='ext4'/></source><target><path>" + target + "</path></target></pool>"
	p, err := d.Define(t.Context(), scope.Daemon("a test"), doc, true)
	must(t, err)
	must(t, p.Build(t.Context(), scope.Daemon("a test"), KeepExisting))
	wantKind(t, p.Build(t.Context(), scope.Daemon("a test"), KeepExisting), fault.Exists)
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	must(t, err)
	release, err := image.LockToWrite(f) // as QEMU does
	must(t, err)
	wantKind(t, p.Build(t.Context(), scope.Daemon("a test"), Overwrite), fault.Busy)
	release()
	must(t, f.Close())
	must(t, p.Build(t.Context(), scope.Daemon("a test"), Overwrite))
	t.Cleanup(func() { _ = unix.Unmount(target, unix.MNT_DETACH) }) // when the test fails half way
	end := openAsGuest(t, device)
	wantKind(t, p.Start(t.Context(), scope.Daemon("a test"), NoBuild), fault.Busy) // else guest and host would write one file system
	end()
	must(t, p.Start(t.Context(), scope.Daemon("a test"), NoBuild))
	if v := p.View(); v.Capacity > 32*mib || v.Capacity < 16*mib {
		t.Errorf("capacity %d", v.Capacity)
	}
	_, err = p.CreateVolume(t.Context(), scope.Daemon("a test"), "<volume><name>big</name><capacity unit='G'>1</capacity></volume>", CreateOptions{})
	wantKind(t, err, fault.NoCapacity)
	d.volume(p, volXML("disk", "raw", mib, ""))
	d.restart()
	p, err = d.ByName("a")
	must(t, err)
	if _, err := p.Volume("disk"); err != nil {
		t.Error(err)
	}
	must(t, p.Stop(t.Context(), scope.Daemon("a test")))
	if m, err := mountedAt(target); err != nil || m.Source != "" {
		t.Errorf("%v is still mounted, %v", m, err)
	}
	if entries, err := os.ReadDir(target); err != nil || len(entries) != 0 {
		t.Errorf("%v, %v", entries, err)
	}
	wantKind(t, p.Delete(t.Context(), scope.Daemon("a test")), fault.Unsupported)
}

// A file system is mounted through root's links, is found there again, and is unmounted. Nothing is mounted
// through a user's link.
// Promise: X5
func TestFileSystemPool_TargetBehindLinks(t *testing.T) {
	needTools(t, "mkfs.ext4")
	device := loopDevice(t)
	d, dir, own := newDaemon(t), t.TempDir(), t.TempDir()
	images, theirs := filepath.Join(dir, "data", "images"), filepath.Join(dir, "theirs")
	must(t, errors.Join(os.MkdirAll(images, 0o755), os.Mkdir(theirs, 0o700),
		os.Symlink("data", filepath.Join(dir, "var")), os.Symlink("var/images", filepath.Join(dir, "images")),
		os.Chown(own, 4242, 4242), os.Symlink(theirs, filepath.Join(own, "images")), os.Lchown(filepath.Join(own, "images"), 4242, 4242)))
	t.Cleanup(func() { _ = errors.Join(unix.Unmount(images, unix.MNT_DETACH), unix.Unmount(theirs, unix.MNT_DETACH)) }) // when the test fails half way
	_, err := blockdev.Run(t.Context(), mkfsTime, "mkfs.ext4", "-q", device)
	must(t, err)
	for _, target := range []string{filepath.Join(dir, "var", "images"), filepath.Join(dir, "images"), filepath.Join(own, "images")} {
		p, err := d.Define(t.Context(), scope.Daemon("a test"), "<pool type='fs'><name>a</name><source><device path='"+device+"'/></source><target><path>"+target+"</path></target></pool>", true)
		must(t, err)
		if strings.HasPrefix(target, own) {
			wantKind(t, p.Start(t.Context(), scope.Daemon("a test"), NoBuild), fault.Denied)
		} else {
			must(t, p.Start(t.Context(), scope.Daemon("a test"), NoBuild))
			d.volume(p, volXML("disk", "raw", mib, ""))
			must(t, errors.Join(p.Refresh(t.Context(), scope.Daemon("a test")), p.DeleteVolume(t.Context(), scope.Daemon("a test"), "disk"), p.Stop(t.Context(), scope.Daemon("a test"))))
		}
		for _, at := range []string{images, theirs} {
			if m, err := mountedAt(at); err != nil || m.Source != "" {
				t.Errorf("%s is mounted, %v", m, err)
			}
		}
		must(t, p.Undefine(t.Context(), scope.Daemon("a test")))
	}
}

func TestFileSystemPool_KeepsForeignMounts(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to mount")
	}
	d := newDaemon(t)
	target := t.TempDir()
	if err := unix.Mount("other", target, "tmpfs", 0, "size=1m"); err != nil {
		t.Skip("cannot mount here:", err)
	}
	defer unix.Unmount(target, 0) //nolint:errcheck // if it is still mounted, the next line shows it
	p, err := d.Define(t.Context(), scope.Daemon("a test"), "<pool type='fs'><name>a</name><source><device path='/dev/sdx'/></source><target><path>"+target+"</path></target></pool>", true)
	must(t, err)
	wantKind(t, p.Start(t.Context(), scope.Daemon("a test"), NoBuild), fault.WrongState)
	if m, err := mountedAt(target); err != nil || m.Source != "other" {
		t.Errorf("%v is mounted, %v", m, err)
	}
}

func TestNetworkPool_MissingMountHelper(t *testing.T) {
	if blockdev.NeedTool("mount.nfs", "") == nil {
		t.Skip("mount.nfs is installed")
	}
	d := newDaemon(t)
	p, err := d.Define(t.Context(), scope.Daemon("a test"), "<pool type='netfs'><name>a</name><source><host name='fe80::1'/><dir path='/srv//x/'/><format type='nfs'/><protocol ver='4.2'/></source>"+
		"<target><path>"+t.TempDir()+"</path></target></pool>", true)
	must(t, err)
	err = p.Start(t.Context(), scope.Daemon("a test"), NoBuild)
	wantKind(t, err, fault.Unsupported)
	if !strings.Contains(err.Error(), "nfs-common") || !strings.Contains(err.Error(), "[fe80::1]:/srv/x") {
		t.Error(err)
	}
}

func TestPools_SourcesAndCapabilities(t *testing.T) {
	if _, err := FindSources(t.Context(), Dir, ""); !fault.Is(err, fault.Unsupported) {
		t.Error(err)
	}
	if _, err := FindSources(t.Context(), NetFS, "<source><host name='--all'/></source>"); !fault.Is(err, fault.Invalid) {
		t.Error(err)
	}
	got := exports("h", "/srv/a *\n/srv/b 10.0.0.0/8\n\nnonsense\n")
	if n := len(got.Elements()); n != 2 || attr(got.Elements()[1].Child("dir"), "path") != "/srv/b" {
		t.Errorf("%d exports", n)
	}
	doc, err := Capabilities()
	if err != nil || !strings.Contains(doc, "<pool type='dir' supported='yes'>") || !strings.Contains(doc, "<pool type='iscsi' supported='no'/>") {
		t.Errorf("%v\n%s", err, doc)
	}
}

// mountedPool makes a running file system pool on a tmpfs.
func mountedPool(t *testing.T, d *daemon) (p *Pool, target string) {
	t.Helper()
	const device = "/dev/none"
	if os.Getuid() != 0 {
		t.Skip("needs root to mount")
	}
	target = t.TempDir()
	if err := unix.Mount(device, target, "tmpfs", 0, "size=4m"); err != nil {
		t.Skip("cannot mount here:", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(target, unix.MNT_DETACH) }) // when the test has not done so
	p, err := d.Define(t.Context(), scope.Daemon("a test"), "<pool type='fs'><name>a</name><source><device path='"+device+"'/></source><target><path>"+target+"</path></target></pool>", true)
	must(t, err)
	must(t, p.Start(t.Context(), scope.Daemon("a test"), NoBuild))
	return p, target
}

// Promise: F20
func TestCreateVolume_WhilePoolStops(t *testing.T) {
	d, dir := newDaemon(t), t.TempDir()
	p, target := mountedPool(t, d)
	began, goOn := filepath.Join(dir, "began"), filepath.Join(dir, "go")
	fakeTools(t, map[string]string{"umount": "touch " + began + "; until [ -e " + goOn + " ]; do sleep 0.01; done; PATH=/usr/bin:/bin exec umount \"$1\""})
	stopped := make(chan error, 1)
	go func() { stopped <- p.Stop(t.Context(), scope.Daemon("a test")) }()
	until(t, "it is being unmounted", func() bool { return unix.Access(began, unix.F_OK) == nil })
	_, err := p.CreateVolume(t.Context(), scope.Daemon("a test"), volXML("disk", "raw", mib, ""), CreateOptions{})
	wantKind(t, err, fault.WrongState)
	must(t, os.WriteFile(goOn, nil, 0o600))
	must(t, <-stopped)
	if left, err := os.ReadDir(target); err != nil || len(left) > 0 {
		t.Errorf("what is below has %v, %v", left, err)
	}
}

// When a pool's file system is unmounted by hand, nothing is made in the empty folder and no volume is
// forgotten.
// Promise: F9
func TestFileSystemPool_UnmountedByHand(t *testing.T) {
	d := newDaemon(t)
	p, target := mountedPool(t, d)
	d.volume(p, volXML("disk", "raw", mib, ""))
	must(t, unix.Unmount(target, 0))
	wantKind(t, p.Refresh(t.Context(), scope.Daemon("a test")), fault.WrongState)
	_, err := p.CreateVolume(t.Context(), scope.Daemon("a test"), volXML("another", "raw", mib, ""), CreateOptions{})
	wantKind(t, err, fault.WrongState)
	if left, err := os.ReadDir(target); err != nil || len(left) > 0 {
		t.Errorf("what is below has %v, %v", left, err)
	}
	if _, known := p.declared["disk"]; !known {
		t.Error("the volume is forgotten")
	}
	must(t, p.Stop(t.Context(), scope.Daemon("a test")))
}

// Promise: W1
func TestFileSystemPool_DeviceHangs(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to mount")
	}
	d, hung, target := newDaemon(t), t.TempDir(), t.TempDir()
	if err := unix.Mount("other", target, "tmpfs", 0, "size=1m"); err != nil {
		t.Skip("cannot mount here:", err)
	}
	defer unix.Unmount(target, 0) //nolint:errcheck // if it is still mounted, the next test shows it
	mounttest.Hang(t, hung)
	p, err := d.Define(t.Context(), scope.Daemon("a test"), "<pool type='fs'><name>a</name><source><device path='"+hung+"/disk'/></source><target><path>"+target+"</path></target></pool>", true)
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	started := make(chan error, 1)
	go func() { started <- p.Start(ctx, scope.Daemon("a test"), NoBuild) }()
	select {
	case err := <-started:
		wantKind(t, err, fault.WrongState)
	case <-time.After(20 * time.Second):
		t.Fatal("who starts the pool waits for a file system that hangs")
	}
}

// A start that fails unmounts only the file system that it mounted.
func TestStart_FailureUnmountsOnlyItsOwn(t *testing.T) {
	d := newDaemon(t)
	p, target := mountedPool(t, d)
	fails := func(left string) {
		t.Helper()
		defer d.refuseChanges()()
		if err := p.Start(t.Context(), scope.Daemon("a test"), NoBuild); err == nil {
			t.Error("it starts")
		}
		if m, err := mountedAt(target); err != nil || m.Source != left {
			t.Errorf("%q is mounted, and not %q: %v", m.Source, left, err)
		}
	}
	must(t, p.Stop(t.Context(), scope.Daemon("a test")))
	fakeTools(t, map[string]string{"mount": "PATH=/usr/bin:/bin exec mount -t tmpfs \"$3\" \"$4\""})
	fails("")
	must(t, unix.Mount("/dev/none", target, "tmpfs", 0, "size=1m"))
	fails("/dev/none")
}

// A start that is cancelled while its file system is mounted leaves nothing mounted.
func TestStart_CancelledWhileMounting(t *testing.T) {
	d, dir := newDaemon(t), t.TempDir()
	p, target := mountedPool(t, d)
	must(t, p.Stop(t.Context(), scope.Daemon("a test")))
	began, goOn := filepath.Join(dir, "began"), filepath.Join(dir, "go")
	fakeTools(t, map[string]string{"mount": "PATH=/usr/bin:/bin mount -t tmpfs \"$3\" \"$4\"; touch " + began + "; until [ -e " + goOn + " ]; do sleep 0.01; done"})
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	started := make(chan error, 1)
	go func() { started <- p.Start(ctx, scope.Daemon("a test"), NoBuild) }()
	until(t, "it is mounted", func() bool { return unix.Access(began, unix.F_OK) == nil })
	cancel(fault.New(fault.Aborted, fault.Call, "gone"))
	must(t, os.WriteFile(goOn, nil, 0o600))
	if err := <-started; err == nil {
		t.Error("it starts")
	}
	if m, err := mountedAt(target); err != nil || m.Source != "" {
		t.Errorf("%q is mounted: %v", m.Source, err)
	}
}
