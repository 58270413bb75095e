package guest

import (
	"context"
	"path/filepath"
	"time"

	"github.com/lodge-kvm/lodge/internal/guest/console"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
	"github.com/lodge-kvm/lodge/internal/guest/statistics"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Prepare keeps a QEMU for the guest at once, whatever else the host does.
func Prepare(ctx context.Context, g *machine.Guest) error {
	return launch.AddPrepared(ctx, g.Reg.WarmPool, scope.Daemon("a test"), g.View().Inactive, 0)
}

// PauseBefore is how long the start waits that follows the nth crash in a row.
func PauseBefore(n int) time.Duration { return pauseBefore(n) }

// Next names the guest for which a QEMU would be prepared now; "": none.
func Next(r *machine.Registry) string {
	if def := launch.NextPrepared(r.WarmPool); def != nil {
		return def.Name
	}
	return ""
}

// Trim ends the prepared QEMUs that are of no use any more.
func Trim(ctx context.Context, r *machine.Registry) {
	launch.DiscardPrepared(ctx, r.WarmPool, launch.UnwantedPrepared(r.WarmPool))
}

// Session is a running guest's monitor.
func Session(g *machine.Guest) *qmp.Session { return g.Live.Load().Session.Load() }

// LoseMonitor cuts the connection to a running guest's monitor, as a QEMU that
// breaks the protocol does.
func LoseMonitor(g *machine.Guest) { g.Live.Load().Session.Load().Close() }

// RunDir is a running guest's private directory.
func RunDir(g *machine.Guest) string { return g.Reg.GuestDir(g.Identity) }

// ManagedSavePath is where the guest's managed save image is, if it has one.
func ManagedSavePath(g *machine.Guest) string { return savestate.ManagedSavePath(g) }

// ForgetPrepared loses what waits for the guest without ending it.
func ForgetPrepared(g *machine.Guest) {
	p := g.Reg.WarmPool
	p.Mu.Lock()
	defer p.Mu.Unlock()
	delete(p.Ready, g.Identity)
}

// CutLogs looks at the sizes of all logs now, and LogPath is a guest's.
func CutLogs(r *machine.Registry) { console.CutLogs(r) }

// LogPath is where a guest's log lies.
func LogPath(r *machine.Registry, name string) string { return filepath.Join(r.LogDir(), name+".log") }

// SetPTY has the guest's first serial port lie where QEMU might say that it does.
func SetPTY(g *machine.Guest, path string) error {
	return g.Change(context.Background(), scope.Daemon("a test"), "", func() error {
		g.SetActive(func(d *domain.Definition) { d.Devices.Serials[0].Backend.Path = path })
		return nil
	})
}

// DestroyerOfThisRun returns a function that destroys the guest's present instance, and no later one.
func DestroyerOfThisRun(g *machine.Guest) func(context.Context) error {
	r := g.Live.Load()
	return func(ctx context.Context) error { return g.Destroy(ctx, scope.Daemon("a test"), false, r) }
}

// DumperOfThisRun returns a function that dumps the memory of the guest's present instance.
func DumperOfThisRun(g *machine.Guest) func(ctx context.Context, path string) error {
	r := g.Live.Load()
	return func(ctx context.Context, path string) error {
		return savestate.Dump(ctx, g, scope.Daemon("a test"), path, savestate.DumpOptions{In: r})
	}
}

// Waiting is how many requests wait for their turn.
func Waiting(g *machine.Guest) (n int) {
	_ = g.Change(g.Reg.Life, scope.Daemon("a test"), "", func() error { n = len(g.Waiting); return nil })
	return n
}

// Owed is how many operations of the guest are tried again.
func Owed(g *machine.Guest) (n int) {
	for _, op := range g.Live.Load().Ops.Operations() {
		if op.Status().State == operation.Owed {
			n++
		}
	}
	return n
}

// Unread are the bytes of a running guest's pictures that were not read.
func Unread(g *machine.Guest) int64 { return g.Live.Load().Pictures.Bytes.Load() }

// IsDue says that this boot has still to start a guest.
func IsDue(r *machine.Registry, uuid string) bool {
	_, is := r.IsStartPending(uuid)
	return is
}

// LendToWrite lends QEMU an image of a disk to write, by its place in the chain.
func LendToWrite(ctx context.Context, g *machine.Guest, target string, place int) error {
	r := g.Live.Load()
	return provision.LendToWrite(ctx, g, scope.Daemon("a test"), r, statistics.FindDiskByName(g.View().Active, target), place)
}

// TakeBackToRead takes it back.
func TakeBackToRead(ctx context.Context, g *machine.Guest, number uint, path, format string) (kept bool, err error) {
	return provision.TakeBackToRead(ctx, g, scope.Daemon("a test"), g.Live.Load(), machine.Written{Number: number, Path: path, Format: format})
}

// CheckSoleUser refuses what others have of the images of a disk, from one place in its chain to another.
func CheckSoleUser(ctx context.Context, g *machine.Guest, target string, from, to int) error {
	return CheckSoleUserFor(ctx, g, scope.Daemon("a test"), target, from, to)
}

// CheckSoleUserFor is CheckSoleUser for a client.
func CheckSoleUserFor(ctx context.Context, g *machine.Guest, sc scope.Scope, target string, from, to int) error {
	d := statistics.FindDiskByName(g.View().Active, target)
	chain, err := provision.OpenShownFile(ctx, g.Reg, scope.Daemon("a test"), g.Live.Load(), g.View().Fences, d)
	if err != nil {
		return err
	}
	defer chain.Close()
	above := ""
	if from > 0 {
		above = chain[from-1].Path
	}
	return hotplug.CheckSoleUser(ctx, g, sc, d, chain[from:to+1], above)
}
