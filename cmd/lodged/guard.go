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

// receive makes what finds out who clients are, and says whether everybody on the
// host may come to the door to be asked.
func (o *options) receive(ctx context.Context, gate *authz.Gate, log *slog.Logger) (r *authz.Reception, everybody bool, err error) {
	switch o.auth {
	case authGroup:
		return authz.NewReception(gate, nil, o.tlsAllow, log), gate.Ruled(), nil
	case authPolkit:
		return authz.NewReception(gate, polkit.New(), o.tlsAllow, log), true, nil
	case authAuto:
		if !gate.Ruled() && o.hasPolkit(ctx, log) {
			r := authz.NewReception(gate, polkit.New(), o.tlsAllow, log)
			r.AskLast(o.groups())
			return r, true, nil
		}
		return authz.NewReception(gate, nil, o.tlsAllow, log), gate.Ruled(), nil
	}
	return nil, false, errors.New("--auth is auto, group or polkit")
}

// hasPolkit finds out whether the host has a polkit with a policy about guests.
func (o *options) hasPolkit(ctx context.Context, log *slog.Logger) bool {
	err := polkit.New().Answers(ctx)
	if err != nil {
		log.Info("users of this host come in as members of the group alone", "group", o.group, "polkit", err)
		return false
	}
	log.Info("polkit says which users of this host come in besides the group", "group", o.group)
	return true
}

// listenAfar adds the listeners for other hosts that are asked for, and gives the
// certificates that they go by.
func (o *options) listenAfar(ctx context.Context, foreign *[]libvirt.Listener, own *[]api.Listener) (*listener.Certificates, error) {
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

// listenForHangUps takes SIGHUP from now on, which ends a process that does not,
// until the daemon ends.
func listenForHangUps() <-chan os.Signal {
	hangUps := make(chan os.Signal, 1)
	signal.Notify(hangUps, unix.SIGHUP)
	return hangUps
}

// heed reads what an administrator may have changed when SIGHUP comes. What is
// wrong then leaves what was.
func heed(ctx context.Context, hangUps <-chan os.Signal, log *slog.Logger, gate *authz.Gate, audit *authz.Audit, certificates *listener.Certificates) {
	for {
		select {
		case <-hangUps:
			audit.Reopen()
			if err := gate.Reload(); err != nil {
				log.Error("the rules of access stay as they were", "error", err)
			}
			if certificates == nil {
				continue
			}
			if err := certificates.Reload(); err != nil {
				log.Error("the certificates stay as they were", "error", err)
			} else {
				log.Info("the certificates were read anew")
			}
		case <-ctx.Done():
			return
		}
	}
}
