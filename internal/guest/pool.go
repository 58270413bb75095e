package guest

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// These decide when a QEMU is prepared for a guest, and how long it is kept.
const (
	// often is how many starts within oftenWithin make another start of the guest likely.
	often       = 2
	oftenWithin = 10 * time.Minute
	// keepPrepared is how long an unused prepared QEMU is kept. It also bounds the age of what QEMU read
	// from the host.
	keepPrepared = 10 * time.Minute
	// prepareLimit bounds one preparation. A start of that guest waits for it, and the pool does nothing
	// else during that time.
	prepareLimit = 10 * time.Second
	// quiet is how long no guest may have been started before one is prepared.
	quiet = 500 * time.Millisecond
	// lookAgain is the interval of the checks while there is something to prepare or to keep. Otherwise the
	// pool sleeps.
	lookAgain = time.Second
	// maxAsked bounds the number of guests whose starts are remembered. The starts of further guests are
	// not.
	maxAsked = 4096
	// Memory bounds, as a fraction 1/n of the host's memory: with less than 1/refillMemory available
	// nothing is prepared, and with less than 1/keepMemory nothing is kept.
	refillMemory = 4
	keepMemory   = 8
	// memoryStalls is the share of time, in percent, that tasks may stall for memory. Above it nothing is
	// kept.
	memoryStalls = 5
)

// Prepared describes a QEMU that is prepared for its guest's next start.
type Prepared struct {
	Name, UUID string
	PID        int
	Since      time.Time
	// Memory is its cost: the bytes that only this process holds.
	Memory uint64
}

// pool keeps QEMUs prepared for guests that are started often. Its lock guards the maps and is held only
// while they are read or changed. One goroutine prepares and discards QEMUs, one at a time, while no guest
// is being started.
type pool struct {
	reg   *Registry
	log   *slog.Logger
	limit int // how many may be kept; 0: the pool is off
	wake  chan struct{}

	mu      sync.Mutex
	asked   map[string][]time.Time        // by UUID: the newest starts, at most often of them
	ready   map[string]*prepared          // by UUID
	refused map[string]*domain.Definition // definitions that cannot be prepared, until they change
	last    time.Time                     // when a guest was last started
	busy    map[string]chan struct{}      // guests with a preparation or an end in progress; closed when it is done
}

func newPool(r *Registry, limit int) *pool {
	return &pool{
		reg: r, log: r.log, limit: limit, wake: make(chan struct{}, 1),
		asked: map[string][]time.Time{}, ready: map[string]*prepared{}, refused: map[string]*domain.Definition{}, busy: map[string]chan struct{}{},
	}
}

// Prepared lists the prepared QEMUs, sorted by the names of their guests.
func (r *Registry) Prepared() []Prepared {
	p := r.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]Prepared, 0, len(p.ready))
	for _, one := range p.ready {
		all = append(all, Prepared{one.name, one.uuid, one.process.PID, one.made, one.memory})
	}
	slices.SortFunc(all, func(a, b Prepared) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// take returns the prepared QEMU of a guest that starts now, and the caller owns it. Nil: there is none. It
// waits while one is being prepared or ended for that guest, because the guest's control group has one user
// at a time.
func (p *pool) take(ctx context.Context, uuid string) (*prepared, error) {
	if p.limit == 0 {
		return nil, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.busy[uuid] != nil {
		busy := p.busy[uuid]
		p.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
		}
		p.mu.Lock()
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
	}
	p.last = time.Now()
	if starts, known := p.asked[uuid]; known || len(p.asked) < maxAsked {
		starts = append(starts, p.last)
		p.asked[uuid] = starts[max(0, len(starts)-often):]
	}
	select {
	case p.wake <- struct{}{}:
	default:
	}
	one := p.ready[uuid]
	delete(p.ready, uuid)
	return one, nil
}

// free marks a guest as no longer busy. The lock must be held.
func (p *pool) free(uuid string) {
	close(p.busy[uuid])
	delete(p.busy, uuid)
}

// run maintains the pool until ctx ends, and then ends all prepared QEMUs.
func (p *pool) run(ctx context.Context, sc scope.Scope) {
	if p.limit == 0 {
		return
	}
	defer p.close(ctx)
	again := time.NewTimer(lookAgain)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		case <-again.C:
		}
		if p.inUse() {
			again.Reset(lookAgain)
		}
		p.discard(ctx, p.unwanted())
		p.fill(ctx, sc)
	}
}

// inUse reports whether there is anything to maintain. It also forgets starts older than oftenWithin.
func (p *pool) inUse() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.asked, func(_ string, starts []time.Time) bool {
		return time.Since(starts[len(starts)-1]) > oftenWithin
	})
	maps.DeleteFunc(p.refused, func(uuid string, _ *domain.Definition) bool { return p.asked[uuid] == nil })
	return len(p.asked)+len(p.ready) > 0
}

// unwanted removes the QEMUs from the pool that are no longer useful, or everything if the host needs the
// memory. It returns the removed QEMUs.
func (p *pool) unwanted() []*prepared {
	scarce := !p.memoryAbove(keepMemory)
	p.mu.Lock()
	defer p.mu.Unlock()
	var gone []*prepared
	for uuid, one := range p.ready {
		g, err := p.reg.ByUUID(uuid)
		if scarce || !one.alive() || time.Since(one.made) > keepPrepared || err != nil || g.View().Inactive != one.def {
			delete(p.ready, uuid)
			p.busy[uuid] = make(chan struct{})
			gone = append(gone, one)
		}
	}
	if scarce && len(gone) > 0 {
		p.log.Warn("host is short of memory; prepared QEMUs ended", "guests", len(gone))
	}
	return gone
}

// memoryAbove reports whether at least 1/n of the host's memory is available and tasks do not stall for
// memory.
func (p *pool) memoryAbove(n uint64) bool {
	m, err := p.reg.Kernel.Memory()
	if err != nil || m.Available < m.Total/n {
		return false
	}
	stalls, err := p.reg.Kernel.Pressure(kernel.MemoryPressure)
	return err != nil || stalls.Some.Avg10 < memoryStalls // some kernels do not report it
}

// calm reports whether a QEMU can be prepared without delaying other work.
func (p *pool) calm() bool {
	p.mu.Lock()
	free := len(p.ready) < p.limit && time.Since(p.last) > quiet
	p.mu.Unlock()
	if !free || !p.memoryAbove(refillMemory) {
		return false
	}
	q, err := p.reg.Kernel.RunQueue()
	return err == nil && q.Runnable <= uint64(runtime.NumCPU())
}

// fill prepares one QEMU: for the guest that was started last among those that are started often.
func (p *pool) fill(ctx context.Context, sc scope.Scope) {
	if !p.calm() {
		return
	}
	def := p.next()
	if def == nil {
		return
	}
	ctx, stop := context.WithTimeout(ctx, prepareLimit)
	defer stop()
	if err := p.add(ctx, sc, def, quiet); err != nil {
		p.log.Info("cannot prepare a guest", "domain", def.Name, "uuid", def.UUID, "cause", err)
	}
}

// add prepares a QEMU for a guest and keeps it, unless a start came within settled. The guest's view may
// not show such a start yet.
func (p *pool) add(ctx context.Context, sc scope.Scope, def *domain.Definition, settled time.Duration) error {
	p.mu.Lock()
	if starts := p.asked[def.UUID]; len(starts) > 0 && time.Since(starts[len(starts)-1]) < settled {
		p.mu.Unlock()
		return nil
	}
	p.busy[def.UUID] = make(chan struct{})
	p.mu.Unlock()
	one, err := p.reg.prepare(ctx, sc, def)
	p.mu.Lock()
	p.free(def.UUID)
	if err == nil {
		p.ready[def.UUID] = one
	} else {
		p.refused[def.UUID] = def
	}
	waiting := len(p.ready)
	p.mu.Unlock()
	if err == nil {
		p.log.Info("prepared a guest that is started often", "domain", def.Name, "uuid", def.UUID, "pid", one.process.PID,
			"memory", one.memory, "waiting", waiting, "limit", p.limit)
	}
	return err
}

// next chooses the guest to prepare and returns its definition. Nil: there is none.
func (p *pool) next() *domain.Definition {
	p.mu.Lock()
	defer p.mu.Unlock()
	var best *domain.Definition
	var newest time.Time
	for uuid, starts := range p.asked {
		if len(starts) < often || time.Since(starts[0]) > oftenWithin || p.ready[uuid] != nil || !starts[len(starts)-1].After(newest) {
			continue
		}
		g, err := p.reg.ByUUID(uuid)
		if err != nil {
			delete(p.asked, uuid)
			continue
		}
		v := g.View()
		idle := v.State == domain.ShutOff && v.PID == 0 && v.job.Kind == domain.JobNone && !v.ManagedSave
		if !idle || v.Inactive == nil || v.Inactive == p.refused[uuid] {
			continue
		}
		if err := qemu.Preparable(v.Inactive); err != nil {
			p.log.Debug("guest is started often but cannot be prepared", "domain", v.Name, "cause", err)
			p.refused[uuid] = v.Inactive
			continue
		}
		best, newest = v.Inactive, starts[len(starts)-1]
	}
	return best
}

// discard ends QEMUs that were removed from the pool. Their guests are marked busy until then.
func (p *pool) discard(ctx context.Context, gone []*prepared) {
	var all sync.WaitGroup
	for _, one := range gone {
		all.Go(func() {
			if err := one.end(ctx); err != nil {
				p.log.Error("cannot end a prepared QEMU", "domain", one.name, "pid", one.process.PID, "error", err)
			}
			p.mu.Lock()
			defer p.mu.Unlock()
			p.free(one.uuid)
		})
	}
	all.Wait()
}

// close ends all prepared QEMUs. The pool accepts no more.
func (p *pool) close(ctx context.Context) {
	p.mu.Lock()
	gone := slices.Collect(maps.Values(p.ready))
	clear(p.ready)
	for _, one := range gone {
		p.busy[one.uuid] = make(chan struct{})
	}
	p.mu.Unlock()
	p.discard(ctx, gone)
	removeFile(p.log, p.reg.preparedDir())
}
