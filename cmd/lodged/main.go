// Command lodged is the daemon: one a host. It reads its flags, opens the rooms
// from the bottom up, serves until it is told to stop, and closes them in
// reverse. Guests outlive it.
package main

import (
	"context"
	"errors"
	"fmt"
	stdlog "log"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/lodge-kvm/lodge/internal/cli"
	"github.com/lodge-kvm/lodge/internal/daemon"
	"github.com/lodge-kvm/lodge/internal/mechanism/polkit"
)

// version is stamped by the build.
var version = "development"

func main() {
	// One more than there are: clients' heavy work takes as many as there are, and
	// what comes in meanwhile is seen at once.
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 1)
	defer runtime.KeepAlive(ballast)
	syscall.Umask(0o022) // whatever who started it has: what is made is as open as it is asked for
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	outliveReader()
	stdlog.SetOutput(said) // libraries'
	defer said.flush()
	if err := command().ExecuteContext(ctx); err != nil {
		_, _ = fmt.Fprintln(said, "lodged:", err)
		said.flush()
		stop()
		os.Exit(int(cli.StatusOf(err)))
	}
}

func command() *cobra.Command {
	var o options
	c := &cobra.Command{
		Use:           "lodged",
		Short:         "Keep this host's KVM guests, and serve them to every libvirt client",
		Version:       version,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(c *cobra.Command, _ []string) error {
			log, err := o.logger()
			if err != nil {
				return err
			}
			return serve(c.Context(), &o, log)
		},
	}
	f := c.Flags()
	f.StringVar(&o.data, "data", defaultData, "`directory` of what must survive a reboot")
	f.StringVar(&o.run, "run", daemon.DefaultRun, "`directory` of sockets and of what a reboot ends")
	f.StringVar(&o.emulator, "emulator", daemon.DefaultEmulator, "QEMU `binary` of guests that name none")
	f.StringVar(&o.group, "group", "libvirt", "`name` of the group that may use the read-write socket; ignored where it does not exist")
	f.BoolVar(&o.libvirtSockets, "libvirt-sockets", false, "also listen where stock clients look: /run/libvirt/{libvirt,virtqemud}-sock and their -ro twins")
	f.IntVar(&o.prepared, "prepared", defaultPrepared, "`number` of QEMU processes that may wait for guests which are started often; 0: none")
	f.StringVar(&o.access, "access", "", "`file` of rules that say who may do what (default: "+daemon.DefaultAccess+", where it is there, for the daemon in "+daemon.DefaultRun+")")
	f.StringVar(&o.audit, "audit", "", "`file` that gets the audit's lines beside the log")
	f.StringVar(&o.isolation, "isolation", "on", "`on` runs each guest's QEMU as a user of its own, in a chamber of its own; off, for debugging, as this daemon")
	f.StringVar(&o.users, "guest-users", "", "`FIRST-LAST` of the user numbers that guests run as; the default lies in a range that nobody else uses")
	f.StringVar(&o.auth, "auth", authAuto, "`way` in which users of this host are let in: group, as members of --group; polkit, by what its policy says of "+polkit.Manage+" and "+polkit.Monitor+"; auto, as members of the group or by polkit, where the host has it")
	f.StringVar(&o.labels, "security-labels", "auto", "`way` in which guests get labels of SELinux or AppArmor: auto, where the host enforces one; require, or they do not start; off")
	f.BoolVar(&o.cores, "core-scheduling", false, "let no two guests run on one core of a processor at the same time, against what leaks between its threads; costs processor time")
	f.StringVar(&o.tls, "tls", "", "`address` that clients of other hosts connect to with certificates, such as :16514; empty: there is none")
	f.StringVar(&o.apiTLS, "api-tls", "", "`address` like that of --tls for clients of Lodge's own API, such as :16515; empty: there is none")
	f.StringVar(&o.pki, "pki", "/etc/pki", "`directory` of the certificates, as libvirt lays it out: CA/cacert.pem, CA/cacrl.pem, libvirt/servercert.pem, libvirt/private/serverkey.pem")
	f.StringArrayVar(&o.tlsAllow, "tls-allow", nil, "`glob` of a certificate's subject that may come in where there are no rules of access; may be repeated; none: whoever has a certificate")
	f.BoolVar(&o.resumeOnRoom, "resume-on-room", true, "let guests that were paused because a disk is full on the host go on when there is room")
	f.BoolVar(&o.rng, "give-rng", true, "give guests that are new a virtio-rng with /dev/urandom, where their definitions say nothing of one")
	f.StringVar(&o.level, "log-level", "info", "least `level` that is logged: debug, info, warn, error")
	c.AddCommand(storeCommand(), importCommand(), probeCommand())
	c.CompletionOptions.DisableDefaultCmd = true
	return c
}

// defaultData is the main daemon's. Other instances name their own.
const defaultData = "/var/lib/lodge"

// The ways in which users of this host are let in.
const (
	authAuto   = "auto"
	authGroup  = "group"
	authPolkit = "polkit"
)

// defaultPrepared QEMUs hold about 200 MiB together while they wait.
const defaultPrepared = 8

type options struct {
	data, run, emulator, group, level string
	isolation, users, labels          string
	access, audit, auth               string
	tls, apiTLS, pki                  string
	tlsAllow                          []string
	libvirtSockets                    bool
	cores                             bool
	prepared                          int
	resumeOnRoom                      bool
	rng                               bool
}

func (o *options) logger() (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.level)); err != nil {
		return nil, errors.New("--log-level is debug, info, warn or error")
	}
	return slog.New(slog.NewTextHandler(said, &slog.HandlerOptions{Level: level})), nil
}

// labelWays are the values of --security-labels.
var labelWays = map[string]daemon.Labels{"auto": daemon.LabelsAuto, "require": daemon.LabelsRequired, "off": daemon.LabelsOff}

// config says how the rooms are opened.
func (o *options) config(log *slog.Logger) (daemon.Config, error) {
	labels, known := labelWays[o.labels]
	isolated := o.isolation == "on"
	switch {
	case !known:
		return daemon.Config{}, errors.New("--security-labels is auto, require or off")
	case !isolated && o.isolation != "off":
		return daemon.Config{}, errors.New("--isolation is on or off")
	case !isolated && o.cores:
		return daemon.Config{}, errors.New("--core-scheduling needs --isolation=on")
	case !isolated && labels == daemon.LabelsRequired:
		return daemon.Config{}, errors.New("--security-labels=require needs --isolation=on")
	}
	return daemon.Config{
		Data: o.data, Run: o.run, Log: log, Emulator: o.emulator, Prepared: o.prepared, StayFull: !o.resumeOnRoom, GiveRNG: o.rng,
		Status: o.status(), Access: o.access, Audit: o.audit, Isolated: isolated, Users: o.users, Cores: o.cores, Labels: labels,
	}, nil
}
