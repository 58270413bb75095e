package launch

import (
	"cmp"
	"context"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// These decide when a QEMU is prepared for a guest, and how long it is kept.
const (
	// startsToPrepare is how many starts within startsWindow make another start of the guest likely.
	startsToPrepare = 2
	startsWindow    = 10 * time.Minute
	// keepPrepared is how long an unused prepared QEMU is kept. It also bounds the age of the files
	// that QEMU read from the host.
	keepPrepared = 10 * time.Minute
	// prepareLimit bounds one preparation. A start of that guest waits for it, and the pool does nothing
	// else during that time.
	prepareLimit = 10 * time.Second
	// quietTime is how long no guest may have been started before one is prepared.
	quietTime = 500 * time.Millisecond
	// poolInterval is the interval of the checks while there is something to prepare or to keep. Otherwise the
	// pool sleeps.
	poolInterval = time.Second
	// maxAsked bounds the number of guests for which the pool remembers starts. It ignores the starts of
	// further guests.
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

// NewWarmPool makes an empty pool for at most limit QEMUs.
func NewWarmPool(r *machine.Registry, limit int) *machine.WarmPool {
	return &machine.WarmPool{
		Reg: r, Log: r.Log, Limit: limit, Wake: make(chan struct{}, 1),
		Asked: map[string][]time.Time{}, Ready: map[string]*machine.PreparedQEMU{}, Refused: map[string]*domain.Definition{}, Busy: map[string]chan struct{}{},
	}
}

// ListPrepared lists the prepared QEMUs, sorted by the names of their guests.
func ListPrepared(r *machine.Registry) []Prepared {
	p := r.WarmPool
	p.Mu.Lock()
	defer p.Mu.Unlock()
	all := make([]Prepared, 0, len(p.Ready))
	for _, one := range p.Ready {
		all = append(all, Prepared{one.Name, one.UUID, one.Process.PID, one.Made, one.Memory})
	}
	slices.SortFunc(all, func(a, b Prepared) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// takePrepared returns the prepared QEMU of a guest that starts now, and the caller owns it. Nil: there is none. It
// waits while one is being prepared or ended for that guest, because the guest's control group has one user
// at a time.
func takePrepared(ctx context.Context, p *machine.WarmPool, uuid string) (*machine.PreparedQEMU, error) {
	if p.Limit == 0 {
		return nil, nil
	}
	p.Mu.Lock()
	defer p.Mu.Unlock()
	for p.Busy[uuid] != nil {
		busy := p.Busy[uuid]
		p.Mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
		}
		p.Mu.Lock()
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
	}
	p.Last = time.Now()
	if starts, known := p.Asked[uuid]; known || len(p.Asked) < maxAsked {
		starts = append(starts, p.Last)
		p.Asked[uuid] = starts[max(0, len(starts)-startsToPrepare):]
	}
	select {
	case p.Wake <- struct{}{}:
	default:
	}
	one := p.Ready[uuid]
	delete(p.Ready, uuid)
	return one, nil
}

// unmarkBusy marks a guest as no longer busy. The lock must be held.
func unmarkBusy(p *machine.WarmPool, uuid string) {
	close(p.Busy[uuid])
	delete(p.Busy, uuid)
}

// RunPool maintains the pool until ctx ends, and then ends all prepared QEMUs.
func RunPool(ctx context.Context, p *machine.WarmPool, sc scope.Scope) {
	if p.Limit == 0 {
		return
	}
	defer closePool(ctx, p)
	again := time.NewTimer(poolInterval)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.Wake:
		case <-again.C:
		}
		if inUse(p) {
			again.Reset(poolInterval)
		}
		DiscardPrepared(ctx, p, UnwantedPrepared(p))
		prepareNext(ctx, p, sc)
	}
}

// inUse reports whether there is anything to maintain. It also forgets starts older than startsWindow.
func inUse(p *machine.WarmPool) bool {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	maps.DeleteFunc(p.Asked, func(_ string, starts []time.Time) bool {
		return time.Since(starts[len(starts)-1]) > startsWindow
	})
	maps.DeleteFunc(p.Refused, func(uuid string, _ *domain.Definition) bool { return p.Asked[uuid] == nil })
	return len(p.Asked)+len(p.Ready) > 0
}

// UnwantedPrepared removes the QEMUs from the pool that are no longer useful, or everything if the host needs the
// memory. It returns the removed QEMUs.
func UnwantedPrepared(p *machine.WarmPool) []*machine.PreparedQEMU {
	scarce := !memoryAbove(p, keepMemory)
	p.Mu.Lock()
	defer p.Mu.Unlock()
	var gone []*machine.PreparedQEMU
	for uuid, one := range p.Ready {
		g, err := p.Reg.ByUUID(uuid)
		if scarce || !isAlive(one) || time.Since(one.Made) > keepPrepared || err != nil || g.View().Inactive != one.Def {
			delete(p.Ready, uuid)
			p.Busy[uuid] = make(chan struct{})
			gone = append(gone, one)
		}
	}
	if scarce && len(gone) > 0 {
		p.Log.Warn("host is short of memory; prepared QEMUs ended", "guests", len(gone))
	}
	return gone
}

// memoryAbove reports whether at least 1/n of the host's memory is available and tasks do not stall for
// memory.
func memoryAbove(p *machine.WarmPool, n uint64) bool {
	m, err := p.Reg.Kernel.Memory()
	if err != nil || m.Available < m.Total/n {
		return false
	}
	stalls, err := p.Reg.Kernel.Pressure(kernel.MemoryPressure)
	return err != nil || stalls.Some.Avg10 < memoryStalls // some kernels do not report it
}

// isCalm reports whether a QEMU can be prepared without delaying other work.
func isCalm(p *machine.WarmPool) bool {
	p.Mu.Lock()
	free := len(p.Ready) < p.Limit && time.Since(p.Last) > quietTime
	p.Mu.Unlock()
	if !free || !memoryAbove(p, refillMemory) {
		return false
	}
	q, err := p.Reg.Kernel.RunQueue()
	return err == nil && q.Runnable <= uint64(runtime.NumCPU())
}

// prepareNext prepares one QEMU: for the guest that was started last among those that are started often.
func prepareNext(ctx context.Context, p *machine.WarmPool, sc scope.Scope) {
	if !isCalm(p) {
		return
	}
	def := NextPrepared(p)
	if def == nil {
		return
	}
	ctx, stop := context.WithTimeout(ctx, prepareLimit)
	defer stop()
	if err := AddPrepared(ctx, p, sc, def, quietTime); err != nil {
		p.Log.Info("cannot prepare a guest", "domain", def.Name, "uuid", def.UUID, "cause", err)
	}
}

// AddPrepared prepares a QEMU for a guest and keeps it, unless a start came within settled. The guest's view may
// not show such a start yet.
func AddPrepared(ctx context.Context, p *machine.WarmPool, sc scope.Scope, def *domain.Definition, settled time.Duration) error {
	p.Mu.Lock()
	if starts := p.Asked[def.UUID]; len(starts) > 0 && time.Since(starts[len(starts)-1]) < settled {
		p.Mu.Unlock()
		return nil
	}
	p.Busy[def.UUID] = make(chan struct{})
	p.Mu.Unlock()
	one, err := prepare(ctx, p.Reg, sc, def)
	p.Mu.Lock()
	unmarkBusy(p, def.UUID)
	if err == nil {
		p.Ready[def.UUID] = one
	} else {
		p.Refused[def.UUID] = def
	}
	waiting := len(p.Ready)
	p.Mu.Unlock()
	if err == nil {
		p.Log.Info("prepared a guest that is started often", "domain", def.Name, "uuid", def.UUID, "pid", one.Process.PID,
			"memory", one.Memory, "waiting", waiting, "limit", p.Limit)
	}
	return err
}

// NextPrepared chooses the guest to prepare and returns its definition. Nil: there is none.
func NextPrepared(p *machine.WarmPool) *domain.Definition {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	var best *domain.Definition
	var newest time.Time
	for uuid, starts := range p.Asked {
		if len(starts) < startsToPrepare || time.Since(starts[0]) > startsWindow || p.Ready[uuid] != nil || !starts[len(starts)-1].After(newest) {
			continue
		}
		g, err := p.Reg.ByUUID(uuid)
		if err != nil {
			delete(p.Asked, uuid)
			continue
		}
		v := g.View()
		idle := v.State == domain.ShutOff && v.PID == 0 && v.Job.Kind == domain.JobNone && !v.ManagedSave
		if !idle || v.Inactive == nil || v.Inactive == p.Refused[uuid] {
			continue
		}
		if err := qemu.Preparable(v.Inactive); err != nil {
			p.Log.Debug("guest is started often but cannot be prepared", "domain", v.Name, "cause", err)
			p.Refused[uuid] = v.Inactive
			continue
		}
		best, newest = v.Inactive, starts[len(starts)-1]
	}
	return best
}

// DiscardPrepared ends QEMUs that were removed from the pool. Their guests are marked busy until then.
func DiscardPrepared(ctx context.Context, p *machine.WarmPool, gone []*machine.PreparedQEMU) {
	var all sync.WaitGroup
	for _, one := range gone {
		all.Go(func() {
			if err := end(ctx, one); err != nil {
				p.Log.Error("cannot end a prepared QEMU", "domain", one.Name, "pid", one.Process.PID, "error", err)
			}
			p.Mu.Lock()
			defer p.Mu.Unlock()
			unmarkBusy(p, one.UUID)
		})
	}
	all.Wait()
}

// closePool ends all prepared QEMUs. The pool accepts no more.
func closePool(ctx context.Context, p *machine.WarmPool) {
	p.Mu.Lock()
	gone := slices.Collect(maps.Values(p.Ready))
	clear(p.Ready)
	for _, one := range gone {
		p.Busy[one.UUID] = make(chan struct{})
	}
	p.Mu.Unlock()
	DiscardPrepared(ctx, p, gone)
	machine.RemoveFile(p.Log, PreparedDir(p.Reg))
}
