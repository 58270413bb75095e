// Command lodged is the daemon; each host runs one. It reads its flags, opens the packages
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
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/lodge-kvm/lodge/internal/cli"
	"github.com/lodge-kvm/lodge/internal/control/fleet"
	"github.com/lodge-kvm/lodge/internal/control/memory"
	"github.com/lodge-kvm/lodge/internal/daemon"
	"github.com/lodge-kvm/lodge/internal/mechanism/polkit"
)

// version is stamped by the build.
var version = "development"

func main() {
	// One thread more than processors: clients' heavy work may use all processors, and
	// new requests are still seen at once.
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 1)
	defer runtime.KeepAlive(ballast)
	syscall.Umask(0o022) // independent of the parent's umask: files get exactly the mode that the code asks for
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	surviveBrokenPipe()
	stdlog.SetOutput(logOutput) // for libraries
	defer logOutput.flush()
	if err := command().ExecuteContext(ctx); err != nil {
		_, _ = fmt.Fprintln(logOutput, calledAs()+":", err)
		logOutput.flush()
		stop()
		os.Exit(int(cli.StatusOf(err)))
	}
}

// calledAs is the program that the user called, for errors and help. `lodge` gives its name as the first
// argument when it becomes this program.
func calledAs() string {
	if filepath.Base(os.Args[0]) == "lodge" {
		return "lodge"
	}
	return "lodged"
}

func command() *cobra.Command {
	var o options
	c := &cobra.Command{
		Use:           "lodged",
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: calledAs()},
		Short:         "Run this host's KVM guests, and serve them to every libvirt client",
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
	f.StringVar(&o.data, "data", defaultData, "`directory` of data that must survive a reboot")
	f.StringVar(&o.run, "run", daemon.DefaultRun, "`directory` of sockets and of state that ends with a reboot")
	f.StringVar(&o.emulator, "emulator", daemon.DefaultEmulator, "QEMU `binary` for guests that name none")
	f.StringVar(&o.group, "group", "libvirt", "`name` of the group that may use the read-write socket; ignored if it does not exist")
	f.BoolVar(&o.libvirtSockets, "libvirt-sockets", false, "also listen where libvirt's clients connect: /run/libvirt/{libvirt,virtqemud}-sock and their -ro twins")
	f.IntVar(&o.prepared, "prepared", defaultPrepared, "`number` of QEMU processes kept ready for guests that are started often; 0: none")
	f.StringVar(&o.access, "access", "", "`file` of access rules (default: "+daemon.DefaultAccess+", if it exists, for the daemon in "+daemon.DefaultRun+")")
	f.StringVar(&o.audit, "audit", "", "`file` for audit lines, in addition to the log")
	f.StringVar(&o.isolation, "isolation", "on", "`mode` of QEMUs. on: each as its own user in its own sandbox; off, for debugging: as the daemon itself")
	f.StringVar(&o.users, "guest-users", "", "`range` of user numbers (UIDs) that QEMUs run as, FIRST-LAST (default: 8192 numbers from 1879048192, which systemd leaves unused)")
	f.StringVar(&o.auth, "auth", authAuto, "`method` that admits users of this host. group: members of --group; polkit: its policy for "+polkit.Manage+" and "+polkit.Monitor+"; auto: members of --group, others by polkit if the host has it")
	f.StringVar(&o.labels, "security-labels", "auto", "`mode` of SELinux or AppArmor labels for guests. auto: if the host enforces them; require: no guest starts without one; off")
	f.BoolVar(&o.cores, "core-scheduling", false, "never run two guests on one processor core at the same time, against leaks between threads of a core; costs processor time")
	f.StringVar(&o.tls, "tls", "", "`address` for libvirt's clients of other hosts, with certificates, such as :16514 (default: none)")
	f.StringVar(&o.apiTLS, "api-tls", "", "`address` for clients of Lodge's own API on other hosts, with certificates, such as :16515 (default: none)")
	f.StringVar(&o.pki, "pki", "/etc/pki", "`directory` of the certificates, in libvirt's layout: CA/cacert.pem, CA/cacrl.pem, libvirt/servercert.pem, libvirt/private/serverkey.pem")
	f.StringArrayVar(&o.tlsAllow, "tls-allow", nil, "`glob` of certificate subjects that may connect where there are no access rules; may be repeated (default: every trusted certificate)")
	f.BoolVar(&o.resumeOnRoom, "resume-on-room", true, "resume guests that a full disk of the host paused, once there is space")
	f.BoolVar(&o.rng, "give-rng", true, "give new guests a virtio-rng with /dev/urandom if their definitions have none")
	f.StringVar(&o.memory, "memory", string(memory.Off), "`mode` of sharing the host's memory among guests by their balloons. advise: decide and show it, move nothing; act; off")
	f.StringVar(&o.guestMemory, "guest-memory", "", "`size` that all guests together may hold, such as 48GiB, for --memory (default: what the host has)")
	f.StringVar(&o.level, "log-level", "info", "lowest `level` that is logged: debug, info, warn, error")
	for _, handed := range []*cobra.Command{storeCommand(), importCommand(), probeCommand()} {
		cli.TakeGlobalFlags(handed)
		handed.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return cli.AsUnusable(err) })
		c.AddCommand(handed)
	}
	c.CompletionOptions.DisableDefaultCmd = true
	c.SetUsageTemplate(cli.UsageTemplate)
	return c
}

// defaultData is the main daemon's directory. Other instances name their own.
const defaultData = "/var/lib/lodge"

// Values of --auth.
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
	memory, guestMemory               string
	rng                               bool
}

func (o *options) logger() (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.level)); err != nil {
		return nil, errors.New("--log-level must be debug, info, warn or error")
	}
	return slog.New(slog.NewTextHandler(logOutput, &slog.HandlerOptions{Level: level})), nil
}

// labelModes maps the values of --security-labels.
var labelModes = map[string]daemon.Labels{"auto": daemon.LabelsAuto, "require": daemon.LabelsRequired, "off": daemon.LabelsOff}

// config returns the settings for daemon.Open.
func (o *options) config(log *slog.Logger) (daemon.Config, error) {
	labels, known := labelModes[o.labels]
	isolated := o.isolation == "on"
	switch {
	case !known:
		return daemon.Config{}, errors.New("--security-labels must be auto, require or off")
	case !isolated && o.isolation != "off":
		return daemon.Config{}, errors.New("--isolation must be on or off")
	case !isolated && o.cores:
		return daemon.Config{}, errors.New("--core-scheduling needs --isolation=on")
	case !isolated && labels == daemon.LabelsRequired:
		return daemon.Config{}, errors.New("--security-labels=require needs --isolation=on")
	}
	mode, err := fleet.ParseMemoryMode(o.memory)
	if err != nil {
		return daemon.Config{}, err
	}
	var most uint64
	if o.guestMemory != "" {
		if most, err = fleet.ParseSize(o.guestMemory); err != nil {
			return daemon.Config{}, fmt.Errorf("cannot use --guest-memory: %w", err)
		}
	}
	return daemon.Config{
		MemoryMode: mode, GuestMemory: most,
		Data: o.data, Run: o.run, Log: log, Emulator: o.emulator, Prepared: o.prepared, StayFull: !o.resumeOnRoom, GiveRNG: o.rng,
		Status: o.status(), Access: o.access, Audit: o.audit, Isolated: isolated, Users: o.users, Cores: o.cores, Labels: labels,
	}, nil
}
