package guest

import (
	"context"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// QEMU pauses a guest that writes to a full file system of the host, and keeps the write. For all such
// guests of a folder together, Lodge checks whether there is space again, and resumes them. No
// administrator has to watch a full disk.

const (
	roomTick = time.Second // while any guest waits
	// enoughRoom is how many free bytes are worth an attempt. A guest that needs more pauses again, and its
	// folder then rests twice as long as before, up to longestRest.
	enoughRoom  = 1 << 20
	longestRest = time.Minute
)

// rooms are the guests that wait for disk space.
type rooms struct {
	*Registry
	came chan struct{} // buffered: signals that a guest waits

	mu      sync.Mutex
	waiting map[*Guest][]string // the full folders of each guest
	rests   map[string]*rest    // of folders with resumed guests
}

// rest is how long a folder is not checked.
type rest struct {
	until time.Time
	long  time.Duration
}

func newRooms(r *Registry) *rooms {
	return &rooms{Registry: r, came: make(chan struct{}, 1), waiting: map[*Guest][]string{}, rests: map[string]*rest{}}
}

// wait adds a guest. It runs in the guest's loop, or before the loop starts.
func (w *rooms) wait(g *Guest, paths []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var folders []string
	for _, p := range paths {
		folders = append(folders, filepath.Dir(p))
	}
	slices.Sort(folders)
	w.waiting[g] = slices.Compact(folders)
	select {
	case w.came <- struct{}{}:
	default:
	}
}

func (w *rooms) leave(g *Guest) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.waiting, g)
}

// run checks for space while any guest waits for it.
func (w *rooms) run(ctx context.Context, sc scope.Scope) {
	for {
		select {
		case <-w.came:
		case <-ctx.Done():
			return
		}
		tick := time.NewTicker(roomTick)
		for w.look(ctx, sc) {
			select {
			case <-tick.C:
			case <-ctx.Done():
				tick.Stop()
				return
			}
		}
		tick.Stop()
	}
}

// look resumes the guests that have space again. It reports whether any guest still waits.
func (w *rooms) look(ctx context.Context, sc scope.Scope) bool {
	w.mu.Lock()
	wanted := map[string]bool{}
	for _, folders := range w.waiting {
		for _, f := range folders {
			if r := w.rests[f]; r == nil || time.Now().After(r.until) {
				wanted[f] = true
			}
		}
	}
	w.mu.Unlock()
	for f := range wanted {
		wanted[f] = hasRoom(ctx, f)
	}
	w.mu.Lock()
	var ready []*Guest
	for g, folders := range w.waiting {
		if !slices.ContainsFunc(folders, func(f string) bool { return !wanted[f] }) {
			ready = append(ready, g)
			w.tire(folders)
			delete(w.waiting, g)
		}
	}
	left := len(w.waiting) > 0
	w.mu.Unlock()
	for _, g := range ready {
		w.loops.Go(func() { g.goOnWithRoom(ctx, sc) })
	}
	return left
}

// tire makes folders rest longer each time that their guests run out of space again.
func (w *rooms) tire(folders []string) {
	for _, f := range folders {
		r := w.rests[f]
		if r == nil || time.Since(r.until) > 10*longestRest {
			r = &rest{long: roomTick}
			w.rests[f] = r
		}
		if now := time.Now(); now.After(r.until) {
			r.long = min(2*r.long, longestRest)
			r.until = now.Add(r.long)
		}
	}
}

// hasRoom asks a folder's file system. A file system that does not answer counts as full.
func hasRoom(ctx context.Context, folder string) bool {
	free, err := freeRoom(ctx, folder)
	return err == nil && free >= enoughRoom
}

// freeRoom returns the free space of a folder's file system, in bytes.
func freeRoom(ctx context.Context, folder string) (uint64, error) {
	return fsguard.Do(ctx, folder, func() (uint64, error) {
		var s unix.Statfs_t
		err := unix.Statfs(folder, &s)
		return s.Bavail * uint64(s.Bsize), err
	}, nil)
}

// lacksRoom records that the guest is about to be paused because a disk is full. It runs in the loop.
func (g *Guest) lacksRoom(path string) {
	if g.reg.StayFull || g.state.Phase != domain.Running || !filepath.IsAbs(path) {
		return // a user paused it, or the path is on no file system
	}
	if !slices.Contains(g.run.NoRoom, path) {
		g.run.NoRoom = append(slices.Clip(g.run.NoRoom), path)
		if g.run.full.passes() {
			g.log.Warn("host file system of a disk is full; guest paused until there is space", "path", path)
		}
	}
	g.reg.rooms.wait(g, g.run.NoRoom)
}

// hasRoomAgain reverts lacksRoom: the guest resumes, has ended, or is paused by a user.
func (g *Guest) hasRoomAgain() {
	g.reg.rooms.leave(g)
	if g.run != nil && len(g.run.NoRoom) > 0 {
		g.run.NoRoom = nil
		g.keepRun()
	}
}

// goOnWithRoom resumes a guest that still waits for disk space and for nothing else.
func (g *Guest) goOnWithRoom(ctx context.Context, sc scope.Scope) {
	errNotNow := fault.New(fault.WrongState, fault.Domain, "the guest does not wait for room any more")
	err := g.perform(ctx, sc, lifecycle.Resume, domain.JobModify, modifyLimit, func() (work, error) {
		r := g.run
		if r == nil || len(r.NoRoom) == 0 || g.state.Phase != domain.Paused || g.state.Reason != domain.ReasonIOError {
			return nil, errNotNow
		}
		g.advance(lifecycle.Resuming{Reason: domain.ReasonUnpaused})
		return func(ctx context.Context, sc scope.Scope) (settle, error) {
			s, err := r.monitor()
			if err != nil {
				return nil, err
			}
			return nil, s.Execute(ctx, "cont", nil, nil)
		}, nil
	})
	switch {
	case err == nil:
		g.log.Info("host has disk space again; guest resumed")
	case fault.Is(err, fault.WrongState):
	default:
		g.log.Warn("host has disk space again; cannot resume the guest yet", "error", err)
		if v := g.View(); v.State == domain.Paused {
			_ = g.change(ctx, sc, "", func() error { // or it has ended
				if g.run != nil && len(g.run.NoRoom) > 0 {
					g.reg.rooms.wait(g, g.run.NoRoom)
				}
				return nil
			})
		}
	}
}
