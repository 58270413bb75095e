package resources

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemucaps"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemuprobe"
	"github.com/lodge-kvm/lodge/internal/mechanism/sandbox"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
)

// emulatorKind is the record of what a QEMU binary can do; its key is the path.
var emulatorKind = store.Kind{Name: "emulator", Version: 1}

// Emulators knows what the host's QEMU binaries can do. Each is probed once,
// however many ask at the same time, and again only when the file has changed;
// the answer outlives the daemon. A failed probe is an answer too.
type Emulators struct {
	// Quarters are where binaries are probed; nil: where the daemon runs.
	Quarters *sandbox.Isolation

	store  *store.Store
	log    *slog.Logger
	usual  string
	flight singleflight.Group

	mu     sync.RWMutex
	known  map[string]*qemucaps.Capabilities
	looked map[string]time.Time // when a binary was last seen to be the one that is known
}

// fresh is how long one look at a binary's file serves all who ask: a storm of
// definitions or starts need not look at the same file thousands of times a second,
// and nobody can tell a file that is replaced now from one replaced a moment later.
const fresh = 50 * time.Millisecond

// NewEmulators reads what earlier daemons have learnt. The usual binary is that
// of a guest that names none.
func NewEmulators(s *store.Store, usual string, log *slog.Logger) (*Emulators, error) {
	e := &Emulators{store: s, log: log, usual: usual, known: map[string]*qemucaps.Capabilities{}, looked: map[string]time.Time{}}
	err := s.Each(emulatorKind, func(path string, decode func(any) error) error {
		c := new(qemucaps.Capabilities)
		if err := decode(c); err != nil {
			log.Info("a probe of QEMU is of another layout; the binary will be probed again", "binary", path, "error", err)
			return nil
		}
		e.known[path] = c
		return nil
	})
	return e, err
}

// Usual is the binary of a guest that names none.
func (e *Emulators) Usual() string { return e.usual }

// Serving is the binary of a guest of an architecture that names none: beside the usual
// one there may be one for i686.
func (e *Emulators) Serving(arch string) string {
	if arch != "i686" {
		return e.usual
	}
	sibling := filepath.Join(filepath.Dir(e.usual), "qemu-system-i386")
	if _, err := os.Stat(sibling); err != nil {
		return e.usual
	}
	return sibling
}

// Get gives what a binary can do, probing it when it is new or has changed. An
// empty path means the usual one.
func (e *Emulators) Get(ctx context.Context, binary string) (*qemucaps.Capabilities, error) {
	if binary == "" {
		binary = e.usual
	}
	if c, err := e.current(ctx, binary); c != nil || err != nil {
		return c, err
	}
	// The probe serves everybody who waits for it, and must not end with the
	// first who came.
	answer := e.flight.DoChan(binary, func() (any, error) { return e.probe(context.WithoutCancel(ctx), binary) })
	select {
	case r := <-answer:
		if r.Err != nil {
			return nil, r.Err
		}
		return r.Val.(*qemucaps.Capabilities), nil
	case <-ctx.Done():
		return nil, fault.Wrap(context.Cause(ctx), fault.Timeout, fault.Host, "stopped waiting for the probe of %s", binary)
	}
}

// Known gives what Get last gave for a binary, without waiting for anything.
func (e *Emulators) Known(binary string) (*qemucaps.Capabilities, error) {
	if binary == "" {
		binary = e.usual
	}
	e.mu.RLock()
	defer e.mu.RUnlock()
	if c := e.known[binary]; c != nil {
		return c, nil
	}
	return nil, fault.New(fault.WrongState, fault.Host, "QEMU binary %s has not been probed", binary)
}

// current gives the stored answer if the file is still the one it is about, and
// nil if it is not. A file that cannot be read in time is not executed either:
// until a program is in memory, nobody else's can be begun.
func (e *Emulators) current(ctx context.Context, binary string) (*qemucaps.Capabilities, error) {
	e.mu.RLock()
	c, looked := e.known[binary], e.looked[binary]
	e.mu.RUnlock()
	began := time.Now()
	if c != nil && began.Sub(looked) < fresh {
		return c, nil
	}
	return fsguard.Do(ctx, binary, func() (*qemucaps.Capabilities, error) {
		if c == nil || !c.Matches(binary) {
			return nil, readHead(binary)
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.known[binary] == c {
			e.looked[binary] = began
		}
		return c, nil
	}, nil)
}

// readHead reads what the kernel will look at first to execute a file. What else
// is wrong with the file is for the probe to say.
func readHead(binary string) error {
	f, err := image.Open(binary)
	if err != nil {
		return nil //nolint:nilerr // see above
	}
	defer f.Close()
	_, _ = f.Read(make([]byte, 4096)) // likewise
	return nil
}

func (e *Emulators) probe(ctx context.Context, binary string) (*qemucaps.Capabilities, error) {
	c, err := qemuprobe.Probe(ctx, binary, e.Quarters)
	if err != nil {
		return nil, err
	}
	if c.Arch == "i386" && binary != e.usual {
		full, err := e.Get(ctx, e.usual)
		if err != nil {
			return nil, err
		}
		c.AdoptFailures(full)
	}
	e.log.Info("probed QEMU", "binary", binary, "version", c.Version)
	if err := e.store.Put(emulatorKind, binary, c); err != nil {
		e.log.Warn("cannot keep what was learnt of QEMU; it will be probed again", "binary", binary, "error", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.known[binary] = c
	delete(e.looked, binary)
	return c, nil
}
