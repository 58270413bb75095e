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
	// loadAge is the maximum age of the host's load figures while guests start.
	loadAge = 50 * time.Millisecond
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

// LaunchOutcome is how an admitted launch ended.
type LaunchOutcome struct {
	// PID is the QEMU process whose monitor has answered; 0 if the launch failed.
	PID int
}

// WaitingStart is a start in the queue.
type WaitingStart struct {
	Guest, Name string
	Since       time.Time
	// Position counts from 1, the next to start.
	Position int
	Reason   string
}

// StartQueueState is the state of admission at one moment.
type StartQueueState struct {
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

// StartQueue admits starts of guests: as many at once as the host can take, within the available memory. The
// others wait in order of priority and then of arrival. A start that waits for memory blocks those behind it,
// but only for memoryHold.
//
// A start holds a slot from the launch of QEMU until its monitor answers, because it uses the processor in
// that time. A start that waits for a file system or a network holds no slot. A launch that hangs stops
// counting after some seconds. A nil *StartQueue admits everything at once.
type StartQueue struct {
	read     func() (hostLoad, error)
	resident func(pid int) (uint64, error)
	log      *slog.Logger

	loadReading sync.Mutex // held while the host is read

	mu             sync.Mutex
	loadReadAt     time.Time
	pace           launchPace
	memory         memoryPromises
	queue          []*queuedStart
	launches       map[*launch]struct{}
	arrivals       uint64
	latency        time.Duration // of a launch, a moving average
	headAdmittedAt time.Time     // when the first in the queue was last admitted
	timer          *time.Timer   // runs while a start waits or a guest settles
}

// queuedStart is a start in the queue.
type queuedStart struct {
	StartRequest
	since  time.Time
	due    time.Time // the queue's order: since, moved by the priority
	number uint64
	answer chan startAnswer // has room for one
	// shortSince is when the start was first found to lack memory; zero if it was not.
	shortSince time.Time
	reason     string
}

type startAnswer struct {
	launch *launch
	err    error
}

// launch is a launch under way.
type launch struct {
	StartRequest
	began    time.Time
	expected uint64
}

// NewStartQueue makes an empty queue for the host that root describes.
func NewStartQueue(root kernel.Root, processors int, log *slog.Logger) *StartQueue {
	s := newStartQueue(processors, log)
	s.read = (&loadReader{root: root}).read
	s.resident = func(pid int) (uint64, error) {
		p, err := root.Process(pid)
		return p.Resident, err
	}
	return s
}

func newStartQueue(processors int, log *slog.Logger) *StartQueue {
	return &StartQueue{log: log, pace: newLaunchPace(processors), memory: newMemoryPromises(), launches: map[*launch]struct{}{}}
}

// Admit waits until the guest may start. The caller calls release once: when QEMU's monitor has answered or
// the launch has failed. fault.NoCapacity gives the sums of the missing memory. Cancelling ctx removes the
// start from the queue.
func (s *StartQueue) Admit(ctx context.Context, q StartRequest) (release func(LaunchOutcome), err error) {
	if s == nil {
		return func(LaunchOutcome) {}, nil
	}
	s.readLoad(false)
	w, err := s.enqueue(q)
	if err != nil {
		return nil, err
	}
	var v startAnswer
	select {
	case v = <-w.answer:
	case <-ctx.Done():
		s.cancelWait(w)
		return nil, context.Cause(ctx)
	}
	if v.err != nil {
		return nil, v.err
	}
	return s.releaser(v.launch), nil
}

// releaser returns the release of a launch, which takes effect once.
func (s *StartQueue) releaser(p *launch) func(LaunchOutcome) {
	var once sync.Once
	return func(o LaunchOutcome) { once.Do(func() { s.release(p, o) }) }
}

func (s *StartQueue) enqueue(q StartRequest) (*queuedStart, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.memory.refuseNeverFitting(q); err != nil {
		return nil, err
	}
	if len(s.queue) >= maxWaitingStarts {
		return nil, fault.New(fault.NoCapacity, fault.Host, "%d guests already wait to be started, the maximum; try again later", len(s.queue))
	}
	s.arrivals++
	now := time.Now()
	later := time.Duration(min(max(q.Priority, -mostSteps), mostSteps)) * priorityStep
	w := &queuedStart{StartRequest: q, since: now, due: now.Add(later), number: s.arrivals, answer: make(chan startAnswer, 1), reason: "its turn"}
	at, _ := slices.BinarySearchFunc(s.queue, w, compareQueued)
	s.queue = slices.Insert(s.queue, at, w)
	s.admitWaiting()
	return w, nil
}

// compareQueued is the order of the queue.
func compareQueued(a, b *queuedStart) int {
	return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.number, b.number))
}

// cancelWait removes a start whose caller has stopped waiting. A start that was admitted at the same moment
// releases its slot.
func (s *StartQueue) cancelWait(w *queuedStart) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at, found := slices.BinarySearchFunc(s.queue, w, compareQueued); found {
		s.queue = slices.Delete(s.queue, at, at+1)
	} else if v := <-w.answer; v.launch != nil {
		delete(s.launches, v.launch)
	}
	s.admitWaiting()
}

// release ends a launch and keeps the guest's promised memory reserved until the guest has touched it.
func (s *StartQueue) release(p *launch, o LaunchOutcome) {
	var resident uint64
	if o.PID > 0 {
		resident, _ = s.resident(o.PID) // a process that has ended touches nothing
	}
	s.readLoad(false)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	delete(s.launches, p)
	if o.PID > 0 {
		took := now.Sub(p.began)
		if s.latency == 0 {
			s.latency = took
		}
		s.latency += (took - s.latency) / 8
		s.pace.finished(now)
		s.memory.addSettling(p, o.PID, resident, now)
	}
	s.admitWaiting()
}

// admitWaiting admits the starts that the host can take, in order. The caller holds the lock.
func (s *StartQueue) admitWaiting() {
	defer s.setTimer()
	now := time.Now()
	running, _ := s.counts(now)
	for at := 0; at < min(len(s.queue), maxPassed); {
		w := s.queue[at]
		if running >= s.pace.limit {
			s.pace.heldBack = true
			w.reason = s.pace.reason()
			return
		}
		expected, err := s.memory.promiseOrRefuse(w.StartRequest, s.launches)
		if err == nil {
			p := &launch{StartRequest: w.StartRequest, began: now, expected: expected}
			s.launches[p] = struct{}{}
			running++
			if at == 0 {
				s.headAdmittedAt = now
			}
			s.answer(at, startAnswer{launch: p})
			continue
		}
		w.reason = "memory promised to guests that have just started"
		switch lacked := s.shortFor(w, now); {
		case lacked >= memoryWait, len(s.launches) == 0 && !s.memory.hasSettling(): // no more memory will be freed
			s.answer(at, startAnswer{err: err})
		case lacked < memoryHold:
			return
		default:
			at++
		}
	}
}

// shortFor is how long a start has lacked memory while the queue did not move.
func (s *StartQueue) shortFor(w *queuedStart, now time.Time) time.Duration {
	if w.shortSince.IsZero() {
		w.shortSince = now
	}
	return min(now.Sub(w.shortSince), now.Sub(s.headAdmittedAt))
}

// answer answers a start and removes it from the queue.
func (s *StartQueue) answer(at int, v startAnswer) {
	s.queue[at].answer <- v
	s.queue = slices.Delete(s.queue, at, at+1)
}

// counts returns the launches that use the host and those that hang.
func (s *StartQueue) counts(now time.Time) (running, stuck int) {
	patience := max(stuckAfter, stuckTimes*s.latency)
	for p := range s.launches {
		if now.Sub(p.began) < patience {
			running++
		} else {
			stuck++
		}
	}
	return running, stuck
}

// setTimer sets the timer that checks the host while a start waits, because no other event may move the queue.
// While guests only settle, it checks less often.
func (s *StartQueue) setTimer() {
	next := loadAge
	switch {
	case len(s.queue) == 0 && !s.memory.hasSettling():
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

func (s *StartQueue) tick() {
	s.readLoad(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.admitWaiting()
}

// readLoad reads the host's load if the last figures are old, or always if anyway is set. If another goroutine is
// reading, it keeps the last figures, or waits if there are none.
func (s *StartQueue) readLoad(anyway bool) {
	if !s.loadReading.TryLock() {
		if !s.isLoadUnknown() {
			return
		}
		s.loadReading.Lock()
	}
	defer s.loadReading.Unlock()
	s.mu.Lock()
	fresh := time.Since(s.loadReadAt) < loadAge
	settling := s.memory.oldestSettling()
	s.mu.Unlock()
	if fresh && !anyway {
		return
	}
	for _, g := range settling {
		// A process that has ended touches nothing more.
		if n, err := s.resident(g.pid); err == nil {
			g.lastRead = n
		} else {
			g.ended = true
		}
	}
	now, err := s.read() // last, so that memory touched meanwhile is counted twice rather than missed
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loadReadAt = time.Now()
	if err != nil {
		s.log.Debug("host load not read; starts keep their pace", "error", err)
	} else {
		s.memory.setHost(now.memory)
		s.pace.applyLoad(s.loadReadAt, now)
	}
	s.memory.updateSettling(settling, s.loadReadAt)
}

// isLoadUnknown says that the host's load has never been read.
func (s *StartQueue) isLoadUnknown() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.loadReadAt.IsZero()
}

// Queue lists the waiting starts in the order in which they will be admitted.
func (s *StartQueue) Queue() []WaitingStart {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]WaitingStart, len(s.queue))
	for i, w := range s.queue {
		all[i] = WaitingStart{Guest: w.Guest, Name: w.Name, Since: w.since, Position: i + 1, Reason: w.reason}
	}
	return all
}

// State returns the state of admission now.
func (s *StartQueue) State() StartQueueState {
	if s == nil {
		return StartQueueState{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st := StartQueueState{Limit: s.pace.limit, Waiting: len(s.queue), Settling: len(s.memory.settling), Promised: s.memory.promised(s.launches), Why: s.pace.why}
	st.Running, st.Stuck = s.counts(time.Now())
	if len(s.queue) > 0 {
		st.Why = s.queue[0].reason
	}
	return st
}
