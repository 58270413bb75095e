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

// Do runs short work on an absolute path and waits for it, until ctx ends or answerTime
// has passed. Work may access only the file at the path and its folder.
// If the result comes too late it goes to discard,
// which may be nil.
func Do[T any](ctx context.Context, path string, work func() (T, error), discard func(T)) (T, error) {
	return do(ctx, &process, path, work, discard)
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
			a.value, a.err = contained(path, work)
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
			v.where(), path, age(began))
	}
}

// contained runs work so that a panic costs its caller alone.
func contained[T any](path string, work func() (T, error)) (value T, err error) {
	defer func() {
		if bug := recover(); bug != nil {
			err = fault.New(fault.Internal, fault.Host, "the call on %s panicked: %v", path, bug)
		}
	}()
	return work()
}

// RunLong waits for long work on open files, such as a sync,
// until ctx ends. Path is used in the error only. The work continues
// after the caller has given up; the caller bounds how many are started.
func RunLong(ctx context.Context, path string, work func() error) error {
	began, done := time.Now(), make(chan error, 1)
	go func() {
		_, err := contained(path, func() (struct{}, error) { return struct{}{}, work() })
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fault.Wrap(context.Cause(ctx), kindOf(ctx), fault.Host, "stopped waiting for the work on %s after %v", path, age(began))
	}
}

// call is a call on its way through the mounts of its path. It is on one mount at a
// time, and holds a place there.
type call struct {
	limiters *limiters

	limiter *limiter // belongs to the goroutine that walks

	mu   sync.Mutex
	last *Mount // read by the caller, to name the mount
}

// maxLinks bounds the symbolic links followed in a path, as the kernel does.
const maxLinks = 40

// walk follows a path through all its mounts to the last one, in the kernel's order:
// a name before ".." is resolved, for it may be a link. Errors in
// the path are left to the work.
func (v *call) walk(ctx context.Context, path string) error {
	if err := v.limiters.table.renew(); err != nil {
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

// enterDevice continues to the disk behind a block device. All device nodes lie on one
// mount, and a disk that does not answer does not mean that the others are dead.
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

// enter moves to a mount, and waits for a place there.
func (v *call) enter(ctx context.Context, m Mount) error {
	if v.limiter != nil && v.limiter.mount.ID == m.ID {
		return nil
	}
	v.leave()
	v.mu.Lock()
	v.last = &m
	v.mu.Unlock()
	g := v.limiters.use(m)
	if err := g.enter(ctx, v); err != nil {
		v.limiters.done(g)
		return err
	}
	v.limiter = g
	return nil
}

func (v *call) leave() {
	if g := v.limiter; g != nil {
		g.leave(v)
		v.limiters.done(g)
		v.limiter = nil
	}
}

// where names the mount of the call, or its last one.
func (v *call) where() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.last == nil {
		return "the path"
	}
	return v.last.String()
}
