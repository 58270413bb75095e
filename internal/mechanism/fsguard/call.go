package fsguard

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// answerTimeout bounds the time that a caller waits for a file system.
const answerTimeout = 30 * time.Second

// Do runs short work on an absolute path and waits for it, until ctx ends or answerTimeout has passed. The work may
// access only the file at the path and its folder. A result that comes too late is passed to discard, which may be nil.
func Do[T any](ctx context.Context, path string, work func() (T, error), discard func(T)) (T, error) {
	return do(ctx, &processLimiters, path, work, discard)
}

// Run is Do for work without a result.
func Run(ctx context.Context, path string, work func() error) error {
	_, err := Do(ctx, path, func() (struct{}, error) { return struct{}{}, work() }, nil)
	return err
}

func do[T any](ctx context.Context, gs *limiters, path string, work func() (T, error), discard func(T)) (T, error) {
	began := time.Now()
	ctx, stop := context.WithTimeoutCause(ctx, answerTimeout, fault.New(fault.Timeout, fault.Host, "%v is the limit", answerTimeout))
	defer stop()
	type answer struct {
		value T
		err   error
	}
	v := &call{limiters: gs}
	answers := make(chan answer) // unbuffered, so that an answer is either taken or discarded
	go func() {
		var a answer
		if a.err = v.walk(ctx, path); a.err == nil {
			a.value, a.err = recovered(path, work)
		}
		v.leave()
		select {
		case answers <- a:
		case <-ctx.Done():
			if a.err == nil && discard != nil {
				discard(a.value)
			}
		}
	}()
	select {
	case a := <-answers:
		return a.value, a.err
	case <-ctx.Done():
		var none T
		return none, fault.Wrap(context.Cause(ctx), kindOf(ctx), fault.Host, "the file system at %s does not answer; stopped waiting for %s after %v",
			v.mountName(), path, age(began))
	}
}

// recovered runs work and returns a panic as an error, so that it does not end the daemon.
func recovered[T any](path string, work func() (T, error)) (value T, err error) {
	defer func() {
		if bug := recover(); bug != nil {
			err = fault.New(fault.Internal, fault.Host, "the call on %s panicked: %v", path, bug)
		}
	}()
	return work()
}

// RunLong waits for long work on open files, such as a sync, until ctx ends. The path is used in errors only. The work
// continues after the caller has given up, so the caller must bound how many it starts.
func RunLong(ctx context.Context, path string, work func() error) error {
	began, done := time.Now(), make(chan error, 1)
	go func() {
		_, err := recovered(path, func() (struct{}, error) { return struct{}{}, work() })
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fault.Wrap(context.Cause(ctx), kindOf(ctx), fault.Host, "stopped waiting for the work on %s after %v", path, age(began))
	}
}

// call is one Do while it follows its path through the mounts. It is on one mount at a time, and holds a slot of
// its limiter.
type call struct {
	limiters *limiters

	limiter *limiter // of the present mount; used only by the goroutine that walks

	mu   sync.Mutex
	last *Mount // read by the caller, to name the mount
}

// maxLinks bounds the symbolic links followed in a path, as the kernel does.
const maxLinks = 40

// walk follows a path through all its mounts to the last one, in the kernel's order: a name before ".." is resolved,
// because it may be a link. It ignores errors in the path, because the work will find them.
func (v *call) walk(ctx context.Context, path string) error {
	if err := v.limiters.table.refresh(); err != nil {
		return err
	}
	var target [unix.PathMax]byte
	at, rest := "/", components(path)
	for links := 0; len(rest) > 0 && links <= maxLinks; {
		next := filepath.Join(at, rest[0])
		rest = rest[1:]
		if err := v.enter(ctx, v.limiters.table.at(next)); err != nil {
			return err
		}
		n, err := unix.Readlink(next, target[:])
		if err != nil { // not a link
			at = next
			continue
		}
		links++
		if filepath.IsAbs(string(target[:n])) {
			at = "/"
		}
		rest = append(components(string(target[:n])), rest...)
	}
	if err := v.enter(ctx, v.limiters.table.at(at)); err != nil {
		return err
	}
	return v.enterDevice(ctx, at)
}

// enterDevice continues to the disk behind a block device. All device nodes lie on one mount, and one disk that does
// not answer must not count against the others.
func (v *call) enterDevice(ctx context.Context, path string) error {
	var s unix.Stat_t
	if unix.Lstat(path, &s) != nil || s.Mode&unix.S_IFMT != unix.S_IFBLK {
		return nil
	}
	number := fmt.Sprintf("%d:%d", unix.Major(s.Rdev), unix.Minor(s.Rdev))
	return v.enter(ctx, Mount{ID: -1 - int(s.Rdev), Point: path, Type: "disk", Source: number}) // mount IDs start at 0
}

func components(path string) []string {
	return strings.FieldsFunc(path, func(c rune) bool { return c == '/' })
}

// enter moves to a mount, and waits for a slot there.
func (v *call) enter(ctx context.Context, m Mount) error {
	if v.limiter != nil && v.limiter.mount.ID == m.ID {
		return nil
	}
	v.leave()
	v.mu.Lock()
	v.last = &m
	v.mu.Unlock()
	g := v.limiters.acquire(m)
	if err := g.enter(ctx, v); err != nil {
		v.limiters.release(g)
		return err
	}
	v.limiter = g
	return nil
}

func (v *call) leave() {
	if g := v.limiter; g != nil {
		g.leave(v)
		v.limiters.release(g)
		v.limiter = nil
	}
}

// mountName names the present mount of the call, or its last one.
func (v *call) mountName() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.last == nil {
		return "the path"
	}
	return v.last.String()
}
