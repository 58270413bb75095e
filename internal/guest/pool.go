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

// When a QEMU is prepared for a guest, and for how long.
const (
	// often is how many starts within oftenWithin make a guest one that is likely
	// to be started again.
	often       = 2
	oftenWithin = 10 * time.Minute
	// keepPrepared is how long one waits that nobody takes. It also bounds how
	// old what QEMU read of the host may be.
	keepPrepared = 10 * time.Minute
	// prepareLimit bounds one preparation: a start of that guest waits for it, and
	// the pool looks at nothing else meanwhile.
	prepareLimit = 10 * time.Second
	// quiet is how long nobody may have started a guest before one is prepared.
	quiet = 500 * time.Millisecond
	// lookAgain is the time between two looks at the host while there is something
	// to prepare or to keep; else the pool sleeps.
	lookAgain = time.Second
	// maxAsked bounds the guests whose starts are remembered; beyond it others are
	// not.
	maxAsked = 4096
	// Below refillMemory of the host's memory available nothing is prepared, below
	// keepMemory nothing kept: 1/n.
	refillMemory = 4
	keepMemory   = 8
	// memoryStalls is the share of time lost for memory, in percent, above which
	// nothing is kept.
	memoryStalls = 5
)

// Prepared tells of a QEMU that waits for its guest to be started.
type Prepared struct {
	Name, UUID string
	PID        int
	Since      time.Time
	// Memory is what it costs: bytes that it alone holds.
	Memory uint64
}

// pool keeps QEMUs that wait for guests which are started often. Its lock guards
// the maps and is held over nothing else. One goroutine prepares and discards,
// one at a time, while nobody starts anything.
type pool struct {
	reg   *Registry
	log   *slog.Logger
	limit int // how many may wait; 0: the pool is off
	wake  chan struct{}

	mu      sync.Mutex
	asked   map[string][]time.Time        // by UUID: the newest starts, at most often of them
	ready   map[string]*prepared          // by UUID
	refused map[string]*domain.Definition // what cannot be prepared, until it is defined anew
	last    time.Time                     // when a guest was last started
	busy    map[string]chan struct{}      // guests for which something is prepared or ended; closed when it is done
}

func newPool(r *Registry, limit int) *pool {
	return &pool{
		reg: r, log: r.log, limit: limit, wake: make(chan struct{}, 1),
		asked: map[string][]time.Time{}, ready: map[string]*prepared{}, refused: map[string]*domain.Definition{}, busy: map[string]chan struct{}{},
	}
}

// Prepared lists the QEMUs that wait, by the names of their guests.
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

// take gives what waits for a guest that starts now, which then is the caller's;
// nil: nothing does. It waits while something is being prepared for that guest,
// or ended: the guest's control group has one user at a time.
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

// free says that nothing is done for a guest any more; the lock is held.
func (p *pool) free(uuid string) {
	close(p.busy[uuid])
	delete(p.busy, uuid)
}

// run keeps the pool until ctx ends, and then ends all that wait.
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

// inUse reports whether there is anything to look after, and forgets starts of
// long ago.
func (p *pool) inUse() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.asked, func(_ string, starts []time.Time) bool {
		return time.Since(starts[len(starts)-1]) > oftenWithin
	})
	maps.DeleteFunc(p.refused, func(uuid string, _ *domain.Definition) bool { return p.asked[uuid] == nil })
	return len(p.asked)+len(p.ready) > 0
}

// unwanted takes out of the pool what is of no use any more: all of it where the
// host needs the memory.
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
		p.log.Warn("the host is short of memory: what was prepared is given up", "guests", len(gone))
	}
	return gone
}

// memoryAbove reports whether more than 1/n of the host's memory is available,
// and no time is lost for it.
func (p *pool) memoryAbove(n uint64) bool {
	m, err := p.reg.Kernel.Memory()
	if err != nil || m.Available < m.Total/n {
		return false
	}
	stalls, err := p.reg.Kernel.Pressure(kernel.MemoryPressure)
	return err != nil || stalls.Some.Avg10 < memoryStalls // a kernel may not tell
}

// calm reports whether a QEMU can be prepared without being in anybody's way.
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

// fill prepares one QEMU, for the guest that was started last among those that
// are started often.
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

// add prepares a QEMU for a guest and keeps it, unless a start came within settled:
// the guest's view may not show that yet.
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

// next chooses the guest to prepare and gives its definition; nil: there is none.
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
			p.log.Debug("a guest that is started often cannot be prepared", "domain", v.Name, "cause", err)
			p.refused[uuid] = v.Inactive
			continue
		}
		best, newest = v.Inactive, starts[len(starts)-1]
	}
	return best
}

// discard ends QEMUs that are out of the pool already, and their guests busy.
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

// close ends all that wait, and lets no more come.
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
