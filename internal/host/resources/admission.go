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
	// lookEvery is the maximum age of the host's load figures while guests start.
	lookEvery = 50 * time.Millisecond
	// stuckAfter is how long a launch counts as one that uses the host. Where launches are slow, the limit is
	// stuckTimes their usual duration.
	stuckAfter = 5 * time.Second
	stuckTimes = 8
	// memoryHold is how long the first start in the queue blocks the others while it waits for memory; most
	// starting guests have settled by then. Afterwards smaller guests may pass it, and a start passes at most
	// maxPassed others.
	memoryHold = 2 * settleCalm
	maxPassed  = 64
	// memoryWait is how long a start waits for memory while the first in the queue gets none. It is longer
	// than starting guests need to settle.
	memoryWait = settleMost + 15*time.Second
	// priorityStep is the delay in the queue for each step of priority, up to mostSteps steps. The bound
	// prevents starvation.
	priorityStep = 10 * time.Second
	mostSteps    = 1000
	// settleEvery is how often settling guests are checked while the queue is empty.
	settleEvery = time.Second
)

// StartRequest is a guest that wants to start.
type StartRequest struct {
	// Guest is its UUID, Name what people call it.
	Guest, Name string
	// Memory is how many bytes the guest may touch, without huge pages.
	Memory uint64
	// Whole says that all memory is taken at once: it is locked, or allocated before the guest runs.
	Whole bool
	// Paused guests touch little memory until their vCPUs are resumed.
	Paused bool
	// Priority orders the queue: lower numbers go first, unless a higher one has
	// waited for long.
	Priority int
}

// Outcome is how an admitted launch ended.
type Outcome struct {
	// PID is the QEMU process whose monitor has answered; 0 if the launch failed.
	PID int
}

// Waiting is a start in the queue.
type Waiting struct {
	Guest, Name string
	Since       time.Time
	// Position counts from 1, the next to start.
	Position int
	Reason   string
}

// StartsState is the state of admission at one moment.
type StartsState struct {
	// Limit is how many launches may run at once, and Running is how many do. Stuck launches take so long that
	// they no longer count.
	Limit, Running, Stuck, Waiting int
	// Settling guests have started and may still touch memory that was promised to them. Promised is that
	// memory and the memory of the launches, in bytes.
	Settling int
	Promised uint64
	// Why says why the limit last changed, or why the first in the queue waits.
	Why string
}

// Starts admits starts of guests: as many at once as the host can take, within the available memory. The
// others wait in order of priority and then of arrival. A start that waits for memory blocks those behind it,
// but only for memoryHold.
//
// A start holds a slot from the launch of QEMU until its monitor answers, because it uses the processor in
// that time. A start that waits for a file system or a network holds no slot. A launch that hangs stops
// counting after some seconds. A nil *Starts admits everything at once.
type Starts struct {
	read     func() (signs, error)
	resident func(pid int) (uint64, error)
	log      *slog.Logger

	looking sync.Mutex // held while the host is read

	mu      sync.Mutex
	looked  time.Time
	pace    pace
	memory  promises
	queue   []*waiter
	placed  map[*place]struct{}
	arrived uint64
	latency time.Duration // of a launch, a moving average
	moved   time.Time     // when the first in the queue was last admitted
	timer   *time.Timer   // runs while a start waits or a guest settles
}

// waiter is a start in the queue.
type waiter struct {
	StartRequest
	since   time.Time
	due     time.Time // the queue's order: since, moved by the priority
	number  uint64
	verdict chan verdict // has room for one
	// short is when the start was first found to lack memory; zero if it was not.
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

// NewStarts makes an empty queue for the host that root describes.
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

// Admit waits until the guest may start. The caller calls release once: when QEMU's monitor has answered or
// the launch has failed. fault.NoCapacity gives the sums of the missing memory. Cancelling ctx removes the
// start from the queue.
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

// releaser returns the release of a place, which takes effect once.
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
		return nil, fault.New(fault.NoCapacity, fault.Host, "%d guests already wait to be started, the maximum; try again later", len(s.queue))
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

// before is the order of the queue.
func before(a, b *waiter) int {
	return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.number, b.number))
}

// leave removes a start whose caller has stopped waiting. A start that was admitted at the same moment gives
// its place back.
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

// release ends a launch and keeps the guest's promised memory reserved until the guest has touched it.
func (s *Starts) release(p *place, o Outcome) {
	var resident uint64
	if o.PID > 0 {
		resident, _ = s.resident(o.PID) // a process that has ended touches nothing
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

// grant admits the starts that the host can take, in order. The caller holds the lock.
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
		w.reason = "memory promised to guests that have just started"
		switch lacked := s.lacked(w, now); {
		case lacked >= memoryWait, len(s.placed) == 0 && !s.memory.settles(): // no more memory will be freed
			s.dismiss(at, verdict{err: err})
		case lacked < memoryHold:
			return
		default:
			at++
		}
	}
}

// lacked is how long a start has lacked memory while the queue did not move.
func (s *Starts) lacked(w *waiter, now time.Time) time.Duration {
	if w.short.IsZero() {
		w.short = now
	}
	return min(now.Sub(w.short), now.Sub(s.moved))
}

// dismiss answers a start and removes it from the queue.
func (s *Starts) dismiss(at int, v verdict) {
	s.queue[at].verdict <- v
	s.queue = slices.Delete(s.queue, at, at+1)
}

// counts returns the launches that use the host and those that hang.
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

// arm sets the timer that checks the host while a start waits, because no other event may move the queue.
// While guests only settle, it checks less often.
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

// look reads the host's load if the last figures are old, or always if anyway is set. If another goroutine is
// reading, it keeps the last figures, or waits if there are none.
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
		// A process that has ended touches nothing more.
		if n, err := s.resident(g.pid); err == nil {
			g.read = n
		} else {
			g.gone = true
		}
	}
	now, err := s.read() // last, so that memory touched meanwhile is counted twice rather than missed
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looked = time.Now()
	if err != nil {
		s.log.Debug("host load not read; starts keep their pace", "error", err)
	} else {
		s.memory.see(now.memory)
		s.pace.look(s.looked, now)
	}
	s.memory.settle(settling, s.looked)
}

// isBlind says that the host's load has never been read.
func (s *Starts) isBlind() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.looked.IsZero()
}

// Queue lists the waiting starts in the order in which they will be admitted.
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

// State returns the state of admission now.
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
