package fsguard

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard/mounttest"
)

func stat(path string) func() (os.FileInfo, error) {
	return func() (os.FileInfo, error) { return os.Stat(path) }
}

func soon(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), d)
	t.Cleanup(stop)
	return ctx
}

// threads counts the threads of this process.
func threads(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// hung fills a mount with hanging calls, and backdates them.
func hung(t *testing.T, gs *limiters, path string) {
	t.Helper()
	for range maxHung {
		_, err := do(soon(t, 10*time.Millisecond), gs, path, stat(path), nil)
		if !fault.Is(err, fault.Timeout) {
			t.Fatalf("%v", err)
		}
	}
	for _, g := range gs.byID {
		g.mu.Lock()
		for v, began := range g.calls {
			g.calls[v] = began.Add(-time.Minute)
		}
		g.mu.Unlock()
	}
}

func TestDo_DeadMount(t *testing.T) {
	dir, well := filepath.Join(t.TempDir(), "a dead one"), t.TempDir()
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	release := mounttest.Hang(t, dir)
	gs := &limiters{byID: map[int]*limiter{}}
	file := filepath.Join(dir, "image")
	hung(t, gs, file)
	before := threads(t)
	for range 200 {
		_, err := do(t.Context(), gs, file, stat(file), nil) // would otherwise wait for 30 seconds
		if !fault.Is(err, fault.Timeout) || !strings.Contains(err.Error(), dir+" (fuse.never of never) has not answered for 1m") {
			t.Fatalf("%v", err)
		}
	}
	if _, err := do(t.Context(), gs, well, stat(well), nil); err != nil {
		t.Error("another mount:", err)
	}
	if now := threads(t); now > before+20 { // the runtime starts some at any time
		t.Errorf("%d threads, and %d before", now, before)
	}
	release()
	for end := time.Now().Add(10 * time.Second); len(gs.now()) > 0; {
		if time.Now().After(end) {
			t.Fatal("the calls that hung do not end with the mount")
		}
	}
	if _, err := do(t.Context(), gs, dir, stat(dir), nil); err != nil {
		t.Error("what was below it:", err)
	}
}

// now returns the limiters in use.
func (gs *limiters) now() map[int]*limiter {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	return maps.Clone(gs.byID)
}

func TestDo_CountedWhereItHangs(t *testing.T) {
	dir, links := t.TempDir(), t.TempDir()
	mounttest.Hang(t, dir)
	gs := &limiters{byID: map[int]*limiter{}}
	// A link to the dead mount lies in a healthy directory.
	for name, target := range map[string]string{"absolute": dir, "relative": "../" + filepath.Base(filepath.Dir(dir)) + "/x", "twice": "absolute/y"} {
		if err := os.Symlink(target, filepath.Join(links, name)); err != nil {
			t.Fatal(err)
		}
	}
	hung(t, gs, filepath.Join(links, "twice", "z"))
	if len(gs.byID) != 1 {
		t.Errorf("calls hang on %d mounts", len(gs.byID))
	}
	if _, err := do(t.Context(), gs, filepath.Join(links, "absolute"), stat(links), nil); !fault.Is(err, fault.Timeout) {
		t.Errorf("through another link: %v", err)
	}
	if _, err := do(t.Context(), gs, links, stat(links), nil); err != nil {
		t.Error("beside the links:", err)
	}
}

func TestDo_LinkBeforeTwoDots(t *testing.T) {
	dir, links := t.TempDir(), t.TempDir()
	mounttest.Hang(t, dir)
	gs := &limiters{byID: map[int]*limiter{}}
	if err := os.Symlink(filepath.Join(dir, "sub"), filepath.Join(links, "link")); err != nil {
		t.Fatal(err)
	}
	hung(t, gs, links+"/link/../image")
	if _, err := do(t.Context(), gs, links, stat(links), nil); err != nil {
		t.Error("beside the link:", err)
	}
}

// stall makes calls on a path hang until the test ends, and backdates them.
func stall(t *testing.T, gs *limiters, path string) {
	t.Helper()
	goOn := make(chan struct{})
	var all sync.WaitGroup
	t.Cleanup(func() { close(goOn); all.Wait() })
	for range maxHung {
		begun := make(chan struct{})
		all.Go(func() {
			_, _ = do(t.Context(), gs, path, func() (int, error) { close(begun); <-goOn; return 0, nil }, nil) // the result does not matter
		})
		<-begun
	}
	for _, g := range gs.now() {
		g.mu.Lock()
		g.ended = time.Time{}
		for v, began := range g.calls {
			g.calls[v] = began.Add(-time.Minute)
		}
		g.mu.Unlock()
	}
}

func TestDo_SlowMount(t *testing.T) {
	gs, dir := &limiters{byID: map[int]*limiter{}}, t.TempDir()
	stall(t, gs, dir)
	if _, err := do(t.Context(), gs, dir, stat(dir), nil); !fault.Is(err, fault.Timeout) {
		t.Errorf("while nothing is answered: %v", err)
	}
	for _, g := range gs.now() {
		g.mu.Lock()
		g.ended = time.Now()
		g.mu.Unlock()
	}
	if _, err := do(t.Context(), gs, dir, stat(dir), nil); err != nil {
		t.Error("while others are answered:", err)
	}
}

func TestDo_DeadDisk(t *testing.T) {
	gs, dir := &limiters{byID: map[int]*limiter{}}, t.TempDir()
	dead, well := filepath.Join(dir, "dead"), filepath.Join(dir, "well")
	for i, path := range []string{dead, well} {
		if err := unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(7, uint32(i)))); err != nil {
			t.Skip("cannot make a device here:", err)
		}
	}
	stall(t, gs, dead)
	if _, err := do(t.Context(), gs, dead, stat(dead), nil); !fault.Is(err, fault.Timeout) || !strings.Contains(err.Error(), dead+" (disk of 7:0)") {
		t.Errorf("the dead one: %v", err)
	}
	if _, err := do(t.Context(), gs, well, stat(well), nil); err != nil {
		t.Error("the other:", err)
	}
}

func TestDo_BurstOnDeadMount(t *testing.T) {
	dir := t.TempDir()
	mounttest.Hang(t, dir)
	gs := &limiters{byID: map[int]*limiter{}}
	ctx := soon(t, 300*time.Millisecond)
	before, results := threads(t), make(chan error)
	const many = 500
	for range many {
		go func() {
			_, err := do(ctx, gs, dir, stat(dir), nil)
			results <- err
		}()
	}
	for range many {
		if err := <-results; !fault.Is(err, fault.Timeout) || !strings.Contains(err.Error(), dir) {
			t.Fatalf("%v", err)
		}
	}
	if now := threads(t); now > before+maxConcurrent+4 {
		t.Errorf("%d threads, and %d before", now, before)
	}
}

func TestDo_LateAnswer(t *testing.T) {
	gs := &limiters{byID: map[int]*limiter{}}
	ctx, cancel := context.WithCancelCause(t.Context())
	goOn, discarded := make(chan struct{}), make(chan int)
	_, err := do(ctx, gs, t.TempDir(), func() (int, error) {
		cancel(fault.New(fault.Aborted, fault.Domain, "it was destroyed"))
		<-goOn
		return 7, nil
	}, func(n int) { discarded <- n })
	if !fault.Is(err, fault.Aborted) || !strings.Contains(err.Error(), "it was destroyed") {
		t.Error(err)
	}
	close(goOn)
	if n := <-discarded; n != 7 {
		t.Errorf("%d is discarded", n)
	}
}

func TestDo_WorkPanics(t *testing.T) {
	err := Run(t.Context(), t.TempDir(), func() error { panic("a bug") })
	if !fault.Is(err, fault.Internal) {
		t.Error(err)
	}
	if err := RunLong(t.Context(), "/", func() error { panic("a bug") }); !fault.Is(err, fault.Internal) {
		t.Error(err)
	}
}

func TestDo_BadPath(t *testing.T) {
	dir := t.TempDir()
	loop := filepath.Join(dir, "loop")
	if err := os.Symlink("loop", loop); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]error{
		filepath.Join(dir, "none", "deeper"): os.ErrNotExist,
		filepath.Join(loop, "x"):             unix.ELOOP,
	} {
		if _, err := Do(t.Context(), path, stat(path), nil); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", path, err, want)
		}
	}
}

func TestTable_SeesChanges(t *testing.T) {
	point := filepath.Join(t.TempDir(), "x")
	if err := os.Mkdir(point, 0o700); err != nil {
		t.Fatal(err)
	}
	there := func() bool {
		m, there, err := At(point + "/")
		if err != nil || there && m.Source != "something" {
			t.Fatalf("%v, %v", m, err)
		}
		return there
	}
	for range 3 {
		if there() {
			t.Fatal("something is mounted")
		}
		if err := unix.Mount("something", point, "tmpfs", 0, "size=4k"); err != nil {
			t.Skip("cannot mount here:", err)
		}
		seen := there()
		if err := unix.Unmount(point, 0); err != nil {
			t.Fatal(err)
		}
		if !seen {
			t.Fatal("nothing is mounted")
		}
	}
}
