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

// answerTime bounds the wait of a caller for a file system.
const answerTime = 30 * time.Second

// Do does short work on an absolute path and waits for it, for as long as ctx
// and a bound of its own allow. Work must look at nothing but what is at the path
// or beside it. What it gives when nobody waits for it any more goes to discard,
// which may be nil.
func Do[T any](ctx context.Context, path string, work func() (T, error), discard func(T)) (T, error) {
	return do(ctx, &process, path, work, discard)
}

// Run is Do for work that gives nothing.
func Run(ctx context.Context, path string, work func() error) error {
	_, err := Do(ctx, path, func() (struct{}, error) { return struct{}{}, work() }, nil)
	return err
}

func do[T any](ctx context.Context, gs *gates, path string, work func() (T, error), discard func(T)) (T, error) {
	began := time.Now()
	ctx, stop := context.WithTimeoutCause(ctx, answerTime, fault.New(fault.Timeout, fault.Host, "%v is the limit", answerTime))
	defer stop()
	type answer struct {
		value T
		err   error
	}
	v := &visit{gates: gs}
	answers := make(chan answer) // holds none, so that an answer is either taken or discarded
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

// contained does work whose bugs must cost its caller alone.
func contained[T any](path string, work func() (T, error)) (value T, err error) {
	defer func() {
		if bug := recover(); bug != nil {
			err = fault.New(fault.Internal, fault.Host, "what was done to %s broke: %v", path, bug)
		}
	}()
	return work()
}

// Outlast waits for long work on files that are open, such as writing them out,
// for as long as ctx allows. Path only names what is waited for. The work goes on
// when nobody waits for it any more; its caller bounds how many are begun.
func Outlast(ctx context.Context, path string, work func() error) error {
	began, done := time.Now(), make(chan error, 1)
	go func() {
		_, err := contained(path, func() (struct{}, error) { return struct{}{}, work() })
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fault.Wrap(context.Cause(ctx), kindOf(ctx), fault.Host, "stopped waiting for what is done to %s after %v", path, age(began))
	}
}

// visit is a call on its way through the mounts of its path. It is on one at a
// time, and has a place there.
type visit struct {
	gates *gates

	gate *gate // of the goroutine that walks

	mu   sync.Mutex
	last *Mount // for the caller, who reads where its goroutine is
}

// maxLinks is how many symbolic links are followed in a path, as in the kernel.
const maxLinks = 40

// walk goes to the mount where a path leads, through all that it leads through, as
// the kernel does: what is before ".." counts, for it may be a link. What is wrong
// with the path is for the work to find.
func (v *visit) walk(ctx context.Context, path string) error {
	if err := v.gates.table.renew(); err != nil {
		return err
	}
	var target [unix.PathMax]byte
	at, rest := "/", components(path)
	for links := 0; len(rest) > 0 && links <= maxLinks; {
		next := filepath.Join(at, rest[0])
		rest = rest[1:]
		if err := v.enter(ctx, v.gates.table.at(next)); err != nil {
			return err
		}
		n, err := unix.Readlink(next, target[:])
		if err != nil { // no link
			at = next
			continue
		}
		links++
		if filepath.IsAbs(string(target[:n])) {
			at = "/"
		}
		rest = append(components(string(target[:n])), rest...)
	}
	if err := v.enter(ctx, v.gates.table.at(at)); err != nil {
		return err
	}
	return v.enterDevice(ctx, at)
}

// enterDevice goes on to the disk behind a block device. All of them lie on one
// mount, and one that does not answer says nothing of the others.
func (v *visit) enterDevice(ctx context.Context, path string) error {
	var s unix.Stat_t
	if unix.Lstat(path, &s) != nil || s.Mode&unix.S_IFMT != unix.S_IFBLK {
		return nil
	}
	number := fmt.Sprintf("%d:%d", unix.Major(s.Rdev), unix.Minor(s.Rdev))
	return v.enter(ctx, Mount{ID: -1 - int(s.Rdev), Point: path, Type: "disk", Source: number}) // mounts count from 0
}

func components(path string) []string {
	return strings.FieldsFunc(path, func(c rune) bool { return c == '/' })
}

// enter goes to a mount, waiting for a place there.
func (v *visit) enter(ctx context.Context, m Mount) error {
	if v.gate != nil && v.gate.mount.ID == m.ID {
		return nil
	}
	v.leave()
	v.mu.Lock()
	v.last = &m
	v.mu.Unlock()
	g := v.gates.use(m)
	if err := g.enter(ctx, v); err != nil {
		v.gates.done(g)
		return err
	}
	v.gate = g
	return nil
}

func (v *visit) leave() {
	if g := v.gate; g != nil {
		g.leave(v)
		v.gates.done(g)
		v.gate = nil
	}
}

// where names the mount that the call is on, or was on last.
func (v *visit) where() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.last == nil {
		return "the path"
	}
	return v.last.String()
}
