package provision

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemuprocess"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// start begins the relay of a device and returns the path that its QEMU is to connect to.
func start(all *machine.Relays, r *machine.Instance, alias, to string, held []string) (path string, err error) {
	StopRelay(all, alias)
	path = filepath.Join(OwnPath(r), alias+".relay")
	var f *os.File
	if err := r.Labels.Sockets(func() (err error) { f, err = qemuprocess.ListenMonitor(path); return err }); err != nil {
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
	one := &machine.Relay{Listener: listener, Path: path, End: end, Done: make(chan struct{})}
	all.Mu.Lock()
	defer all.Mu.Unlock()
	if all.By == nil {
		all.By = map[string]*machine.Relay{}
	}
	all.By[alias] = one
	go serve(ctx, one, func() (net.Conn, error) { return machine.ConnectHeld(ctx, to, held) })
	return path, nil
}

// StopRelay ends the relay of a device, if it has one.
func StopRelay(all *machine.Relays, alias string) {
	all.Mu.Lock()
	one := all.By[alias]
	delete(all.By, alias)
	all.Mu.Unlock()
	if one != nil {
		stop(one)
	}
}

func stopRelays(all *machine.Relays) {
	all.Mu.Lock()
	by := all.By
	all.By = nil
	all.Mu.Unlock()
	for _, one := range by {
		stop(one)
	}
}

func stop(one *machine.Relay) {
	one.End(nil)
	_ = one.Listener.Close()
	<-one.Done
	_ = os.Remove(one.Path) // otherwise it is removed with the run directory
}

// serve accepts one client at a time: QEMU makes only one connection for a device. A QEMU that connects and
// disconnects repeatedly gets one short exchange per acceptPause.
func serve(ctx context.Context, one *machine.Relay, connect func() (net.Conn, error)) {
	defer close(one.Done)
	for {
		client, err := one.Listener.Accept()
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

// HoldRelays pushes the release that ends the guest's relays.
func HoldRelays(r *machine.Instance) {
	r.Hold("relays", func(context.Context) error { stopRelays(&r.Relays); return nil })
}

// relayAgain makes the relays of an adopted guest.
func relayAgain(r *machine.Registry, run *machine.Instance) {
	if run.User == nil {
		return
	}
	HoldRelays(run)
	for _, dev := range run.Definition.Devices.All() {
		RelayAgain(r.Life, run, scope.Daemon("the relays of a guest that was adopted").WithNotedFolders(run.Fences), dev)
	}
}

// RelayAgain makes the relay of one device, if it has one.
func RelayAgain(ctx context.Context, r *machine.Instance, sc scope.Scope, dev device.Device) {
	b, alias := BackendOf(dev), dev.Common().Alias
	if r.User == nil || b == nil || !b.Connects() || !b.Reconnects() {
		return
	}
	if err := connectFor(ctx, r, sc, &qemu.Plan{}, alias, b); err != nil {
		r.Log.Error("a character device does not connect again", "alias", alias, "error", err)
	}
}

// LeaveInstance disconnects from a guest that runs on, so that the next daemon can connect: the monitor accepts one
// client at a time.
func LeaveInstance(r *machine.Instance) {
	stopRelays(&r.Relays)
	r.Agent.Close()
	if s := r.Session.Load(); s != nil {
		s.Close()
	}
	r.Process.Release()
}
