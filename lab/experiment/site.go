package experiment

import (
	"context"
	"encoding/json"
	"time"

	"github.com/lodge-kvm/lodge/lab/record"
	"github.com/lodge-kvm/lodge/lab/scenario"
	"github.com/lodge-kvm/lodge/lab/workload"
)

// Site is where guests are run: a daemon with a network and a place for files.
type Site interface {
	// Describe says at which daemons there will be something of the run.
	Describe() []record.Target
	// Lacks says what guests want that is not there, as Unavailable, before anything
	// is made for them.
	Lacks(ctx context.Context, guests []scenario.Guest) error
	// Open makes what guests of this run need beside themselves.
	Open(ctx context.Context, run string) error
	// Boot starts a guest and waits until it can be steered. If it fails nothing
	// of the guest stays.
	Boot(ctx context.Context, spec Spec) (Guest, error)
	// Reach says why the site cannot be asked for guests any more.
	Reach(ctx context.Context) error
	// Close takes away what Open made, and every guest.
	Close(ctx context.Context) error
}

// Spec is one guest of a turn.
type Spec struct {
	Name   string
	Number int // in the turn, from 1
	Tile   int // from 1
	scenario.Guest
}

// figureDowntime is what a migration tells of how long the guest stood still.
const figureDowntime = "downtime_s"

// Clock is how a guest's clock stands to the host's.
type Clock struct {
	At time.Time     // the host's
	Up time.Duration // the guest's age
}

// Guest is one that answers. Its methods may be called from many goroutines.
type Guest interface {
	Address() string
	Definition() string // exact, as it was sent
	// Prepare sets a service up.
	Prepare(ctx context.Context, service scenario.Service) error
	// Load runs a load, or an errand, to its end, or until out says that no more is
	// wanted: it is stopped then, and what it has done by that is told, too.
	Load(ctx context.Context, kind string, config json.RawMessage, out func(workload.Interval) bool) error
	// Serving says why the guest, or a service in it, does not serve any more. The
	// error is fault.Unresponsive if the guest is lost as a whole.
	Serving(ctx context.Context) error
	// Counted tells what the services' own logs have counted.
	Counted(ctx context.Context) (map[string]int64, error)
	Clock(ctx context.Context) (Clock, error)
	// Counters are what the guest's kernel has counted; names end in their unit.
	Counters(ctx context.Context) (map[string]float64, error)
	// Change does what an event says, and tells figures of it; names end in their
	// unit.
	Change(ctx context.Context, event scenario.Event) (map[string]float64, error)
	// Close destroys it with its files.
	Close(ctx context.Context) error
}

// Unavailable is what cannot be done at a site, with the reason. Errors that have
// it make something skipped, and not failed.
type Unavailable struct{ Reason string }

func (u *Unavailable) Error() string { return u.Reason }
