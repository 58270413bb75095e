package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"

	notify "github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sync/errgroup"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/daemon"
	"github.com/lodge-kvm/lodge/internal/edge/api"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/listener"
)

// serve opens the packages, accepts clients until ctx ends, and closes the packages.
func serve(ctx context.Context, o *options, log *slog.Logger) error {
	if failpoint.Built {
		log.Warn("built with fail points, for tests only; do not use this build in production")
	}
	config, err := o.config(log)
	if err != nil {
		return err
	}
	hangUps := catchHangUps() // a signal that arrives before all is open waits
	protect(log)
	d, err := daemon.Open(ctx, config)
	if err != nil {
		return err
	}
	defer d.Close()
	o.run = d.Run
	reception, everybody, err := o.openAuthenticator(ctx, d.Authorizer, log)
	if err != nil {
		return err
	}
	listeners, err := o.listen(ctx, everybody)
	if err != nil {
		return err
	}
	l, err := listener.Listen(ctx, listener.Place{Path: filepath.Join(o.run, "lodge.sock"), GID: o.gid(), Everybody: everybody})
	if err != nil {
		return err
	}
	own := []api.Listener{{Listener: l}}
	certificates, err := o.listenTLS(ctx, &listeners, &own)
	if err != nil {
		return err
	}
	server := libvirt.New(libvirt.Config{
		Backends: libvirt.Backends{
			Guests: d.Guests, Pools: d.Pools, Networks: d.Networks, Secrets: d.Secrets, Events: d.Events,
			Host: d.Host, Devices: d.Devices, Emulators: d.Emulators,
		},
		Log: log, Groups: o.groups(), Authorizer: d.Authorizer, Authenticator: reception, Audit: d.Audit,
	})
	sets := api.New(api.Config{
		Fleet: d.Fleet, Guests: d.Guests, Networks: d.Networks, Events: d.Events, Starts: d.Guests.Starts,
		Log: log, Groups: o.groups(), Version: version, LibvirtClients: server.Clients, MemoryPicture: d.Memory.Picture, Authorizer: d.Authorizer, Authenticator: reception, Audit: d.Audit,
	})
	served, ctx := errgroup.WithContext(ctx)
	served.Go(func() error { reloadOnHangUp(ctx, hangUps, log, d.Authorizer, d.Audit, certificates); return nil })
	served.Go(func() error { return server.Serve(ctx, listeners...) })
	served.Go(func() error { return sets.Serve(ctx, own...) })
	_, _ = fmt.Fprintln(logOutput, "ready")
	if _, err := notify.SdNotify(false, notify.SdNotifyReady); err != nil {
		log.Warn("cannot tell systemd that the daemon is ready", "error", err)
	}
	guest.Autostart(ctx, d.Guests)
	err = served.Wait()
	if _, err := notify.SdNotify(false, notify.SdNotifyStopping); err != nil {
		log.Warn("cannot tell systemd that the daemon is stopping", "error", err)
	}
	return err
}

// oomScoreAdj is the oom_score_adj that makes the kernel kill the daemon last when memory runs out,
// except for processes that it never kills.
const oomScoreAdj = -900

// protect keeps the daemon's memory out of core files, and the daemon alive when memory runs out.
func protect(log *slog.Logger) {
	if err := kernel.ForbidCore(); err != nil {
		log.Warn("core files of the daemon or of guests may hold secrets", "error", err)
	}
	var root kernel.Root
	if err := root.SetOOMScore(os.Getpid(), oomScoreAdj); err != nil {
		log.Info("cannot lower the OOM score; the daemon may be killed before guests", "error", err)
	}
}

// listen opens the daemon's sockets. If rules or polkit decide about clients,
// every user may connect to the sockets.
func (o *options) listen(ctx context.Context, everybody bool) ([]libvirt.Listener, error) {
	names := []string{filepath.Join(o.run, "libvirt-sock")}
	if o.libvirtSockets {
		names = append(names, "/run/libvirt/libvirt-sock", "/run/libvirt/virtqemud-sock")
	}
	gid := o.gid()
	var listeners []libvirt.Listener
	for _, name := range names {
		for _, p := range []listener.Place{{Path: name, GID: gid, Everybody: everybody}, {Path: name + "-ro", Everybody: true}} {
			l, err := listener.Listen(ctx, p)
			if err != nil {
				return nil, err
			}
			listeners = append(listeners, libvirt.Listener{Listener: l, ReadOnly: strings.HasSuffix(p.Path, "-ro")})
		}
	}
	return listeners, nil
}

// status returns the folder for the addresses of guests, which the host's name service and scripts read: libvirt's
// own folder if the daemon replaces libvirt, else one of its own.
func (o *options) status() string {
	if o.libvirtSockets {
		return "/var/lib/libvirt/dnsmasq"
	}
	return "" // the networks' own
}

// gid returns the group of the read-write sockets; 0: root alone.
func (o *options) gid() int {
	if g := o.groups(); len(g) > 0 {
		return int(g[0])
	}
	return 0
}

// groups returns the IDs of the groups with access to the read-write socket.
func (o *options) groups() []uint32 {
	g, err := user.LookupGroup(o.group)
	if err != nil {
		return nil // the group is a convenience, and root is served without it
	}
	id, err := strconv.ParseUint(g.Gid, 10, 32)
	if err != nil {
		return nil
	}
	return []uint32{uint32(id)}
}
