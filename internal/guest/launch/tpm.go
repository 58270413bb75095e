package launch

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemuprocess"
	"github.com/lodge-kvm/lodge/internal/mechanism/sandbox"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// startTPMs starts swtpm for each emulated TPM of the guest. swtpm ends when QEMU closes its connection.
func (l *Launch) startTPMs(ctx context.Context) error {
	for _, t := range l.Instance.Definition.Devices.TPMs {
		if t.Type != "emulator" {
			continue
		}
		socket := filepath.Join(provision.OwnPath(l.Instance), t.Alias+".sock")
		provision.HoldTPMs(l.Guest.Reg, l.Instance)
		if err := startTPM(ctx, l.Guest.Reg, l.Instance, t, socket); err != nil {
			return err
		}
		if err := l.limitTPM(); err != nil {
			return err
		}
		if l.plan.TPMSockets == nil {
			l.plan.TPMSockets = map[string]string{}
		}
		l.plan.TPMSockets[t.Alias] = socket
	}
	return nil
}

// limitTPM moves the TPM emulator into the guest's control group and sets its OOM score. The guest decides
// what the emulator does: without these limits it could use any part of the host's memory and would be the
// last process to be killed when memory runs out.
func (l *Launch) limitTPM() error {
	pid, process, err := provision.FindTPM(l.Instance)
	if err != nil || process < 0 {
		return err
	}
	defer unix.Close(process) //nolint:errcheck // keeps the PID from being reused until the group has the process
	provision.SetOOMScore(l.Guest.Reg, l.Instance.Name, pid, provision.OOMScore(l.opts.Priority))
	return l.Guest.Reg.Cgroups.Guest(l.Instance.UUID).AddProcess(pid)
}

// startTPM starts a software TPM, in a sandbox and as the guest's user if the guest has one. It returns
// when the TPM's socket is ready.
func startTPM(ctx context.Context, r *machine.Registry, run *machine.Instance, t *device.TPM, socket string) error {
	program, err := exec.LookPath("swtpm")
	if err != nil {
		return fault.Wrap(err, fault.Unsupported, fault.Config, "an emulated TPM needs swtpm; install the package swtpm")
	}
	state, err := chownTPMState(r, run)
	if err == nil {
		err = run.Labels.LendDir(ctx, state, t.Alias)
	}
	if err != nil {
		return err
	}
	// swtpm 0.7 takes an inherited log descriptor for its socket, and reopens an inherited pid file by
	// name. In a sandbox both files therefore lie beside the guest's sockets.
	seen, log := state, filepath.Join(r.LogDir(), machine.FileStem(run.Name)+provision.TPMLog+".log")
	if run.User != nil {
		seen, log = tpmSeen, filepath.Join(provision.OwnPath(run), t.Alias+".log")
	}
	args := []string{
		"socket", "--daemon", "--terminate",
		"--tpmstate", "dir=" + seen + ",mode=0600",
		"--ctrl", "type=unixio,path=" + socket + ",mode=0600",
		"--pid", "file=" + provision.TPMPID(run), "--log", "file=" + log,
	}
	if t.Version != "1.2" {
		args = append(args, "--tpm2")
	}
	// With --daemon the program returns when its socket is ready.
	c := exec.CommandContext(ctx, program, args...)
	var said bytes.Buffer
	c.Stdout, c.Stderr = &said, &said
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if run.User == nil {
		err = kernel.RunConfined(nil, c.Run) // its files belong to the user it runs as
	} else {
		err = runTPM(r, c, run, state)
	}
	if err != nil {
		wrote, _ := provision.ReadSmall(log) // it may not have begun a log
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot start the TPM emulator: %s", strings.TrimSpace(said.String()+wrote))
	}
	failpoint.Reach("launch.tpm")
	return nil
}

// tpmFiles bounds the open files of a TPM emulator. It needs fewer.
const tpmFiles = 256

// tpmSeen is where a TPM emulator in a sandbox finds its state.
const tpmSeen = "/tpm"

// runTPM runs the TPM emulator in a sandbox that holds its state and the guest's own directory. It returns
// when the emulator runs in the background.
func runTPM(r *machine.Registry, c *exec.Cmd, run *machine.Instance, state string) error {
	own := provision.OwnPath(run)
	place := &sandbox.Spec{
		User: *run.User, Program: c.Path,
		WritableDirs: []sandbox.WritableDir{{HostPath: own, Path: own}, {HostPath: state, Path: tpmSeen}},
		// The limit of threads is shared with QEMU, which runs as the same user. The emulator writes only
		// its log and a state of some hundred KiB.
		Limits: sandbox.Limits{Threads: provision.MaxThreads(run.Definition), File: provision.MaxLog, Open: tpmFiles},
		Label:  run.Labels.Helper(),
	}
	c.Env, c.Dir = provision.Environment(own), "/"
	c.SysProcAttr.Credential = &syscall.Credential{Uid: run.User.UID, Gid: run.User.GID}
	err := r.Isolation.Builder.Run(place, func() (int, <-chan struct{}, error) {
		if err := c.Start(); err != nil {
			return 0, nil, err
		}
		return c.Process.Pid, nil, nil
	})
	if c.Process == nil {
		return err
	}
	if err := errors.Join(err, c.Wait()); err != nil {
		return err
	}
	// The emulator may have gone into the background before the limits were set.
	pid, process, err := provision.FindTPM(run)
	if err != nil || process < 0 {
		return err
	}
	return errors.Join(place.Limits.ApplyTo(pid, place.User), unix.Close(process))
}

// chownTPMState gives the TPM's state to the user that serves it: the guest's user, which may differ from start
// to start, or else the daemon's. The state lies in the data directory, where only a TPM emulator gets
// access.
func chownTPMState(r *machine.Registry, run *machine.Instance) (state string, err error) {
	state = provision.TPMState(r, run.UUID)
	var u sandbox.User
	if run.User != nil {
		u = *run.User
	}
	failed := func(err error) (string, error) {
		return "", fault.Wrap(err, fault.Failed, fault.Host, "cannot prepare the TPM's state directory")
	}
	if err := os.MkdirAll(state, 0o700); err != nil {
		return failed(err)
	}
	if err := provision.ChownTPM(state, u); err != nil {
		return failed(err)
	}
	return state, nil
}

// KeepsTPM reports whether the definition keeps the TPM's state after the guest is undefined.
func KeepsTPM(def *domain.Definition) bool {
	return slices.ContainsFunc(def.Devices.TPMs, func(t *device.TPM) bool { return t.Persistent.Or(false) })
}

// DropTPM removes the TPM state of a guest that is no longer defined. Another guest of the same UUID must
// not find its secrets.
func DropTPM(r *machine.Registry, uuid string, log *slog.Logger) {
	if err := machine.RemoveTree(provision.TPMState(r, uuid)); err != nil {
		log.Error("cannot remove the TPM's state", "path", provision.TPMState(r, uuid), "error", err)
	}
	provision.ForgetLeftover(r, uuid)
}

// DropSecretsOf removes the TPM state and the UEFI variables of a transient guest that has ended, unless it
// was saved and may be restored.
func DropSecretsOf(r *machine.Registry, rec *machine.RunRecord, def *domain.Definition, log *slog.Logger) {
	if rec.State.EndFor == domain.ReasonSaved {
		return
	}
	if !rec.KeepTPM && !KeepsTPM(def) {
		DropTPM(r, rec.UUID, log)
	}
	dropMadeNVRAM(r, rec, def, log)
}

// WatchTPM reports it when the TPM emulator of a running guest ends, because memory ran out or someone
// killed it. QEMU does not report this, and exits at the guest's next reset.
func WatchTPM(g *machine.Guest, r *machine.Instance) {
	if !slices.ContainsFunc(r.Definition.Devices.TPMs, func(t *device.TPM) bool { return t.Type == "emulator" }) {
		return
	}
	g.Reg.Loops.Go(func() {
		// When a large guest ends, its memory takes longer to free than its emulator takes to exit. So
		// check the run as well.
		if !awaitTPMEnd(g.Reg.Life, r) || r.Ending() {
			return
		}
		g.Log.Warn("TPM emulator has ended unexpectedly")
		g.AddMessage(g.Reg.Life, r, "the TPM emulator (swtpm) has ended: the guest's TPM no longer answers, and a reset would end the guest; shut it down and start it again")
	})
}

// awaitTPMEnd waits until the emulator of a running guest has ended. It returns false if QEMU ends, which
// ends the emulator too, or if ctx ends.
func awaitTPMEnd(ctx context.Context, r *machine.Instance) bool {
	for missed := false; ; {
		emulator := findTPMProcess(r)
		if emulator == nil && missed {
			return true
		}
		missed = emulator == nil // a new emulator may not have written its pid file yet
		if emulator != nil {
			select {
			case <-emulator.Exited():
			case <-r.Process.Exited():
			case <-ctx.Done():
			}
			emulator.Release()
		}
		along := time.NewTimer(provision.TPMPatience)
		select {
		case <-along.C:
		case <-r.Process.Exited():
			along.Stop()
			return false
		case <-ctx.Done():
			along.Stop()
			return false
		}
	}
}

// findTPMProcess adopts the process of the guest's TPM emulator. Nil: there is none. The caller must release it.
func findTPMProcess(r *machine.Instance) *qemuprocess.Process {
	pid, process, err := provision.FindTPM(r)
	if err != nil || process < 0 {
		return nil
	}
	defer unix.Close(process) //nolint:errcheck // keeps the PID from being reused until the process is adopted
	at, err := r.Kernel.Process(pid)
	if err != nil {
		return nil
	}
	emulator, err := qemuprocess.Adopt(pid, at.Start)
	if err != nil {
		return nil
	}
	return emulator
}
