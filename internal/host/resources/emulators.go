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

// emulatorKind is the record of a QEMU binary's capabilities; its key is the path.
var emulatorKind = store.Kind{Name: "emulator", Version: 1}

// Emulators knows the capabilities of the host's QEMU binaries. Each binary is probed once, however many
// callers ask at the same time, and again only when its file has changed. The answer outlives the daemon. A
// failed probe is an answer too.
type Emulators struct {
	// Isolation is the sandbox for probes; nil: they run without one.
	Isolation *sandbox.Isolation

	store         *store.Store
	log           *slog.Logger
	defaultBinary string
	probing       singleflight.Group

	mu        sync.RWMutex
	known     map[string]*qemucaps.Capabilities
	checkedAt map[string]time.Time // when a binary's file was last compared with the stored answer
}

// checkAge is how long one comparison of a binary's file serves all callers, so that thousands of definitions or
// starts a second do not each open it. A file that is replaced within this time counts as replaced just after
// it.
const checkAge = 50 * time.Millisecond

// NewEmulators reads the answers that earlier daemons stored. defaultBinary is the binary of guests that name none.
func NewEmulators(s *store.Store, defaultBinary string, log *slog.Logger) (*Emulators, error) {
	e := &Emulators{store: s, log: log, defaultBinary: defaultBinary, known: map[string]*qemucaps.Capabilities{}, checkedAt: map[string]time.Time{}}
	err := s.Each(emulatorKind, func(path string, decode func(any) error) error {
		c := new(qemucaps.Capabilities)
		if err := decode(c); err != nil {
			log.Info("stored QEMU probe has another layout; probing again", "binary", path, "error", err)
			return nil
		}
		e.known[path] = c
		return nil
	})
	return e, err
}

// Default is the binary of guests that name none.
func (e *Emulators) Default() string { return e.defaultBinary }

// ForArch is the binary for guests of an architecture that name none. A host may have one for i686 in addition
// to the default one.
func (e *Emulators) ForArch(arch string) string {
	if arch != "i686" {
		return e.defaultBinary
	}
	sibling := filepath.Join(filepath.Dir(e.defaultBinary), "qemu-system-i386")
	if _, err := os.Stat(sibling); err != nil {
		return e.defaultBinary
	}
	return sibling
}

// Get returns a binary's capabilities. It probes a binary that is new or has changed. An empty path means the
// default one.
func (e *Emulators) Get(ctx context.Context, binary string) (*qemucaps.Capabilities, error) {
	if binary == "" {
		binary = e.defaultBinary
	}
	if c, err := e.current(ctx, binary); c != nil || err != nil {
		return c, err
	}
	// The probe serves all its waiters, so it must not end with the first caller's context.
	answer := e.probing.DoChan(binary, func() (any, error) { return e.probe(context.WithoutCancel(ctx), binary) })
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

// Known returns what Get last returned for a binary, without waiting.
func (e *Emulators) Known(binary string) (*qemucaps.Capabilities, error) {
	if binary == "" {
		binary = e.defaultBinary
	}
	e.mu.RLock()
	defer e.mu.RUnlock()
	if c := e.known[binary]; c != nil {
		return c, nil
	}
	return nil, fault.New(fault.WrongState, fault.Host, "QEMU binary %s has not been probed", binary)
}

// current returns the stored answer if the file has not changed since, else nil. A file that cannot be read in
// time is not executed either: while the kernel loads one program, it holds a lock that blocks others.
func (e *Emulators) current(ctx context.Context, binary string) (*qemucaps.Capabilities, error) {
	e.mu.RLock()
	c, looked := e.known[binary], e.checkedAt[binary]
	e.mu.RUnlock()
	began := time.Now()
	if c != nil && began.Sub(looked) < checkAge {
		return c, nil
	}
	return fsguard.Do(ctx, binary, func() (*qemucaps.Capabilities, error) {
		if c == nil || !c.Matches(binary) {
			return nil, readHead(binary)
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.known[binary] == c {
			e.checkedAt[binary] = began
		}
		return c, nil
	}, nil)
}

// readHead reads the first bytes, which the kernel also reads to execute a file. The probe reports anything
// else that is wrong with the file.
func readHead(binary string) error {
	f, err := image.Open(binary)
	if err != nil {
		return nil //nolint:nilerr // the probe reports it
	}
	defer f.Close()
	_, _ = f.Read(make([]byte, 4096)) // the probe reports it
	return nil
}

func (e *Emulators) probe(ctx context.Context, binary string) (*qemucaps.Capabilities, error) {
	c, err := qemuprobe.Probe(ctx, binary, e.Isolation)
	if err != nil {
		return nil, err
	}
	if c.Arch == "i386" && binary != e.defaultBinary {
		full, err := e.Get(ctx, e.defaultBinary)
		if err != nil {
			return nil, err
		}
		c.AdoptFailures(full)
	}
	e.log.Info("QEMU probed", "binary", binary, "version", c.Version)
	if err := e.store.Put(emulatorKind, binary, c); err != nil {
		e.log.Warn("QEMU probe not stored; the next daemon probes again", "binary", binary, "error", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.known[binary] = c
	delete(e.checkedAt, binary)
	return c, nil
}
