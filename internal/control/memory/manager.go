package memory

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/lodge-kvm/lodge/internal/control/fleet"
	"github.com/lodge-kvm/lodge/internal/decision/arbiter"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
)

// Config is what a manager works with.
type Config struct {
	Guests *guest.Registry
	Fleet  *fleet.Fleet // guests' own settings are in their marks
	Kernel kernel.Root
	Log    *slog.Logger
	Mode   Mode
	// Most bounds what all guests together may hold, in bytes; 0: what the host has.
	Most uint64
}

// Manager shares the host's memory among the running guests.
type Manager struct {
	config Config

	// The fields below belong to the goroutine of Run.

	arbiter *arbiter.Arbiter
	tracks  map[string]*track // by UUID
	work    sync.WaitGroup    // questions and moves that are under way

	mu      sync.Mutex
	picture Picture
}

// New makes a manager. It does nothing until Run.
func New(c Config) *Manager {
	return &Manager{config: c, arbiter: arbiter.New(arbiter.Tuned), tracks: map[string]*track{}, picture: Picture{Mode: c.Mode}}
}

// look is how often the manager looks. A shorter period lets guests that burst grow in time.
const look = time.Second

// Run looks and decides until ctx ends. It returns at once in mode off.
func (m *Manager) Run(ctx context.Context) {
	if m.config.Mode == Off {
		return
	}
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		m.step(ctx, time.Now())
		select {
		case <-tick.C:
		case <-ctx.Done():
			m.work.Wait()
			return
		}
	}
}

// step looks at the host and its guests once, and carries out what the arbiter decides.
func (m *Manager) step(ctx context.Context, now time.Time) {
	host, err := m.config.Kernel.Memory()
	if err != nil {
		m.config.Log.Warn("host memory not read; memory of guests stays as it is", "error", err)
		return
	}
	guests, tracks := m.gather(now)
	h := m.hostOf(host, guests, tracks)
	calm := isCalm(h, guests)
	for i := range guests {
		if guests[i].Apart == "" {
			tracks[i].ask(ctx, &m.work, now, &guests[i], calm)
		}
	}
	decisions := m.arbiter.Decide(now, h, guests)
	p := Picture{Mode: m.config.Mode, At: now, Host: h, Budget: m.arbiter.Rules.Budget(h)}
	for i := range decisions {
		p.Guests = append(p.Guests, tracks[i].follow(ctx, m, now, &guests[i], decisions[i]))
	}
	m.mu.Lock()
	m.picture = p
	m.mu.Unlock()
}

// calmUse is the part of a host's memory in use below which guests are asked less often (paper 000: 80 % is an alarm).
const calmUse = .8

func isCalm(h arbiter.Host, guests []arbiter.Guest) bool {
	used := h.Others - h.Shared
	for i := range guests {
		used += guests[i].Resident
	}
	return used < calmUse*h.Memory
}

// hostOf is the host as the arbiter sees it. All that is in use and is not memory of a guest counts as held by others. A
// bound for all guests together, with their QEMUs, makes the host smaller.
func (m *Manager) hostOf(host kernel.Memory, guests []arbiter.Guest, tracks []*track) arbiter.Host {
	var resident, own float64
	for i := range guests {
		resident, own = resident+guests[i].Resident, own+tracks[i].own
	}
	h := arbiter.Host{Memory: mib(host.Total), Others: max(mib(host.Total-min(host.Available, host.Total))-resident, 0)}
	if use := m.arbiter.Rules.Use; m.config.Most > 0 && mib(m.config.Most)-own < use*h.Memory-h.Others {
		return arbiter.Host{Memory: mib(m.config.Most) / use, Others: own}
	}
	return h
}

// Picture is what the manager last saw and decided.
func (m *Manager) Picture() Picture {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.picture
}

func mib(bytes uint64) float64 { return float64(bytes) / (1 << 20) }

// bytesOf rounds down to a MiB.
func bytesOf(mib float64) uint64 { return uint64(max(mib, 0)) << 20 }
