package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/control/authz"
	"github.com/lodge-kvm/lodge/internal/edge/api"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt"
	"github.com/lodge-kvm/lodge/internal/mechanism/listener"
	"github.com/lodge-kvm/lodge/internal/mechanism/polkit"
)

// openAuthenticator makes the authenticator of clients, and reports whether every user on the
// host may connect and be asked.
func (o *options) openAuthenticator(ctx context.Context, gate *authz.Authorizer, log *slog.Logger) (r *authz.Authenticator, everybody bool, err error) {
	switch o.auth {
	case authGroup:
		return authz.NewAuthenticator(gate, nil, o.tlsAllow, log), gate.HasRules(), nil
	case authPolkit:
		return authz.NewAuthenticator(gate, polkit.New(), o.tlsAllow, log), true, nil
	case authAuto:
		if !gate.HasRules() && o.hasPolkit(ctx, log) {
			r := authz.NewAuthenticator(gate, polkit.New(), o.tlsAllow, log)
			r.AskPolkitLast(o.groups())
			return r, true, nil
		}
		return authz.NewAuthenticator(gate, nil, o.tlsAllow, log), gate.HasRules(), nil
	}
	return nil, false, errors.New("--auth must be auto, group or polkit")
}

// hasPolkit reports whether the host has a polkit with a policy for guests.
func (o *options) hasPolkit(ctx context.Context, log *slog.Logger) bool {
	err := polkit.New().Answers(ctx)
	if err != nil {
		log.Info("polkit not usable; only members of the group may connect", "group", o.group, "polkit", err)
		return false
	}
	log.Info("polkit decides about users outside the group", "group", o.group)
	return true
}

// listenTLS adds the requested listeners for other hosts, and returns the
// certificates that they use.
func (o *options) listenTLS(ctx context.Context, foreign *[]libvirt.Listener, own *[]api.Listener) (*listener.Certificates, error) {
	if o.tls == "" && o.apiTLS == "" {
		return nil, nil
	}
	certificates, err := listener.OpenCertificates(o.pki)
	if err != nil {
		return nil, err
	}
	if o.tls != "" {
		l, err := listenOn(ctx, o.tls)
		if err != nil {
			return nil, err
		}
		*foreign = append(*foreign, libvirt.Listener{Listener: l, Certificates: certificates})
	}
	if o.apiTLS != "" {
		l, err := listenOn(ctx, o.apiTLS)
		if err != nil {
			return nil, err
		}
		*own = append(*own, api.Listener{Listener: l, Certificates: certificates})
	}
	return certificates, nil
}

func listenOn(ctx context.Context, address string) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	return l, fault.Wrap(err, fault.Failed, fault.Host, "cannot listen on %s", address)
}

// catchHangUps catches SIGHUP from now on, until the daemon ends. Without that the
// signal would end the process.
func catchHangUps() <-chan os.Signal {
	hangUps := make(chan os.Signal, 1)
	signal.Notify(hangUps, unix.SIGHUP)
	return hangUps
}

// reloadOnHangUp reloads rules, audit file and certificates at each SIGHUP. After an
// error the old content stays in use.
func reloadOnHangUp(ctx context.Context, hangUps <-chan os.Signal, log *slog.Logger, gate *authz.Authorizer, audit *authz.Audit, certificates *listener.Certificates) {
	for {
		select {
		case <-hangUps:
			audit.Reopen()
			if err := gate.Reload(); err != nil {
				log.Error("cannot reload the access rules; the old ones stay in force", "error", err)
			}
			if certificates == nil {
				continue
			}
			if err := certificates.Reload(); err != nil {
				log.Error("cannot reload the certificates; the old ones stay in use", "error", err)
			} else {
				log.Info("certificates reloaded")
			}
		case <-ctx.Done():
			return
		}
	}
}
