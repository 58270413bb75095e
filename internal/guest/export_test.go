package guest

import (
	"context"
	"path/filepath"
	"time"

	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Prepare keeps a QEMU for the guest at once, whatever else the host does.
func (g *Guest) Prepare(ctx context.Context) error {
	return g.reg.pool.add(ctx, scope.Daemon("a test"), g.View().Inactive, 0)
}

// PauseBefore is how long the start waits that follows the nth crash in a row.
func PauseBefore(n int) time.Duration { return pauseBefore(n) }

// Next names the guest for which a QEMU would be prepared now; "": none.
func (r *Registry) Next() string {
	if def := r.pool.next(); def != nil {
		return def.Name
	}
	return ""
}

// Trim ends the prepared QEMUs that are of no use any more.
func (r *Registry) Trim(ctx context.Context) { r.pool.discard(ctx, r.pool.unwanted()) }

// Session is a running guest's monitor.
func (g *Guest) Session() *qmp.Session { return g.live.Load().session.Load() }

// LoseMonitor cuts the connection to a running guest's monitor, as a QEMU that
// breaks the protocol does.
func (g *Guest) LoseMonitor() { g.live.Load().session.Load().Close() }

// RunDir is a running guest's private directory.
func (g *Guest) RunDir() string { return g.reg.guestDir(g.uuid) }

// ManagedSavePath is where the guest's managed save image is, if it has one.
func (g *Guest) ManagedSavePath() string { return g.managedSavePath() }

// ForgetPrepared loses what waits for the guest without ending it.
func (g *Guest) ForgetPrepared() {
	p := g.reg.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.ready, g.uuid)
}

// CutLogs looks at the sizes of all logs now, and LogPath is a guest's.
func (r *Registry) CutLogs() { r.cutLogs() }

// LogPath is where a guest's log lies.
func (r *Registry) LogPath(name string) string { return filepath.Join(r.logDir(), name+".log") }

// SetPTY has the guest's first serial port lie where QEMU might say that it does.
func (g *Guest) SetPTY(path string) error {
	return g.change(context.Background(), scope.Daemon("a test"), "", func() error {
		g.setActive(func(d *domain.Definition) { d.Devices.Serials[0].Backend.Path = path })
		return nil
	})
}

// DestroyerOfThisRun destroys the guest as long as it is in the run that it is in now.
func (g *Guest) DestroyerOfThisRun() func(context.Context) error {
	r := g.live.Load()
	return func(ctx context.Context) error { return g.destroy(ctx, scope.Daemon("a test"), false, r) }
}

// DumperOfThisRun dumps the memory that the guest has in the run that it is in now.
func (g *Guest) DumperOfThisRun() func(ctx context.Context, path string) error {
	r := g.live.Load()
	return func(ctx context.Context, path string) error {
		return g.Dump(ctx, scope.Daemon("a test"), path, DumpOptions{in: r})
	}
}

// Waiting is how many requests wait for their turn.
func (g *Guest) Waiting() (n int) {
	_ = g.change(g.reg.life, scope.Daemon("a test"), "", func() error { n = len(g.waiting); return nil })
	return n
}

// Owed is how many operations of the guest are tried again.
func (g *Guest) Owed() (n int) {
	for _, op := range g.live.Load().ops.Operations() {
		if op.Status().State == operation.Owed {
			n++
		}
	}
	return n
}

// Unread are the bytes of a running guest's pictures that were not read.
func (g *Guest) Unread() int64 { return g.live.Load().pictures.bytes.Load() }

// IsDue says that this boot has still to start a guest.
func (r *Registry) IsDue(uuid string) bool {
	_, is := r.isDue(uuid)
	return is
}

// LendToWrite lends QEMU an image of a disk to write, by its place in the chain.
func (g *Guest) LendToWrite(ctx context.Context, target string, place int) error {
	r := g.live.Load()
	return g.lendToWrite(ctx, scope.Daemon("a test"), r, findDiskByName(g.View().Active, target), place)
}

// TakeBackToRead takes it back.
func (g *Guest) TakeBackToRead(ctx context.Context, number uint, path, format string) (kept bool, err error) {
	return g.takeBackToRead(ctx, scope.Daemon("a test"), g.live.Load(), written{number, path, format})
}

// CheckSoleUser refuses what others have of the images of a disk, from one place in its chain to another.
func (g *Guest) CheckSoleUser(ctx context.Context, target string, from, to int) error {
	d := findDiskByName(g.View().Active, target)
	chain, err := g.reg.openShown(ctx, scope.Daemon("a test"), g.live.Load(), g.View().fences, d)
	if err != nil {
		return err
	}
	defer chain.Close()
	above := ""
	if from > 0 {
		above = chain[from-1].Path
	}
	return g.checkSoleUser(ctx, scope.Daemon("a test"), d, chain[from:to+1], above)
}
