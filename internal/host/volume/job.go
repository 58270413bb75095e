package volume

import (
	"context"
	"maps"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Bounds of concurrent work on the volumes of one pool. A transfer lasts as long as its client takes, so one
// client cannot take all slots, nor can all transfers together.
const (
	maxJobs      = 32
	maxTransfers = 24
	maxJobsEach  = 8 // of one client
)

// The verbs of transfers.
const (
	uploading   = "upload"
	downloading = "download"
)

// job marks a volume as worked on: by one exclusive user, or by several readers.
type job struct {
	verb      string
	exclusive bool
	users     map[string]int // uses by client; more than one only for readers
	begun     time.Time
	done      atomic.Uint64 // bits of a float64, 0 to 1
}

func (j *job) progress(share float64) { j.done.Store(math.Float64bits(share)) }

// Job is work on a volume that is under way.
type Job struct {
	Volume, Verb string
	Begun        time.Time
	// Done is the completed share, 0 to 1, if it is known.
	Done float64
}

// Jobs lists the pool's work under way, by volume.
func (p *Pool) Jobs() []Job {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []Job
	for _, name := range slices.Sorted(maps.Keys(p.jobs)) {
		j := p.jobs[name]
		out = append(out, Job{Volume: name, Verb: j.verb, Begun: j.begun, Done: math.Float64frombits(j.done.Load())})
	}
	return out
}

// beginJob marks a volume of the active pool for the client of ctx. Each begin needs an end.
func (p *Pool) beginJob(sc scope.Scope, name, verb string, exclusive bool) (*job, error) {
	if err := sc.Check(); err != nil {
		return nil, err
	}
	client := sc.Client()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pools.life.Err() != nil {
		return nil, context.Cause(p.pools.life)
	}
	if p.active == nil || p.stopping {
		return nil, p.inactiveError()
	}
	j := p.jobs[name]
	switch {
	case j != nil && (exclusive || j.exclusive):
		return nil, fault.New(fault.Busy, fault.Volume, "cannot %s volume %q: a job on it (%s) has been running since %s", verb, name, j.verb, j.begun.Format(time.TimeOnly))
	case client != "" && p.jobsOf(client) >= maxJobsEach:
		return nil, fault.New(fault.Busy, fault.Pool, "%d jobs on volumes of pool %q already run for this client, the maximum for one; wait for one to end, or end a transfer", maxJobsEach, p.name)
	case j != nil:
		j.users[client]++
		return j, nil
	case len(p.jobs) >= maxJobs || isTransfer(verb) && p.transfers() >= maxTransfers:
		return nil, fault.New(fault.Busy, fault.Pool, "%d volumes of pool %q are worked on already, of %d at a time, %d of them uploaded or downloaded, of %d; try again later",
			len(p.jobs), p.name, maxJobs, p.transfers(), maxTransfers)
	}
	j = &job{verb: verb, exclusive: exclusive, users: map[string]int{client: 1}, begun: time.Now()}
	p.jobs[name] = j
	return j, nil
}

func isTransfer(verb string) bool { return verb == uploading || verb == downloading }

// transfers counts the volumes that are uploaded or downloaded. The caller holds the lock.
func (p *Pool) transfers() (n int) {
	for _, j := range p.jobs {
		if isTransfer(j.verb) {
			n++
		}
	}
	return n
}

// jobsOf counts a client's jobs. The caller holds the lock.
func (p *Pool) jobsOf(client string) (n int) {
	for _, j := range p.jobs {
		n += j.users[client]
	}
	return n
}

// endJob removes a mark that begin made for a client.
func (p *Pool) endJob(name, client string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	j := p.jobs[name]
	if j.users[client]--; j.users[client] == 0 {
		delete(j.users, client)
	}
	if len(j.users) == 0 {
		delete(p.jobs, name)
	}
}

// blockNewJobs stops new work on volumes, and refuses if some is under way.
func (p *Pool) blockNewJobs() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, j := range p.jobs {
		return fault.New(fault.Busy, fault.Pool, "cannot stop pool %q: %s of volume %q is under way", p.name, j.verb, name)
	}
	p.stopping = true
	return nil
}

// runJob runs work on a marked volume in a goroutine, which removes the mark, and waits for it. The caller
// returns when ctx ends or when the pool's file system stops answering. The work is then cancelled, and its
// mark stays until it ends.
func (p *Pool) runJob(ctx context.Context, sc scope.Scope, name string, work func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stopping := context.AfterFunc(p.pools.life, func() { cancel(context.Cause(p.pools.life)) })
	defer stopping()
	done := make(chan error, 1)
	p.pools.work.Go(func() {
		_, err := recoverPanic(func() (struct{}, error) { return struct{}{}, work(ctx) })
		p.endJob(name, sc.Client())
		done <- err
	})
	// Cancelled work ends at once unless it is stuck.
	watch := time.NewTicker(answerTime / 3)
	defer watch.Stop()
	var asked chan error // receives whether the file system answers; nil: not asked yet
	for {
		select {
		case err := <-done:
			return err
		case <-watch.C:
			if asked == nil {
				asked = make(chan error, 1)
				go func(answer chan<- error) { answer <- p.checkAnswering(ctx) }(asked) // ends with ctx
			}
		case err := <-asked:
			if asked = nil; fault.Is(err, fault.Timeout) {
				cancel(err)
				return p.awaitCleanup(done, err)
			}
		case <-ctx.Done():
			return p.awaitCleanup(done, context.Cause(ctx))
		}
	}
}

// awaitCleanup gives cancelled work a moment to clean up.
func (p *Pool) awaitCleanup(done <-chan error, cause error) error {
	select {
	case err := <-done:
		return err
	case <-time.After(closeTime):
		return cause
	}
}

// checkAnswering checks whether the pool's file system answers.
func (p *Pool) checkAnswering(ctx context.Context) error {
	d, err := p.activeDefinition()
	if err != nil {
		return err
	}
	return runInWorker(ctx, p.worker, func() error { return p.refreshSizes(d) })
}
