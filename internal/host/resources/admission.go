package resources

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
)

// Bounds of the admission of starts.
const (
	// maxWaitingStarts bounds the queue; the start after that is refused.
	maxWaitingStarts = 16384
	// lookEvery is how old the host's signs may be while guests start.
	lookEvery = 50 * time.Millisecond
	// stuckAfter is when a launch that has not been heard of no longer counts as
	// one that uses the host. Where launches are slow it is stuckTimes what they
	// take.
	stuckAfter = 5 * time.Second
	stuckTimes = 8
	// memoryHold is how long the first in the queue keeps the others back while it
	// waits for memory: those that start have mostly settled by then. Smaller ones
	// may pass it after that, and maxPassed of those that wait at most.
	memoryHold = 2 * settleCalm
	maxPassed  = 64
	// memoryWait is how long a start waits for memory while the first in the queue
	// does not get any: longer than those that start take to settle.
	memoryWait = settleMost + 15*time.Second
	// priorityStep is how much later a start counts as come for each step of its
	// priority, of which there are mostSteps at most. So nobody is passed for ever.
	priorityStep = 10 * time.Second
	mostSteps    = 1000
	// settleEvery is how often settling guests are looked at while nobody waits.
	settleEvery = time.Second
)

// StartRequest is a guest that wants to start.
type StartRequest struct {
	// Guest is its UUID, Name what people call it.
	Guest, Name string
	// Memory is what the guest may come to touch, in bytes, without huge pages.
	Memory uint64
	// Whole says that all of it is taken at once: it is locked, or allocated
	// before the guest runs.
	Whole bool
	// Paused guests touch little until somebody lets them run.
	Paused bool
	// Priority orders the queue: lower numbers go first, unless a higher one has
	// waited for long.
	Priority int
}

// Outcome is how an admitted launch ended.
type Outcome struct {
	// PID is the QEMU process whose monitor has answered, or 0: it failed.
	PID int
}

// Waiting is a start in the queue.
type Waiting struct {
	Guest, Name string
	Since       time.Time
	// Position counts from 1, which is next.
	Position int
	Reason   string
}

// StartsState is what admission does now.
type StartsState struct {
	// Limit is how many launches may run at once, Running how many do. Stuck are
	// those that take so long that they no longer count.
	Limit, Running, Stuck, Waiting int
	// Settling guests have started and may still come to touch what they were
	// promised; Promised is that memory, with that of the launches, in bytes.
	Settling int
	Promised uint64
	// Why says what last moved the limit, or what the first in the queue waits for.
	Why string
}

// Starts lets guests start: as many at once as the host turns out to be able to
// take, and no more than there is memory for. The others wait, in the order of
// their priority and of their coming. Who waits for memory is not passed at once,
// and keeps nobody back for long.
//
// A place is held from the moment at which QEMU is run until its monitor answers,
// which is when a start uses the processor; what waits for a file system or a
// network holds none. A launch that hangs is no longer counted after some seconds.
// A nil *Starts admits everything at once.
type Starts struct {
	read     func() (signs, error)
	resident func(pid int) (uint64, error)
	log      *slog.Logger

	looking sync.Mutex // held by the one who reads the host

	mu      sync.Mutex
	looked  time.Time
	pace    pace
	memory  promises
	queue   []*waiter
	placed  map[*place]struct{}
	arrived uint64
	latency time.Duration // of a launch, smoothed
	moved   time.Time     // when the first in the queue was last admitted
	timer   *time.Timer   // runs while somebody waits or settles
}

// waiter is a start in the queue.
type waiter struct {
	StartRequest
	since   time.Time
	due     time.Time // what the queue is ordered by: since, moved by the priority
	number  uint64
	verdict chan verdict // holds one
	// short is since when it was found to lack memory; zero: it was not.
	short  time.Time
	reason string
}

type verdict struct {
	place *place
	err   error
}

// place is a launch under way.
type place struct {
	StartRequest
	began    time.Time
	expected uint64
}

// NewStarts makes an empty queue in front of the host that root tells about.
func NewStarts(root kernel.Root, processors int, log *slog.Logger) *Starts {
	s := newStarts(processors, log)
	s.read = (&signReader{root: root}).read
	s.resident = func(pid int) (uint64, error) {
		p, err := root.Process(pid)
		return p.Resident, err
	}
	return s
}

func newStarts(processors int, log *slog.Logger) *Starts {
	return &Starts{log: log, pace: newPace(processors), memory: newPromises(), placed: map[*place]struct{}{}}
}

// Admit waits until the guest may start and gives the end of its launch: to be
// called, once, when QEMU's monitor has answered or the launch has failed.
// NoCapacity says, with the sums, that the memory is not there. The end of ctx
// takes the start out of the queue.
func (s *Starts) Admit(ctx context.Context, q StartRequest) (release func(Outcome), err error) {
	if s == nil {
		return func(Outcome) {}, nil
	}
	s.look(false)
	w, err := s.enqueue(q)
	if err != nil {
		return nil, err
	}
	var v verdict
	select {
	case v = <-w.verdict:
	case <-ctx.Done():
		s.leave(w)
		return nil, context.Cause(ctx)
	}
	if v.err != nil {
		return nil, v.err
	}
	return s.releaser(v.place), nil
}

// releaser gives the one release of a place.
func (s *Starts) releaser(p *place) func(Outcome) {
	var once sync.Once
	return func(o Outcome) { once.Do(func() { s.release(p, o) }) }
}

func (s *Starts) enqueue(q StartRequest) (*waiter, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.memory.impossible(q); err != nil {
		return nil, err
	}
	if len(s.queue) >= maxWaitingStarts {
		return nil, fault.New(fault.NoCapacity, fault.Host, "%d guests wait to be started, which is the most that may; try again later", len(s.queue))
	}
	s.arrived++
	now := time.Now()
	later := time.Duration(min(max(q.Priority, -mostSteps), mostSteps)) * priorityStep
	w := &waiter{StartRequest: q, since: now, due: now.Add(later), number: s.arrived, verdict: make(chan verdict, 1), reason: "its turn"}
	at, _ := slices.BinarySearchFunc(s.queue, w, before)
	s.queue = slices.Insert(s.queue, at, w)
	s.grant()
	return w, nil
}

// before orders the queue.
func before(a, b *waiter) int {
	return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.number, b.number))
}

// leave takes out a start that nobody waits for any more. One that was admitted
// at the same moment gives its place back.
func (s *Starts) leave(w *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at, found := slices.BinarySearchFunc(s.queue, w, before); found {
		s.queue = slices.Delete(s.queue, at, at+1)
	} else if v := <-w.verdict; v.place != nil {
		delete(s.placed, v.place)
	}
	s.grant()
}

// release takes a launch out of the count and keeps what its guest was promised
// until that has been touched.
func (s *Starts) release(p *place, o Outcome) {
	var resident uint64
	if o.PID > 0 {
		resident, _ = s.resident(o.PID) // one that has gone already touches nothing
	}
	s.look(false)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	delete(s.placed, p)
	if o.PID > 0 {
		took := now.Sub(p.began)
		if s.latency == 0 {
			s.latency = took
		}
		s.latency += (took - s.latency) / 8
		s.pace.finished(now)
		s.memory.launched(p, o.PID, resident, now)
	}
	s.grant()
}

// grant admits whom the host can take, in order. The lock is held.
func (s *Starts) grant() {
	defer s.arm()
	now := time.Now()
	running, _ := s.counts(now)
	for at := 0; at < min(len(s.queue), maxPassed); {
		w := s.queue[at]
		if running >= s.pace.limit {
			s.pace.heldBack = true
			w.reason = s.pace.reason()
			return
		}
		expected, err := s.memory.admit(w.StartRequest, s.placed)
		if err == nil {
			p := &place{StartRequest: w.StartRequest, began: now, expected: expected}
			s.placed[p] = struct{}{}
			running++
			if at == 0 {
				s.moved = now
			}
			s.dismiss(at, verdict{place: p})
			continue
		}
		w.reason = "memory that guests which have just started may still touch"
		switch lacked := s.lacked(w, now); {
		case lacked >= memoryWait, len(s.placed) == 0 && !s.memory.settles(): // no more will come
			s.dismiss(at, verdict{err: err})
		case lacked < memoryHold:
			return
		default:
			at++
		}
	}
}

// lacked is for how long a start has lacked memory while the queue did not move.
func (s *Starts) lacked(w *waiter, now time.Time) time.Duration {
	if w.short.IsZero() {
		w.short = now
	}
	return min(now.Sub(w.short), now.Sub(s.moved))
}

// dismiss answers one of the queue.
func (s *Starts) dismiss(at int, v verdict) {
	s.queue[at].verdict <- v
	s.queue = slices.Delete(s.queue, at, at+1)
}

// counts tells the launches that use the host from those that hang.
func (s *Starts) counts(now time.Time) (running, stuck int) {
	patience := max(stuckAfter, stuckTimes*s.latency)
	for p := range s.placed {
		if now.Sub(p.began) < patience {
			running++
		} else {
			stuck++
		}
	}
	return running, stuck
}

// arm has the host looked at while somebody waits, as nothing else may happen that
// lets the queue move, and more seldom while guests settle.
func (s *Starts) arm() {
	next := lookEvery
	switch {
	case len(s.queue) == 0 && !s.memory.settles():
		if s.timer != nil {
			s.timer.Stop()
			s.timer = nil
		}
		return
	case len(s.queue) == 0:
		next = settleEvery
	}
	if s.timer == nil {
		s.timer = time.AfterFunc(next, s.tick)
	} else {
		s.timer.Reset(next)
	}
}

func (s *Starts) tick() {
	s.look(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.grant()
}

// look reads the host's signs when they are old, or in any case; whoever finds
// another reader at it goes on with what is known, if anything is.
func (s *Starts) look(anyway bool) {
	if !s.looking.TryLock() {
		if !s.isBlind() {
			return
		}
		s.looking.Lock()
	}
	defer s.looking.Unlock()
	s.mu.Lock()
	fresh := time.Since(s.looked) < lookEvery
	settling := s.memory.oldest()
	s.mu.Unlock()
	if fresh && !anyway {
		return
	}
	for _, g := range settling {
		// One that has gone touches nothing any more.
		if n, err := s.resident(g.pid); err == nil {
			g.read = n
		} else {
			g.gone = true
		}
	}
	now, err := s.read() // last: what guests touch meanwhile is counted twice, and not left out
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looked = time.Now()
	if err != nil {
		s.log.Debug("cannot read how busy the host is; starts go on at the last pace", "error", err)
	} else {
		s.memory.see(now.memory)
		s.pace.look(s.looked, now)
	}
	s.memory.settle(settling, s.looked)
}

// isBlind says that nobody has looked at the host yet.
func (s *Starts) isBlind() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.looked.IsZero()
}

// Queue tells who waits, in the order in which they will start.
func (s *Starts) Queue() []Waiting {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Waiting, len(s.queue))
	for i, w := range s.queue {
		all[i] = Waiting{Guest: w.Guest, Name: w.Name, Since: w.since, Position: i + 1, Reason: w.reason}
	}
	return all
}

// State tells what admission does now.
func (s *Starts) State() StartsState {
	if s == nil {
		return StartsState{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st := StartsState{Limit: s.pace.limit, Waiting: len(s.queue), Settling: len(s.memory.settling), Promised: s.memory.promised(s.placed), Why: s.pace.why}
	st.Running, st.Stuck = s.counts(time.Now())
	if len(s.queue) > 0 {
		st.Why = s.queue[0].reason
	}
	return st
}
