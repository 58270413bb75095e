package resources

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
)

// machine is a simulated host where launches share processors, a lock and memory. It advances by steps of a
// millisecond of the bubble's clock.
type machine struct {
	processors int

	mu       sync.Mutex
	launches []*simulated
	most     int // largest number of launches at once
	stalled  time.Duration
	thrash   bool // all threads wait for memory
	full     time.Duration
	memory   kernel.Memory
	pids     int
	touched  map[int]uint64
	touching []*toucher
}

// simulated is a launch: it sleeps, then computes, then holds the lock.
type simulated struct {
	sleep, work, serial time.Duration
	done                chan struct{}
}

// toucher is a guest that touches its memory over time.
type toucher struct {
	pid   int
	step  uint64
	steps int
}

const (
	step = time.Millisecond
	gib  = 1 << 30
)

func newMachine(processors int) *machine {
	return &machine{processors: processors, touched: map[int]uint64{}, memory: kernel.Memory{Total: 24 * gib, Available: 20 * gib}}
}

// starts returns admission on the machine, which runs until the test ends.
func (m *machine) starts(t *testing.T) *StartQueue {
	t.Helper()
	s := newStartQueue(m.processors, slog.New(slog.DiscardHandler))
	s.read = func() (hostLoad, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		return hostLoad{memory: m.memory, runnable: uint64(len(m.runnable())), hasPressure: true, cpuSome: m.stalled, memorySome: m.full, memoryFull: m.full}, nil
	}
	s.resident = func(pid int) (uint64, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		n, ok := m.touched[pid]
		if !ok {
			return 0, fs.ErrNotExist
		}
		return n, nil
	}
	ticker := time.NewTicker(step)
	over := make(chan struct{})
	t.Cleanup(func() { close(over) })
	go func() {
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				m.advance()
			case <-over:
				return
			}
		}
	}()
	return s
}

func (m *machine) runnable() (all []*simulated) {
	for _, l := range m.launches {
		if l.sleep <= 0 && l.work > 0 {
			all = append(all, l)
		}
	}
	return all
}

func (m *machine) advance() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.thrash {
		m.full += step
		return
	}
	ready := m.runnable()
	if len(ready) > m.processors {
		m.stalled += step
	}
	share := step
	if len(ready) > m.processors {
		share = step * time.Duration(m.processors) / time.Duration(len(ready))
	}
	for _, l := range ready {
		l.work -= share
	}
	var rest []*simulated
	locked := false
	for _, l := range m.launches {
		l.sleep -= step
		if l.sleep <= 0 && l.work <= 0 && l.serial > 0 && !locked {
			locked = true
			l.serial -= step
		}
		if l.sleep <= 0 && l.work <= 0 && l.serial <= 0 {
			close(l.done)
			continue
		}
		rest = append(rest, l)
	}
	m.launches = rest
	for _, g := range m.touching {
		if g.steps > 0 {
			g.steps--
			m.touched[g.pid] += g.step
			m.memory.Available -= g.step
		}
	}
}

// launch passes admission and runs.
func (m *machine) launch(ctx context.Context, s *StartQueue, q StartRequest, l simulated) error {
	release, err := s.Admit(ctx, q)
	if err != nil {
		return err
	}
	l.done = make(chan struct{})
	m.mu.Lock()
	m.launches = append(m.launches, &l)
	m.most = max(m.most, len(m.launches))
	m.pids++
	pid := m.pids
	m.touched[pid] = 0
	m.mu.Unlock()
	<-l.done
	release(LaunchOutcome{PID: pid})
	if !q.Paused {
		const boot = 2000 // in steps
		m.mu.Lock()
		m.touching = append(m.touching, &toucher{pid, q.Memory * 3 / 4 / boot, boot})
		m.mu.Unlock()
	}
	return nil
}

// storm starts many equal launches at once and returns how long they took.
func (m *machine) storm(t *testing.T, count int, l simulated) time.Duration {
	t.Helper()
	s, began := m.starts(t), time.Now()
	var all sync.WaitGroup
	for i := range count {
		all.Go(func() {
			if err := m.launch(t.Context(), s, StartRequest{Name: fmt.Sprint(i), Memory: 64 << 20, Paused: true}, l); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	t.Logf("%d starts in %v, at most %d at once; %+v", count, time.Since(began), m.most, s.State())
	return time.Since(began)
}

// Where starts only compute, the queue must leave no processor idle, and must not run more at once than keep
// the processors busy.
//
// Promise: W6
func TestStartQueue_StormOnBusyProcessor(t *testing.T) {
	for _, processors := range []int{1, 2, 16} {
		synctest.Test(t, func(t *testing.T) {
			m := newMachine(processors)
			took := m.storm(t, 256, simulated{work: 20 * time.Millisecond})
			if ideal := 256 * 20 * time.Millisecond / time.Duration(processors); took > ideal*107/100 {
				t.Errorf("%d processors took %v, which could take %v", processors, took, ideal)
			}
			if m.most > 4*processors {
				t.Errorf("%d launches at once on %d processors", m.most, processors)
			}
		})
	}
}

// Where starts mostly sleep, far more of them than processors must overlap.
func TestStartQueue_StormOfSleepers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(2)
		took := m.storm(t, 1000, simulated{sleep: 50 * time.Millisecond, work: 2 * time.Millisecond})
		if took > 3*time.Second { // it is one second of processor time; the first limit would take 13
			t.Errorf("the storm took %v", took)
		}
	})
}

// Where everything waits for one lock, more launches at once finish no sooner, however idle the processors
// are.
func TestStartQueue_StormBehindOneLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(2)
		took := m.storm(t, 400, simulated{work: time.Millisecond, serial: 10 * time.Millisecond})
		if took > 4400*time.Millisecond {
			t.Errorf("the storm took %v, which could take 4 s", took)
		}
		if m.most > 12 {
			t.Errorf("%d launches at once behind a lock", m.most)
		}
	})
}

// Lack of memory lowers the limit to one; afterwards it recovers.
func TestStartQueue_MemoryPressureLowersLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(4)
		s := m.starts(t)
		m.mu.Lock()
		m.thrash = true
		m.mu.Unlock()
		var all sync.WaitGroup
		for i := range 100 {
			all.Go(func() {
				if err := m.launch(t.Context(), s, StartRequest{Name: fmt.Sprint(i), Memory: 1 << 20, Paused: true}, simulated{work: 20 * time.Millisecond}); err != nil {
					t.Error(err)
				}
			})
		}
		<-time.After(4 * time.Second)
		if st := s.State(); st.Limit != 1 || !strings.Contains(s.Queue()[0].Reason, "waits for memory") {
			t.Errorf("after thrashing: %+v, %q", st, s.Queue()[0].Reason)
		}
		m.mu.Lock()
		m.thrash = false
		m.mu.Unlock()
		all.Wait()
		if st := s.State(); st.Limit < 4 {
			t.Errorf("after the pressure is gone: %+v", st)
		}
	})
}

// The first starts come all at once, as when the host boots. None is admitted before the host's memory has
// been read.
//
// Promise: W6
func TestStartQueue_FirstReadPrecedesAdmission(t *testing.T) {
	m := newMachine(4)
	s := m.starts(t)
	read := s.read
	var others sync.WaitGroup
	var first sync.Once
	s.read = func() (hostLoad, error) {
		first.Do(func() {
			others.Go(func() {
				release, err := s.Admit(t.Context(), StartRequest{Memory: 64 * gib, Whole: true})
				if err == nil {
					t.Error("a guest that is larger than the host is admitted")
					release(LaunchOutcome{})
				}
			})
			for range 1000 { // long enough for the second start to find the reader, which it must wait for
				runtime.Gosched()
				if st := s.State(); st.Running > 0 {
					return
				}
			}
		})
		return read()
	}
	if _, err := s.Admit(t.Context(), StartRequest{Memory: gib}); err != nil {
		t.Error(err)
	}
	others.Wait()
}

// A boot storm takes the memory that is available: guests wait while others touch theirs, and guests without
// any left are refused with the sums.
//
// Promise: W6
func TestStartQueue_BootStormPacedByMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(4)
		s := m.starts(t)
		var mu sync.Mutex
		started, refused := 0, 0
		var all sync.WaitGroup
		for i := range 10 {
			all.Go(func() {
				err := m.launch(t.Context(), s, StartRequest{Name: fmt.Sprint(i), Memory: 4 * gib}, simulated{work: 20 * time.Millisecond})
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					started++
				case fault.Is(err, fault.NoCapacity) && strings.Contains(err.Error(), "available"):
					refused++
				default:
					t.Error(err)
				}
			})
		}
		<-time.After(time.Second)
		mu.Lock()
		if started != 4 { // 4 of 4 GiB and overhead, out of 20 GiB
			t.Errorf("%d started at once", started)
		}
		mu.Unlock()
		if st := s.State(); st.Waiting != 6 || st.Settling != 4 || !strings.Contains(st.Why, "memory") {
			t.Errorf("while they settle: %+v", st)
		}
		all.Wait()
		<-time.After(10 * time.Second) // the last guests touch their memory
		m.mu.Lock()
		defer m.mu.Unlock()
		t.Logf("%d started, %d refused, %d MiB left", started, refused, m.memory.Available>>20)
		if started != 6 || refused != 4 || m.memory.Available > m.memory.Total {
			t.Errorf("%d started and %d were refused; %d MiB are left", started, refused, m.memory.Available>>20)
		}
	})
}

func TestStartQueue_GuestLargerThanHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(2)
		s, began := m.starts(t), time.Now()
		_, err := s.Admit(t.Context(), StartRequest{Memory: 24 * gib, Whole: true})
		if !fault.Is(err, fault.NoCapacity) || time.Since(began) > 0 {
			t.Errorf("got %v after %v", err, time.Since(began))
		}
		// A guest that need not touch all its memory, and starts alone, is admitted.
		release, err := s.Admit(t.Context(), StartRequest{Memory: 23 * gib})
		if err != nil {
			t.Fatal(err)
		}
		release(LaunchOutcome{})
		m.mu.Lock()
		m.memory.Available = 3 * gib
		m.mu.Unlock()
		<-time.After(time.Minute)
		if _, err = s.Admit(t.Context(), StartRequest{Memory: 23 * gib}); !fault.Is(err, fault.NoCapacity) {
			t.Errorf("with nothing left: %v", err)
		}
	})
}

// If guests of a kind took little memory, the next of that kind is expected to take little.
func TestStartQueue_ExpectsMemoryOfSameKind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(2)
		s := m.starts(t)
		for round := range 2 {
			var all sync.WaitGroup
			for range 12 {
				all.Go(func() {
					ctx, stop := context.WithTimeout(t.Context(), 3*time.Second)
					defer stop()
					release, err := s.Admit(ctx, StartRequest{Memory: 4 * gib})
					if err != nil {
						return
					}
					m.mu.Lock()
					m.pids++
					pid := m.pids
					m.touched[pid] = gib
					m.memory.Available -= gib
					m.mu.Unlock()
					release(LaunchOutcome{PID: pid})
				})
			}
			all.Wait()
			<-time.After(settleMost)
			if _, err := s.Admit(t.Context(), StartRequest{Memory: 1, Paused: true}); err != nil { // time to settle
				t.Fatal(err)
			}
			m.mu.Lock()
			if want := []int{4, 16}[round]; m.pids < want || m.pids > 3*want/2 {
				t.Errorf("round %d: %d started, want about %d", round, m.pids, want)
			}
			m.mu.Unlock()
		}
	})
}

// Launches that hang stop counting after some seconds, and are reported.
func TestStartQueue_HungLaunchReleasesSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(2)
		s := m.starts(t)
		var hung []func(LaunchOutcome)
		for range 4 {
			release, err := s.Admit(t.Context(), StartRequest{Memory: 1, Paused: true})
			if err != nil {
				t.Fatal(err)
			}
			hung = append(hung, release)
		}
		began := time.Now()
		if err := m.launch(t.Context(), s, StartRequest{Memory: 1, Paused: true}, simulated{work: time.Millisecond}); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(began); waited < stuckAfter || waited > stuckAfter+time.Second {
			t.Errorf("the fifth start took %v", waited)
		}
		if st := s.State(); st.Stuck != 4 || st.Running != 0 {
			t.Errorf("%+v", st)
		}
		for _, release := range hung {
			release(LaunchOutcome{})
			release(LaunchOutcome{}) // the second call does nothing
		}
		if st := s.State(); st.Stuck != 0 {
			t.Errorf("%+v", st)
		}
	})
}

// Promise: W6
func TestStartQueue_QueueOrderedAndVisible(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(1)
		s := m.starts(t)
		var held []func(LaunchOutcome)
		for range 2 {
			release, err := s.Admit(t.Context(), StartRequest{Memory: 1, Paused: true})
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, release)
		}
		gone, cancel := context.WithCancelCause(t.Context())
		var order []string
		var all sync.WaitGroup
		for _, q := range []StartRequest{{Name: "c", Priority: 5}, {Name: "gone"}, {Name: "a", Priority: -1}, {Name: "b"}, {Name: "d", Priority: 5}} {
			q.Paused = true
			ctx := t.Context()
			if q.Name == "gone" {
				ctx = gone
			}
			all.Go(func() {
				release, err := s.Admit(ctx, q)
				if err != nil {
					if q.Name != "gone" || !errors.Is(err, errDestroyed) {
						t.Errorf("%s: %v", q.Name, err)
					}
					return
				}
				order = append(order, q.Name) // one at a time, because each holds its slot
				<-time.After(10 * time.Millisecond)
				release(LaunchOutcome{})
			})
			synctest.Wait()
		}
		var names []string
		for i, w := range s.Queue() {
			names = append(names, w.Name)
			if w.Position != i+1 || w.Reason == "" {
				t.Errorf("%+v", w)
			}
		}
		if got := strings.Join(names, " "); got != "a gone b c d" {
			t.Errorf("the queue is %s", got)
		}
		cancel(errDestroyed)
		synctest.Wait()
		if st := s.State(); st.Waiting != 4 || st.Running != 2 {
			t.Errorf("after one has gone: %+v", st)
		}
		held[0](LaunchOutcome{})
		all.Wait()
		if got := strings.Join(order, " "); got != "a b c d" {
			t.Errorf("they started as %s", got)
		}
		held[1](LaunchOutcome{})
		if st := s.State(); st.Waiting+st.Running != 0 || s.timer != nil {
			t.Errorf("something is left: %+v", st)
		}
	})
}

var errDestroyed = errors.New("destroyed meanwhile")

func TestStartQueue_QueueBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(1)
		s := m.starts(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		var all sync.WaitGroup
		for range maxWaitingStarts + 2 {
			all.Go(func() { _, _ = s.Admit(ctx, StartRequest{Paused: true}) })
		}
		synctest.Wait()
		if _, err := s.Admit(ctx, StartRequest{}); !fault.Is(err, fault.NoCapacity) {
			t.Errorf("got %v", err)
		}
		cancel(errDestroyed)
		all.Wait()
		if len(s.Queue()) != 0 {
			t.Errorf("%d wait", len(s.Queue()))
		}
	})
}

// A nil queue, and a host that reports nothing, delay no start.
func TestStartQueue_HostWithoutFigures(t *testing.T) {
	var none *StartQueue
	if release, err := none.Admit(t.Context(), StartRequest{Memory: 1 << 60}); err != nil {
		t.Error(err)
	} else {
		release(LaunchOutcome{})
	}
	s := NewStartQueue(kernel.At(t.TempDir()), 2, slog.New(slog.DiscardHandler))
	if _, err := s.Admit(t.Context(), StartRequest{Memory: 1 << 60}); err != nil {
		t.Error(err)
	}
	live := NewStartQueue(kernel.Root{}, 2, slog.New(slog.DiscardHandler))
	release, err := live.Admit(t.Context(), StartRequest{Memory: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	release(LaunchOutcome{})
	if st := live.State(); st.Limit != 4 || st.Running != 0 {
		t.Errorf("%+v", st)
	}
}

// Without pressure figures, waits for memory are used in their place; without those, nothing is.
func TestLoadReader_WithAndWithoutPressure(t *testing.T) {
	const pressure = "some avg10=1.00 avg60=0.50 avg300=0.10 total=%d\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=%d\n"
	told := map[string]string{
		"proc/loadavg": "0 0 0 9/1000 1", "proc/pressure/cpu": fmt.Sprintf(pressure, 7000, 0), "proc/pressure/memory": fmt.Sprintf(pressure, 3000, 2000),
	}
	for name, c := range map[string]struct {
		files map[string]string
		want  hostLoad
	}{
		"pressure": {told, hostLoad{runnable: 8, hasPressure: true, cpuSome: 7 * time.Millisecond, memorySome: 3 * time.Millisecond, memoryFull: 2 * time.Millisecond}},
		"waits for memory": {
			map[string]string{"proc/vmstat": "nr_free_pages 5\nallocstall_normal 40\nallocstall_movable 2\ncompact_stall 7\n"},
			hostLoad{stalls: 42},
		},
		"nothing": {nil, hostLoad{}},
	} {
		t.Run(name, func(t *testing.T) {
			r := &loadReader{root: kernel.At(tree(t, roomy, c.files))}
			c.want.memory = kernel.Memory{Total: 16 * gib, Free: 16 * gib}
			for range 2 { // the second look has baselines
				if got, err := r.read(); err != nil || got != c.want {
					t.Errorf("got %+v, %v; want %+v", got, err, c.want)
				}
			}
		})
	}
	p := newLaunchPace(4)
	began := time.Now()
	p.applyLoad(began, hostLoad{stalls: 5})
	p.applyLoad(began.Add(time.Second), hostLoad{stalls: 5})
	if p.limit != 8 {
		t.Errorf("no wait for memory moved the limit to %d", p.limit)
	}
	p.applyLoad(began.Add(2*time.Second), hostLoad{stalls: 6})
	if p.limit != 5 || !strings.Contains(p.reason(), "freed") {
		t.Errorf("a wait for memory moved the limit to %d: %s", p.limit, p.reason())
	}
}

// boot admits a guest, launches it at once, and lets it touch an amount of memory over a time.
func (m *machine) boot(ctx context.Context, s *StartQueue, q StartRequest, touches uint64, over time.Duration) error {
	release, err := s.Admit(ctx, q)
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.pids++
	pid, steps := m.pids, int(over/step)
	m.touched[pid] = 8 << 20
	m.touching = append(m.touching, &toucher{pid, touches / uint64(steps), steps})
	m.mu.Unlock()
	release(LaunchOutcome{PID: pid})
	return nil
}

// A start that stops waiting for memory leaves no state that could refuse the next one.
func TestStartQueue_CancelledWaitLeavesNoState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(2)
		s := m.starts(t)
		m.memory.Available = 5 * gib
		large := StartRequest{Memory: 4 * gib}
		start := func(ctx context.Context, q StartRequest) <-chan error {
			over := make(chan error, 1)
			go func() { over <- m.boot(ctx, s, q, 64<<20, time.Minute) }()
			synctest.Wait()
			return over
		}
		if err := <-start(t.Context(), large); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		left := start(ctx, large)
		cancel(errDestroyed)
		if err := <-left; !errors.Is(err, errDestroyed) {
			t.Fatal(err)
		}
		if st := s.State(); st.Waiting != 0 || strings.Contains(st.Why, "memory") {
			t.Errorf("after it has left: %+v", st)
		}
		<-time.After(2 * memoryWait)
		m.mu.Lock()
		m.memory.Available = 6 * gib
		m.mu.Unlock()
		if err := <-start(t.Context(), StartRequest{Memory: 5 * gib}); err != nil { // alone again
			t.Fatal(err)
		}
		next := start(t.Context(), StartRequest{Memory: 3 * gib})
		select {
		case err := <-next:
			t.Fatalf("the next did not wait: %v", err)
		case <-time.After(settleCalm / 2):
		}
		if err := <-next; err != nil {
			t.Error(err)
		}
	})
}

// A large guest waits for memory and is not passed at first. It does not block small guests for long, and is
// refused in the end. The next large guest gets the full time again.
func TestStartQueue_LargeGuestAmongSmallOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(2)
		s := m.starts(t)
		// Small guests arrive all the time, and their memory grows for a long time.
		small := StartRequest{Memory: 256 << 20}
		began, over := time.Now(), make(chan struct{})
		var mu sync.Mutex
		var longest time.Duration
		var all sync.WaitGroup
		all.Go(func() {
			for {
				asked := time.Now()
				all.Go(func() {
					if err := m.boot(t.Context(), s, small, 200<<20, 2*settleMost); err != nil {
						t.Error(err)
					}
					mu.Lock()
					defer mu.Unlock()
					longest = max(longest, time.Since(asked))
				})
				select {
				case <-time.After(5 * time.Second):
				case <-over:
					return
				}
			}
		})
		<-time.After(time.Second)
		large := func(name string) (refused time.Duration) {
			err := m.boot(t.Context(), s, StartRequest{Name: name, Memory: 19 * gib, Whole: true}, gib, settleMost)
			if !fault.Is(err, fault.NoCapacity) {
				t.Errorf("%s: %v", name, err)
			}
			return time.Since(began)
		}
		all.Go(func() {
			<-time.After(memoryWait - 15*time.Second)
			if at := large("late"); at < memoryWait+time.Second {
				t.Errorf("the later one was refused with the first, after %v", at)
			}
		})
		if waited := large("first"); waited < memoryWait || waited > 2*memoryWait {
			t.Errorf("the large one was refused after %v", waited)
		}
		close(over)
		all.Wait()
		if longest < memoryHold/2 || longest > memoryHold+time.Second {
			t.Errorf("a small guest waited %v", longest)
		}
	})
}

// Waiting starts learn how much the first guests took, even if those took it slowly.
func TestStartQueue_SlowBootStormContinues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(4)
		s := m.starts(t)
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				if err := m.boot(t.Context(), s, StartRequest{Memory: 4 * gib}, gib, 2*settleMost); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	})
}

// All guests that started at once are looked at, and their memory predicts that of the next.
func TestStartQueue_EverySettlingGuestIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(4)
		s := m.starts(t)
		for range 3 * residentsAtOnce {
			if err := m.boot(t.Context(), s, StartRequest{Memory: 128 << 20}, 96<<20, 20*time.Second); err != nil {
				t.Fatal(err)
			}
		}
		<-time.After(2 * settleMost)
		if st := s.State(); st.Settling != 0 || st.Promised != 0 {
			t.Errorf("after two minutes: %+v", st)
		}
		release, err := s.Admit(t.Context(), StartRequest{Memory: 128 << 20})
		if err != nil {
			t.Fatal(err)
		}
		defer release(LaunchOutcome{})
		if st := s.State(); st.Promised < 96<<20 {
			t.Errorf("the next is expected to take %d MiB", st.Promised>>20)
		}
	})
}

// Lower priorities start first, but a start that has waited long enough precedes them.
func TestStartQueue_PriorityWithoutStarvation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(1)
		s := m.starts(t)
		open := func(places int) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.pace.limit = places
		}
		open(0)
		var order []string
		var all sync.WaitGroup
		wait := func(name string, priority int) {
			all.Go(func() {
				release, err := s.Admit(t.Context(), StartRequest{Name: name, Priority: priority, Paused: true})
				if err != nil {
					t.Error(err)
					return
				}
				order = append(order, name)
				<-time.After(time.Second)
				release(LaunchOutcome{})
			})
			synctest.Wait()
		}
		wait("late", 1)
		wait("last", 1<<62)
		wait("usual", 0)
		wait("early", -1)
		<-time.After(2*priorityStep + time.Second)
		wait("new", -2)
		wait("newer and urgent", -9)
		open(1)
		all.Wait()
		if got := strings.Join(order, ", "); got != "newer and urgent, early, usual, new, late, last" {
			t.Errorf("they started as %s", got)
		}
	})
}

// A figure that could not be read once, for instance for lack of descriptors, is read again and does not count
// as lack of memory.
func TestLoadReader_RetriesFailedFile(t *testing.T) {
	const pressure = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
	dir := tree(t, roomy, map[string]string{"proc/pressure/cpu": pressure, "proc/pressure/memory/not-a-file": "", "proc/vmstat": "allocstall_normal 40\n"})
	r, p, at := &loadReader{root: kernel.At(dir)}, newLaunchPace(2), time.Now()
	look := func(told bool) {
		t.Helper()
		s, err := r.read()
		if err != nil || s.hasPressure != told {
			t.Errorf("got %+v, %v", s, err)
		}
		at = at.Add(time.Second)
		p.applyLoad(at, s)
	}
	look(false)
	if err := os.RemoveAll(filepath.Join(dir, "proc/pressure/memory")); err != nil {
		t.Fatal(err)
	}
	put(t, dir, "proc/pressure/memory", pressure)
	look(true)
	r.withoutPressure = true
	look(false)
	if p.limit != newLaunchPace(2).limit {
		t.Errorf("the limit is %d: %s", p.limit, p.reason())
	}
}

// Memory promised to a launch that hangs may come back, so others wait for it.
func TestStartQueue_WaitsForMemoryOfHungLaunch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newMachine(2).starts(t)
		release, err := s.Admit(t.Context(), StartRequest{Memory: 12 * gib})
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(2*stuckAfter, func() { release(LaunchOutcome{}) })
		if release, err = s.Admit(t.Context(), StartRequest{Memory: 12 * gib}); err != nil {
			t.Fatal(err)
		}
		release(LaunchOutcome{})
	})
}
