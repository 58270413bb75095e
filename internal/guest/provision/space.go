package provision

import (
	"context"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// QEMU pauses a guest that writes to a full file system of the host, and keeps the write. For all such
// guests of a folder together, Lodge checks whether there is space again, and resumes them. No
// administrator has to watch a full disk.

const (
	spaceCheckInterval = time.Second // while any guest waits
	// minFreeSpace is how many free bytes are worth an attempt. A guest that needs more pauses again. Its folder
	// is then not checked for twice as long as before, up to maxCheckPause.
	minFreeSpace  = 1 << 20
	maxCheckPause = time.Minute
)

// NewSpaceWatch makes the watch of guests that are paused for want of space.
func NewSpaceWatch(r *machine.Registry) *machine.SpaceWatch {
	return &machine.SpaceWatch{Registry: r, Wake: make(chan struct{}, 1), Waiting: map[*machine.Guest][]string{}, Backoffs: map[string]*machine.SpaceBackoff{}}
}

// WaitForSpace adds a guest. It runs in the guest's loop, or before the loop starts.
func WaitForSpace(w *machine.SpaceWatch, g *machine.Guest, paths []string) {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	var folders []string
	for _, p := range paths {
		folders = append(folders, filepath.Dir(p))
	}
	slices.Sort(folders)
	w.Waiting[g] = slices.Compact(folders)
	select {
	case w.Wake <- struct{}{}:
	default:
	}
}

// LeaveSpaceWatch takes a guest out of the watch.
func LeaveSpaceWatch(w *machine.SpaceWatch, g *machine.Guest) {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	delete(w.Waiting, g)
}

// RunSpaceWatch checks for space while any guest waits for it.
func RunSpaceWatch(ctx context.Context, w *machine.SpaceWatch, sc scope.Scope) {
	for {
		select {
		case <-w.Wake:
		case <-ctx.Done():
			return
		}
		tick := time.NewTicker(spaceCheckInterval)
		for resumeReady(ctx, w, sc) {
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

// resumeReady resumes the guests that have space again. It reports whether any guest still waits.
func resumeReady(ctx context.Context, w *machine.SpaceWatch, sc scope.Scope) bool {
	w.Mu.Lock()
	wanted := map[string]bool{}
	for _, folders := range w.Waiting {
		for _, f := range folders {
			if r := w.Backoffs[f]; r == nil || time.Now().After(r.Until) {
				wanted[f] = true
			}
		}
	}
	w.Mu.Unlock()
	for f := range wanted {
		wanted[f] = hasSpace(ctx, f)
	}
	w.Mu.Lock()
	var ready []*machine.Guest
	for g, folders := range w.Waiting {
		if !slices.ContainsFunc(folders, func(f string) bool { return !wanted[f] }) {
			ready = append(ready, g)
			backOff(w, folders)
			delete(w.Waiting, g)
		}
	}
	left := len(w.Waiting) > 0
	w.Mu.Unlock()
	for _, g := range ready {
		w.Loops.Go(func() { ResumeWithSpace(ctx, g, sc) })
	}
	return left
}

// backOff doubles the time until folders are checked again, up to maxCheckPause. So guests that soon run out of
// space again are resumed less often.
func backOff(w *machine.SpaceWatch, folders []string) {
	for _, f := range folders {
		r := w.Backoffs[f]
		if r == nil || time.Since(r.Until) > 10*maxCheckPause {
			r = &machine.SpaceBackoff{Pause: spaceCheckInterval}
			w.Backoffs[f] = r
		}
		if now := time.Now(); now.After(r.Until) {
			r.Pause = min(2*r.Pause, maxCheckPause)
			r.Until = now.Add(r.Pause)
		}
	}
}

// hasSpace reports whether a folder's file system has at least minFreeSpace free. A file system that does not
// answer counts as full.
func hasSpace(ctx context.Context, folder string) bool {
	free, err := FreeSpace(ctx, folder)
	return err == nil && free >= minFreeSpace
}

// FreeSpace returns the free space of a folder's file system, in bytes.
func FreeSpace(ctx context.Context, folder string) (uint64, error) {
	return fsguard.Do(ctx, folder, func() (uint64, error) {
		var s unix.Statfs_t
		err := unix.Statfs(folder, &s)
		return s.Bavail * uint64(s.Bsize), err
	}, nil)
}

// RecordDiskFull records that the guest is about to be paused because a disk is full. It runs in the loop.
func RecordDiskFull(g *machine.Guest, path string) {
	if g.Reg.KeepFullPaused || g.State.Phase != domain.Running || !filepath.IsAbs(path) {
		return // a user paused it, or the path is on no file system
	}
	if !slices.Contains(g.Instance.FullDisks, path) {
		g.Instance.FullDisks = append(slices.Clip(g.Instance.FullDisks), path)
		if g.Instance.LogDiskFull.Passes() {
			g.Log.Warn("host file system of a disk is full; guest paused until there is space", "path", path)
		}
	}
	WaitForSpace(g.Reg.SpaceWatch, g, g.Instance.FullDisks)
}

// ClearDiskFull reverts RecordDiskFull: the guest resumes, has ended, or is paused by a user.
func ClearDiskFull(g *machine.Guest) {
	LeaveSpaceWatch(g.Reg.SpaceWatch, g)
	if g.Instance != nil && len(g.Instance.FullDisks) > 0 {
		g.Instance.FullDisks = nil
		g.WriteInstance()
	}
}

// ResumeWithSpace resumes a guest that still waits for disk space and for nothing else.
func ResumeWithSpace(ctx context.Context, g *machine.Guest, sc scope.Scope) {
	errNotNow := fault.New(fault.WrongState, fault.Domain, "the guest does not wait for space any more")
	err := g.Perform(ctx, sc, lifecycle.Resume, domain.JobModify, machine.ModifyLimit, func() (machine.Work, error) {
		r := g.Instance
		if r == nil || len(r.FullDisks) == 0 || g.State.Phase != domain.Paused || g.State.Reason != domain.ReasonIOError {
			return nil, errNotNow
		}
		g.Advance(lifecycle.Resuming{Reason: domain.ReasonUnpaused})
		return func(ctx context.Context, sc scope.Scope) (machine.Settle, error) {
			s, err := r.Monitor()
			if err != nil {
				return nil, err
			}
			return nil, s.Execute(ctx, "cont", nil, nil)
		}, nil
	})
	switch {
	case err == nil:
		g.Log.Info("host has disk space again; guest resumed")
	case fault.Is(err, fault.WrongState):
	default:
		g.Log.Warn("host has disk space again; cannot resume the guest yet", "error", err)
		if v := g.View(); v.State == domain.Paused {
			_ = g.Change(ctx, sc, "", func() error { // or it has ended
				if g.Instance != nil && len(g.Instance.FullDisks) > 0 {
					WaitForSpace(g.Reg.SpaceWatch, g, g.Instance.FullDisks)
				}
				return nil
			})
		}
	}
}
