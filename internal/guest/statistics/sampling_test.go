package statistics

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
)

// fleet is a set of guests with the sampler over them. Their QEMUs answer at once, except those that are stuck.
// Each sample costs the daemon some time.
type fleet struct {
	*machine.Sampler
	gauges []*machine.StatsCache
	taken  map[*machine.StatsCache][]time.Time
	stop   func()

	mu    sync.Mutex
	used  time.Duration
	stuck map[*machine.StatsCache]chan struct{} // closed when QEMU answers again
}

// newFleet starts n guests. It must be ended within its bubble.
func newFleet(t *testing.T, n int, each time.Duration) *fleet {
	t.Helper()
	f := &fleet{taken: map[*machine.StatsCache][]time.Time{}, stuck: map[*machine.StatsCache]chan struct{}{}}
	for range n {
		g := new(machine.StatsCache)
		g.Sample = func(ctx context.Context, _ *machine.Stats, _ bool, early func(*machine.Stats)) (*machine.Stats, error) {
			st := &machine.Stats{At: time.Now(), CPU: time.Second}
			early(st)
			f.mu.Lock()
			f.used += each
			again := f.stuck[g]
			f.mu.Unlock()
			if again != nil {
				select {
				case <-again:
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
			return st, nil
		}
		g.Restart(time.Now())
		f.gauges = append(f.gauges, g)
	}
	f.Sampler = NewSampler(func() []*machine.StatsCache { return f.gauges })
	f.CPU = func() time.Duration {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.used
	}
	ctx, stop := context.WithCancelCause(t.Context())
	f.stop = func() { stop(nil) }
	go RunSampler(ctx, f.Sampler)
	return f
}

// watch notes samples for a time, from outside the sampler; those there are first.
func (f *fleet) watch(length time.Duration) {
	clear(f.taken)
	end := time.Now().Add(length)
	for time.Now().Before(end) {
		<-time.After(10 * time.Millisecond)
		synctest.Wait()
		for _, g := range f.gauges {
			st := newest(g)
			if all := f.taken[g]; st != nil && st.Stale == nil && (len(all) == 0 || all[len(all)-1] != st.At) {
				f.taken[g] = append(all, st.At)
			}
		}
	}
}

// oldest is the longest time that any of these guests was without a sample.
func (f *fleet) oldest(of []*machine.StatsCache) (worst time.Duration) {
	for _, g := range of {
		all := f.taken[g]
		for i := 1; i < len(all); i++ {
			worst = max(worst, all[i].Sub(all[i-1]))
		}
		if len(all) == 0 {
			return time.Hour
		}
		worst = max(worst, time.Since(all[len(all)-1]))
	}
	return worst
}

// busiest is the most samples within any tenth of a second.
func (f *fleet) busiest() (most int) {
	count := map[int64]int{}
	for _, all := range f.taken {
		for _, at := range all {
			tenth := at.UnixMilli() / 100
			count[tenth]++
			most = max(most, count[tenth])
		}
	}
	return most
}

func (f *fleet) count() (n int) {
	for _, all := range f.taken {
		n += len(all)
	}
	return n
}

func TestSample_PanicAffectsOneGuest(t *testing.T) {
	g := &machine.StatsCache{Sample: func(context.Context, *machine.Stats, bool, func(*machine.Stats)) (*machine.Stats, error) {
		panic("no such field")
	}}
	g.Restart(time.Now())
	if _, err := fresh(t.Context(), t.Context(), g, 0); !fault.Is(err, fault.Internal) {
		t.Errorf("got %v", err)
	}
	if _, _, due := isDueAt(g, time.Now().Add(time.Hour), time.Second, 0); !due {
		t.Error("it is not sampled again")
	}
}

func TestSampler_Period(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 100, 0)
		defer f.stop()
		f.watch(firstSampleDelay - 10*time.Millisecond)
		if n := f.count(); n != 0 {
			t.Errorf("%d samples before the guests have settled", n)
		}
		f.watch(10 * time.Second)
		if n := f.count(); n != 100 {
			t.Errorf("%d first samples of 100 guests", n)
		}
		f.watch(2 * idlePeriod) // the turns spread
		f.watch(10 * idlePeriod)
		if n := f.count(); n > 1120 || f.oldest(f.gauges) > idlePeriod+2*time.Second {
			t.Errorf("without callers: %d samples in ten periods, at worst %v apart", n, f.oldest(f.gauges))
		}
		noteReader(f.Sampler)
		f.watch(5 * time.Second) // those that are older become young
		f.watch(50 * time.Second)
		if worst := f.oldest(f.gauges); worst > activePeriod+500*time.Millisecond {
			t.Errorf("with a caller samples are %v apart", worst)
		}
		if most := f.busiest(); most > 10 {
			t.Errorf("%d of 100 samples came within a tenth of a second of a period of %v", most, activePeriod)
		}
		f.watch(10 * time.Second) // interest ends
		f.watch(10 * idlePeriod)
		if n := f.count(); n > 1120 {
			t.Errorf("%d samples in ten periods after interest has ended", n)
		}
	})
}

func TestSampler_StormOfStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 500, time.Duration(initialCost))
		defer f.stop()
		f.watch(time.Minute)
		if most := f.busiest(); most > 20 {
			t.Errorf("%d first samples within a tenth of a second", most)
		}
		if worst := f.oldest(f.gauges); worst == time.Hour {
			t.Error("a guest got no first sample")
		}
	})
}

// If samples cost more, fewer are taken.
func TestSampler_CPUShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const each, length = 5 * time.Millisecond, 10 * time.Minute
		f := newFleet(t, 100, each)
		defer f.stop()
		f.watch(time.Minute)
		for _, attended := range []bool{false, true} {
			used, allowed := f.CPU(), idleShare
			for range length / time.Minute {
				if attended {
					noteReader(f.Sampler)
					allowed = activeShare
				}
				f.watch(time.Minute)
			}
			if share := (f.CPU() - used).Seconds() / length.Seconds(); share > 1.1*allowed || share < 0.8*allowed {
				t.Errorf("attended %v: %.4f of a processor is used, of %v", attended, share, allowed)
			}
		}
	})
}

func TestUpdateCost_Noise(t *testing.T) {
	c := initialCost
	for i := range 200 {
		spent := 10 * 50 * time.Microsecond
		if i%4 == 0 {
			spent *= 100 // the daemon was busy with something else
		}
		updateCost(&c, spent, 10)
	}
	if c < machine.Cost(40*time.Microsecond) || c > machine.Cost(120*time.Microsecond) {
		t.Errorf("samples of 50 µs count as %v", time.Duration(c))
	}
	for range 100 {
		updateCost(&c, 10*time.Millisecond, 10)
	}
	if c < machine.Cost(900*time.Microsecond) {
		t.Errorf("samples of 1 ms count as %v after a while", time.Duration(c))
	}
	updateCost(&c, 0, 1000)
	for range 100 {
		updateCost(&c, 0, 1)
	}
	if c != minCost {
		t.Errorf("samples for nothing count as %v", time.Duration(c))
	}
}

// A tenth of the guests stops answering. They are marked with the reason and the time, and the others are
// sampled as before. When they answer again, the marks go.
// Promise: W3
func TestSampler_StuckGuests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 250, 0)
		defer f.stop()
		noteReader(f.Sampler)
		f.watch(10 * time.Second)
		stuck, healthy := f.gauges[:25], f.gauges[25:]
		again := make(chan struct{})
		f.mu.Lock()
		for _, g := range stuck {
			f.stuck[g] = again
		}
		f.mu.Unlock()
		at := time.Now()
		f.watch(20 * time.Second)
		if worst := f.oldest(healthy); worst > activePeriod+time.Second {
			t.Errorf("beside stuck guests samples are %v apart", worst)
		}
		for _, g := range stuck {
			st := newest(g)
			if !fault.Is(st.Stale, fault.Timeout) || st.StaleSince.Before(at) || st.StaleSince.After(at.Add(2*activePeriod)) || st.At.After(at) {
				t.Fatalf("a stuck guest's sample of %v is stale because of %v since %v; it is stuck since %v", st.At, st.Stale, st.StaleSince, at)
			}
		}
		f.watch(10 * time.Second)
		if worst := f.oldest(healthy); worst > activePeriod+500*time.Millisecond {
			t.Errorf("when the stuck guests are known, samples are %v apart", worst)
		}
		close(again)
		synctest.Wait()
		for _, g := range stuck {
			if st := newest(g); st.Stale != nil {
				t.Fatalf("a guest that answers again is stale because of %v", st.Stale)
			}
		}
	})
}

// A guest that got stuck before its first sample shows the figures of the kernel.
func TestStats_NeverAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, 0)
		defer f.stop()
		f.stuck[f.gauges[0]] = make(chan struct{})
		f.watch(firstSampleDelay / 2)
		if st := newest(f.gauges[0]); st != nil {
			t.Errorf("a sample from nowhere: %+v", st)
		}
		f.watch(5 * time.Second)
		if st := newest(f.gauges[0]); st == nil || st.CPU != time.Second || st.Stale == nil {
			t.Errorf("of a guest that has never answered there is %+v", st)
		}
	})
}

// Callers with a deadline share one query to a stuck guest, and get the old sample. Once the guest is known to be
// stuck, no caller starts to wait.
// Promise: W3
func TestStats_SharedQuery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		var asked atomic.Int32
		g := &machine.StatsCache{Sample: func(ctx context.Context, last *machine.Stats, _ bool, _ func(*machine.Stats)) (*machine.Stats, error) {
			if asked.Add(1); last == nil {
				return &machine.Stats{At: time.Now()}, nil
			}
			select {
			case <-answer:
				return &machine.Stats{At: time.Now()}, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}}
		life, stop := context.WithCancelCause(t.Context())
		defer stop(nil)
		first, err := fresh(t.Context(), life, g, 0)
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Second)
		soon := errors.New("the caller's deadline")
		began := time.Now()
		done := make(chan error, 10)
		for range cap(done) {
			go func() {
				ctx, stop := context.WithTimeoutCause(t.Context(), 700*time.Millisecond, soon)
				defer stop()
				st, err := fresh(ctx, life, g, 0)
				if err == nil && (!errors.Is(st.Stale, soon) || st.At != first.At) {
					err = st.Stale
				}
				done <- err
			}()
		}
		for range cap(done) {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(began); asked.Load() != 2 || took != 700*time.Millisecond {
			t.Errorf("%d questions, %v", asked.Load(), took)
		}
		<-time.After(time.Second)
		began = time.Now()
		if st, err := fresh(t.Context(), life, g, 0); err != nil || !fault.Is(st.Stale, fault.Timeout) || time.Since(began) != 0 {
			t.Errorf("a late caller got %+v, %v after %v", st, err, time.Since(began))
		}
		close(answer)
		synctest.Wait()
		if st := newest(g); st.Stale != nil || st.At.Equal(first.At) || asked.Load() != 2 {
			t.Errorf("after QEMU has answered: %+v, %d questions", st, asked.Load())
		}
	})
}

// A sample that began before the guest was restarted is discarded.
func TestStats_EarlierInstance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		g := &machine.StatsCache{Sample: func(context.Context, *machine.Stats, bool, func(*machine.Stats)) (*machine.Stats, error) {
			<-answer
			return &machine.Stats{At: time.Now()}, nil
		}}
		g.Restart(time.Now())
		sampleForSchedule(t.Context(), g)
		synctest.Wait()
		g.Restart(time.Now())
		close(answer)
		synctest.Wait()
		if st := newest(g); st != nil {
			t.Errorf("a guest that just began has %+v", st)
		}
		if _, first, due := isDueAt(g, time.Now().Add(firstSampleDelay), activePeriod, firstSampleDelay); !first || !due {
			t.Error("and its first sample is not due")
		}
	})
}

// Samples are small, because they are kept for every guest.
func TestStats_Size(t *testing.T) {
	const sixteen = 16
	size := unsafe.Sizeof(machine.StatsCache{}) + unsafe.Sizeof(machine.Stats{}) + sixteen*unsafe.Sizeof(machine.DiskStats{}) +
		4*unsafe.Sizeof(machine.NICStats{}) + 8*(unsafe.Sizeof(machine.VCPUStats{})+unsafe.Sizeof(machine.VCPUThread{}))
	if size > 5<<10 {
		t.Errorf("the sample of a guest with 16 disks takes %d bytes", size)
	}
}

func TestChooseGuests_OldestFirst(t *testing.T) {
	now := time.Now()
	ago := func(d time.Duration) *machine.StatsCache {
		return &machine.StatsCache{Since: now.Add(-time.Hour), Begun: now.Add(-d)}
	}
	busy := ago(time.Minute)
	busy.Current = new(machine.Sampling)
	old, older, young, unborn := ago(3*time.Second), ago(4*time.Second), ago(time.Second/2), &machine.StatsCache{Since: now}
	fresh := &machine.StatsCache{Since: now.Add(-firstSampleDelay)}
	due, first := chooseGuests([]*machine.StatsCache{busy, old, young, older, unborn, fresh}, now, 2*time.Second)
	if !slices.Equal(due, []*machine.StatsCache{older, old}) || !slices.Equal(first, []*machine.StatsCache{fresh}) {
		t.Errorf("due are %v, for the first time %v", due, first)
	}
}
