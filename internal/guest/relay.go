package guest

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemuprocess"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// relays connect a guest's QEMU to sockets of the host. QEMU may connect to a relay any number of times,
// and each time the daemon connects to the socket. The next daemon makes the relays again; a connection
// ends with the daemon that made it.
type relays struct {
	mu sync.Mutex
	by map[string]*relay // by alias of the device
}

// relay is the relay of one device.
type relay struct {
	listener net.Listener
	path     string
	end      context.CancelCauseFunc
	done     chan struct{} // closed when the relay has ended
}

// start begins the relay of a device and returns the path that its QEMU is to connect to.
func (all *relays) start(r *run, alias, to string, held []string) (path string, err error) {
	all.stop(alias)
	path = filepath.Join(r.ownPath(), alias+".relay")
	var f *os.File
	if err := r.labels.sockets(func() (err error) { f, err = qemuprocess.ListenMonitor(path); return err }); err != nil {
		return "", err
	}
	defer f.Close()
	if err := os.Lchown(path, int(r.User.UID), int(r.User.GID)); err != nil {
		return "", err
	}
	listener, err := net.FileListener(f)
	if err != nil {
		return "", err
	}
	ctx, end := context.WithCancelCause(context.Background())
	one := &relay{listener: listener, path: path, end: end, done: make(chan struct{})}
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.by == nil {
		all.by = map[string]*relay{}
	}
	all.by[alias] = one
	go one.serve(ctx, func() (net.Conn, error) { return connectHeld(ctx, to, held) })
	return path, nil
}

// stop ends the relay of a device, if it has one.
func (all *relays) stop(alias string) {
	all.mu.Lock()
	one := all.by[alias]
	delete(all.by, alias)
	all.mu.Unlock()
	if one != nil {
		one.stop()
	}
}

func (all *relays) stopAll() {
	all.mu.Lock()
	by := all.by
	all.by = nil
	all.mu.Unlock()
	for _, one := range by {
		one.stop()
	}
}

func (one *relay) stop() {
	one.end(nil)
	_ = one.listener.Close()
	<-one.done
	_ = os.Remove(one.path) // otherwise it is removed with the run directory
}

// serve accepts one client at a time: QEMU makes only one connection for a device. A QEMU that connects and
// disconnects repeatedly gets one short exchange per acceptPause.
func (one *relay) serve(ctx context.Context, connect func() (net.Conn, error)) {
	defer close(one.done)
	for {
		client, err := one.listener.Accept()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil: // the daemon may have no free descriptors
			pause(ctx, acceptPause)
			continue
		}
		begun := time.Now()
		server, err := connect()
		if err == nil {
			exchange(ctx, client, server)
		}
		_ = client.Close() // QEMU tries again
		if err != nil || time.Since(begun) < acceptPause {
			pause(ctx, acceptPause)
		}
	}
}

// acceptPause is the pause after a connection that failed or was short.
const acceptPause = time.Second

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// exchange copies data between two connections until either ends, or ctx does.
func exchange(ctx context.Context, a, b net.Conn) {
	closeBoth := func() { _, _ = a.Close(), b.Close() }
	defer context.AfterFunc(ctx, closeBoth)()
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
		both.Go(func() {
			_, _ = io.Copy(way[0], way[1]) // the end is all that matters
			closeBoth()
		})
	}
	both.Wait()
}

// holdRelays pushes the release that ends the guest's relays.
func (r *run) holdRelays() {
	r.hold("relays", func(context.Context) error { r.relays.stopAll(); return nil })
}

// relayAgain makes the relays of an adopted guest.
func (r *Registry) relayAgain(run *run) {
	if run.User == nil {
		return
	}
	run.holdRelays()
	for _, dev := range run.def.Devices.All() {
		run.relayAgain(r.life, scope.Daemon("the relays of a guest that was adopted").Noting(run.Fences), dev)
	}
}

// relayAgain makes the relay of one device, if it has one.
func (r *run) relayAgain(ctx context.Context, sc scope.Scope, dev device.Device) {
	b, alias := backendOf(dev), dev.Common().Alias
	if r.User == nil || b == nil || !b.Connects() || !b.Reconnects() {
		return
	}
	if err := r.connectFor(ctx, sc, &qemu.Plan{}, alias, b); err != nil {
		r.log.Error("a character device does not connect again", "alias", alias, "error", err)
	}
}
