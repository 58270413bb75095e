package guest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemuprocess"
	"github.com/lodge-kvm/lodge/internal/mechanism/sandbox"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// tpmLog is what the name of a TPM's log has after its guest's.
const tpmLog = "-swtpm"

// startTPMs starts a software TPM for every emulated one of the guest. It ends
// by itself when QEMU closes its connection.
func (l *launching) startTPMs(ctx context.Context) error {
	for _, t := range l.run.def.Devices.TPMs {
		if t.Type != "emulator" {
			continue
		}
		socket := filepath.Join(l.run.ownPath(), t.Alias+".sock")
		l.g.reg.holdTPMs(l.run)
		if err := l.g.reg.startTPM(ctx, l.run, t, socket); err != nil {
			return err
		}
		if err := l.boundTPM(); err != nil {
			return err
		}
		if l.plan.TPMSockets == nil {
			l.plan.TPMSockets = map[string]string{}
		}
		l.plan.TPMSockets[t.Alias] = socket
	}
	return nil
}

// boundTPM has what bounds the guest's QEMU bound the TPM's emulator, too, which the guest sends what it
// likes: of itself that would have any part of the host's memory, and be ended last when there is none left.
func (l *launching) boundTPM() error {
	pid, process, err := tpmOf(l.run)
	if err != nil || process < 0 {
		return err
	}
	defer unix.Close(process) //nolint:errcheck // it holds the number until the group has the process
	l.g.reg.makeVictim(l.run.Name, pid, victim(l.opts.Priority))
	return l.g.reg.Cgroups.Guest(l.run.UUID).AddProcess(pid)
}

// holdTPMs ends the guest's TPM emulator when all is given back.
func (r *Registry) holdTPMs(run *run) {
	run.hold("tpm", func(ctx context.Context) error {
		if err := stopTPMs(ctx, run); err != nil {
			return err
		}
		state := r.tpmState(run.UUID)
		_ = os.Remove(state) // that of a TPM which never came to keep anything is empty
		// The number of the guest's user comes to be another's, who is to find nothing of it.
		if err := handTPM(state, sandbox.User{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}); !errors.Is(err, os.ErrNotExist) {
			return fault.Wrap(err, fault.Failed, fault.Host, "cannot take the TPM's state back")
		}
		return nil
	})
}

// startTPM starts a software TPM, in a chamber and as the guest's user where it has
// one. It serves on a socket, and returns when that is there.
func (r *Registry) startTPM(ctx context.Context, run *run, t *device.TPM, socket string) error {
	program, err := exec.LookPath("swtpm")
	if err != nil {
		return fault.Wrap(err, fault.Unsupported, fault.Config, "an emulated TPM needs swtpm; install the package swtpm")
	}
	state, err := r.giveTPM(run)
	if err == nil {
		err = run.labels.lendDir(ctx, state, t.Alias)
	}
	if err != nil {
		return err
	}
	// swtpm 0.7 mistakes a log that it is handed for its socket, and opens a pid file
	// that it is handed once more by its name: in a chamber both are where the guest's
	// sockets are.
	seen, log := state, filepath.Join(r.logDir(), fileStem(run.Name)+tpmLog+".log")
	if run.User != nil {
		seen, log = tpmSeen, filepath.Join(run.ownPath(), t.Alias+".log")
	}
	args := []string{
		"socket", "--daemon", "--terminate",
		"--tpmstate", "dir=" + seen + ",mode=0600",
		"--ctrl", "type=unixio,path=" + socket + ",mode=0600",
		"--pid", "file=" + tpmPID(run), "--log", "file=" + log,
	}
	if t.Version != "1.2" {
		args = append(args, "--tpm2")
	}
	// With --daemon the program returns when its socket is there.
	c := exec.CommandContext(ctx, program, args...)
	var said bytes.Buffer
	c.Stdout, c.Stderr = &said, &said
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if run.User == nil {
		err = kernel.RunConfined(nil, c.Run) // its files are its own user's
	} else {
		err = r.runTPM(c, run, state)
	}
	if err != nil {
		wrote, _ := readSmall(log) // it may not have come so far
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot start the TPM emulator: %s", strings.TrimSpace(said.String()+wrote))
	}
	failpoint.Reach("launch.tpm")
	return nil
}

// readSmall reads the begin of a file that a guest's user may have written, and
// nothing that was put in its place.
func readSmall(path string) (string, error) {
	f, err := os.OpenFile(path, unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	const enough = 1 << 10
	text, err := io.ReadAll(io.LimitReader(f, enough))
	return string(text), err
}

// tpmFiles are more than a TPM emulator has open.
const tpmFiles = 256

// tpmSeen is where a TPM in a chamber finds its state.
const tpmSeen = "/tpm"

// runTPM runs the TPM emulator in a chamber, where it has its state and the guest's
// own directory, and waits until it has gone into the background.
func (r *Registry) runTPM(c *exec.Cmd, run *run, state string) error {
	own := run.ownPath()
	place := &sandbox.Spec{
		User: *run.User, Program: c.Path,
		WritableDirs: []sandbox.WritableDir{{HostPath: own, Path: own}, {HostPath: state, Path: tpmSeen}},
		// Threads with QEMU, whose user is the same. What it writes is its log, and a state
		// of some hundred KiB.
		Limits: sandbox.Limits{Threads: maxThreads(run.def), File: maxLog, Open: tpmFiles},
		Label:  run.labels.helper(),
	}
	c.Env, c.Dir = environment(own), "/"
	c.SysProcAttr.Credential = &syscall.Credential{Uid: run.User.UID, Gid: run.User.GID}
	err := r.Quarters.Builder.Run(place, func() (int, <-chan struct{}, error) {
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
	// It may have gone into the background before it was bounded.
	pid, process, err := tpmOf(run)
	if err != nil || process < 0 {
		return err
	}
	return errors.Join(place.Limits.ApplyTo(pid, place.User), unix.Close(process))
}

// giveTPM gives the TPM's state to the user that is to serve it: the guest's, who
// may be another one at each start, or the daemon's. It lies where nobody but a TPM
// sees it.
func (r *Registry) giveTPM(run *run) (state string, err error) {
	state = r.tpmState(run.UUID)
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
	if err := handTPM(state, u); err != nil {
		return failed(err)
	}
	return state, nil
}

// handTPM gives a TPM's state, in which nobody makes anything now, to a user. There may be any number of files:
// an emulator that was taken over makes them.
func handTPM(state string, u sandbox.User) error {
	dir, err := os.Open(state)
	if err != nil {
		return err
	}
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(atATime)
		if errors.Is(err, io.EOF) {
			return os.Lchown(state, int(u.UID), int(u.GID)) // last: whoever has it makes files in it
		}
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := os.Lchown(filepath.Join(state, name), int(u.UID), int(u.GID)); err != nil {
				return err
			}
		}
	}
}

// tpmState is where a guest's software TPM keeps what must outlive it.
func (r *Registry) tpmState(uuid string) string { return filepath.Join(r.DataDir, "tpm", uuid) }

// keepsTPM reports whether a definition says that the TPM's state stays when the
// guest is forgotten.
func keepsTPM(def *domain.Definition) bool {
	return slices.ContainsFunc(def.Devices.TPMs, func(t *device.TPM) bool { return t.Persistent.Or(false) })
}

// dropTPM removes the TPM's state of a guest that is no longer defined: another
// guest of the same UUID must not find its secrets.
func (r *Registry) dropTPM(uuid string, log *slog.Logger) {
	if err := removeTree(r.tpmState(uuid)); err != nil {
		log.Error("cannot remove the TPM's state", "path", r.tpmState(uuid), "error", err)
	}
	r.forgetLeft(uuid)
}

// dropSecretsOf does so for a guest that was transient when it ended, and not to be restored,
// and removes the UEFI variables that it made.
func (r *Registry) dropSecretsOf(rec *runRecord, def *domain.Definition, log *slog.Logger) {
	if rec.State.EndFor == domain.ReasonSaved {
		return
	}
	if !rec.KeepTPM && !keepsTPM(def) {
		r.dropTPM(rec.UUID, log)
	}
	r.dropMadeNVRAM(rec, def, log)
}

func tpmPID(run *run) string { return filepath.Join(run.ownPath(), "swtpm.pid") }

// tpmOf finds the emulator that serves a guest, as a descriptor that is the caller's;
// -1: none does. The guest's user may have written the number: it is believed only of a
// swtpm that runs as that user.
func tpmOf(run *run) (pid, process int, err error) {
	text, err := readSmall(tpmPID(run))
	if err != nil || text == "" {
		return 0, -1, nil //nolint:nilerr // it never came so far, or has ended by itself and taken its file along
	}
	pid, err = strconv.Atoi(strings.TrimSpace(text))
	if err != nil || pid <= 1 {
		return 0, -1, fault.New(fault.Failed, fault.Host, "the TPM emulator's pid file is damaged")
	}
	process, err = unix.PidfdOpen(pid, 0)
	if err != nil {
		return 0, -1, nil //nolint:nilerr // it has ended
	}
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	var of unix.Stat_t
	name, err := os.ReadFile(filepath.Join(proc, "comm"))
	if err == nil {
		err = unix.Stat(proc, &of)
	}
	var u sandbox.User
	if run.User != nil {
		u = *run.User
	}
	if err != nil || strings.TrimSpace(string(name)) != "swtpm" || of.Uid != u.UID {
		return 0, -1, unix.Close(process) // it has ended, and the number is somebody else's by now
	}
	return pid, process, nil
}

// stopTPMs ends the emulator of a guest whose QEMU never connected, or has gone.
func stopTPMs(_ context.Context, run *run) error {
	_, process, err := tpmOf(run)
	if err != nil || process < 0 {
		return err
	}
	defer unix.Close(process) //nolint:errcheck // nothing was written
	if err := unix.PidfdSendSignal(process, unix.SIGTERM, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	// What still runs as the guest's user when the number is given back is killed: it
	// gets the time to write down what it has.
	_, _ = unix.Poll([]unix.PollFd{{Fd: int32(process), Events: unix.POLLIN}}, int(tpmPatience/time.Millisecond))
	return nil
}

// tpmPatience is how long a TPM emulator that was told to end is waited for.
const tpmPatience = 2 * time.Second

// watchTPM sees to it that somebody is told when the TPM emulator of a running guest ends, for
// want of memory or by somebody's hand: QEMU says nothing, and ends itself at the next reset.
func (g *Guest) watchTPM(r *run) {
	if !slices.ContainsFunc(r.def.Devices.TPMs, func(t *device.TPM) bool { return t.Type == "emulator" }) {
		return
	}
	g.reg.loops.Go(func() {
		// A large guest that ends takes longer to be freed than its emulator to go.
		if !r.missesTPM(g.reg.life) || r.ending() {
			return
		}
		g.log.Warn("the TPM emulator of a guest has ended by itself")
		g.remark(g.reg.life, r, "the TPM emulator (swtpm) has ended: the guest's TPM answers no more, and a reset of the guest ends it; shut it down and start it again")
	})
}

// missesTPM waits until no emulator serves a guest whose QEMU runs on. It is false when that
// ends, with which the emulator does too, or the daemon.
func (r *run) missesTPM(ctx context.Context) bool {
	for missed := false; ; {
		emulator := holdTPM(r)
		if emulator == nil && missed {
			return true
		}
		missed = emulator == nil // one that has just begun may not have written its number
		if emulator != nil {
			select {
			case <-emulator.Exited():
			case <-r.process.Exited():
			case <-ctx.Done():
			}
			emulator.Release()
		}
		along := time.NewTimer(tpmPatience)
		select {
		case <-along.C:
		case <-r.process.Exited():
			along.Stop()
			return false
		case <-ctx.Done():
			along.Stop()
			return false
		}
	}
}

// holdTPM takes hold of the emulator that serves a guest; nil: none does.
func holdTPM(r *run) *qemuprocess.Process {
	pid, process, err := tpmOf(r)
	if err != nil || process < 0 {
		return nil
	}
	defer unix.Close(process) //nolint:errcheck // it holds the number until the process is held
	at, err := r.kernel.Process(pid)
	if err != nil {
		return nil
	}
	emulator, err := qemuprocess.Adopt(pid, at.Start)
	if err != nil {
		return nil
	}
	return emulator
}
