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

// tpmLog follows the guest's name in the file name of the TPM emulator's log.
const tpmLog = "-swtpm"

// startTPMs starts swtpm for each emulated TPM of the guest. swtpm ends when QEMU closes its connection.
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

// boundTPM moves the TPM emulator into the guest's control group and sets its OOM score. The guest decides
// what the emulator does: without these limits it could use any part of the host's memory and would be the
// last process to be killed when memory runs out.
func (l *launching) boundTPM() error {
	pid, process, err := tpmOf(l.run)
	if err != nil || process < 0 {
		return err
	}
	defer unix.Close(process) //nolint:errcheck // keeps the PID from being reused until the group has the process
	l.g.reg.makeVictim(l.run.Name, pid, victim(l.opts.Priority))
	return l.g.reg.Cgroups.Guest(l.run.UUID).AddProcess(pid)
}

// holdTPMs pushes the release that ends the guest's TPM emulator and gives its state back to the daemon's
// user.
func (r *Registry) holdTPMs(run *run) {
	run.hold("tpm", func(ctx context.Context) error {
		if err := stopTPMs(ctx, run); err != nil {
			return err
		}
		state := r.tpmState(run.UUID)
		_ = os.Remove(state) // this removes only an empty state, of a TPM that never stored anything
		// Another guest gets this user's number later, and must not be able to read the state.
		if err := handTPM(state, sandbox.User{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}); !errors.Is(err, os.ErrNotExist) {
			return fault.Wrap(err, fault.Failed, fault.Host, "cannot take the TPM's state back")
		}
		return nil
	})
}

// startTPM starts a software TPM, in a sandbox and as the guest's user if the guest has one. It returns
// when the TPM's socket is ready.
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
	// swtpm 0.7 takes an inherited log descriptor for its socket, and reopens an inherited pid file by
	// name. In a sandbox both files therefore lie beside the guest's sockets.
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
	// With --daemon the program returns when its socket is ready.
	c := exec.CommandContext(ctx, program, args...)
	var said bytes.Buffer
	c.Stdout, c.Stderr = &said, &said
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if run.User == nil {
		err = kernel.Confined(nil, c.Run) // its files belong to the user it runs as
	} else {
		err = r.runTPM(c, run, state)
	}
	if err != nil {
		wrote, _ := readSmall(log) // it may not have begun a log
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot start the TPM emulator: %s", strings.TrimSpace(said.String()+wrote))
	}
	failpoint.Reach("launch.tpm")
	return nil
}

// readSmall reads the beginning, at most 1 KiB, of a file that a guest's user may have written. It follows
// no link and never blocks, because that user may have replaced the file.
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

// tpmFiles bounds the open files of a TPM emulator. It needs fewer.
const tpmFiles = 256

// tpmSeen is where a TPM emulator in a sandbox finds its state.
const tpmSeen = "/tpm"

// runTPM runs the TPM emulator in a sandbox that holds its state and the guest's own directory. It returns
// when the emulator runs in the background.
func (r *Registry) runTPM(c *exec.Cmd, run *run, state string) error {
	own := run.ownPath()
	place := &sandbox.Spec{
		User: *run.User, Program: c.Path,
		WritableDirs: []sandbox.WritableDir{{HostPath: own, Path: own}, {HostPath: state, Path: tpmSeen}},
		// The limit of threads is shared with QEMU, which runs as the same user. The emulator writes only
		// its log and a state of some hundred KiB.
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
	// The emulator may have gone into the background before the limits were set.
	pid, process, err := tpmOf(run)
	if err != nil || process < 0 {
		return err
	}
	return errors.Join(place.Limits.ApplyTo(pid, place.User), unix.Close(process))
}

// giveTPM gives the TPM's state to the user that serves it: the guest's user, which may differ from start
// to start, or else the daemon's. The state lies in the data directory, where only a TPM emulator gets
// access.
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

// handTPM gives a TPM's state to a user. No process may be creating files in it. There may be any number of
// files, because a compromised emulator can make them, so they are read in portions.
func handTPM(state string, u sandbox.User) error {
	dir, err := os.Open(state)
	if err != nil {
		return err
	}
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(atATime)
		if errors.Is(err, io.EOF) {
			return os.Lchown(state, int(u.UID), int(u.GID)) // last: the directory's owner can make files in it
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

// tpmState is the directory of the TPM state that outlives a guest's run.
func (r *Registry) tpmState(uuid string) string { return filepath.Join(r.DataDir, "tpm", uuid) }

// keepsTPM reports whether the definition keeps the TPM's state after the guest is undefined.
func keepsTPM(def *domain.Definition) bool {
	return slices.ContainsFunc(def.Devices.TPMs, func(t *device.TPM) bool { return t.Persistent.Or(false) })
}

// dropTPM removes the TPM state of a guest that is no longer defined. Another guest of the same UUID must
// not find its secrets.
func (r *Registry) dropTPM(uuid string, log *slog.Logger) {
	if err := removeTree(r.tpmState(uuid)); err != nil {
		log.Error("cannot remove the TPM's state", "path", r.tpmState(uuid), "error", err)
	}
	r.forgetLeft(uuid)
}

// dropSecretsOf removes the TPM state and the UEFI variables of a transient guest that has ended, unless it
// was saved and may be restored.
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

// tpmOf finds the TPM emulator that serves a guest. The caller must close the returned pidfd; -1 means that
// there is none. The guest's user may have written the pid file. So the PID is accepted only for a swtpm
// that runs as this user.
func tpmOf(run *run) (pid, process int, err error) {
	text, err := readSmall(tpmPID(run))
	if err != nil || text == "" {
		return 0, -1, nil //nolint:nilerr // it did not get that far, or has ended and removed its file
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
		return 0, -1, unix.Close(process) // it has ended, and another process has its PID by now
	}
	return pid, process, nil
}

// stopTPMs ends the TPM emulator of a guest after its QEMU never connected, or has ended. It waits at most
// tpmPatience.
func stopTPMs(_ context.Context, run *run) error {
	_, process, err := tpmOf(run)
	if err != nil || process < 0 {
		return err
	}
	defer unix.Close(process) //nolint:errcheck // nothing was written
	if err := unix.PidfdSendSignal(process, unix.SIGTERM, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	// Processes that still run as the guest's user when the user is freed are killed. This wait gives the
	// emulator time to write its state.
	_, _ = unix.Poll([]unix.PollFd{{Fd: int32(process), Events: unix.POLLIN}}, int(tpmPatience/time.Millisecond))
	return nil
}

// tpmPatience is how long to wait for a TPM emulator that was told to end.
const tpmPatience = 2 * time.Second

// watchTPM reports it when the TPM emulator of a running guest ends, because memory ran out or someone
// killed it. QEMU does not report this, and exits at the guest's next reset.
func (g *Guest) watchTPM(r *run) {
	if !slices.ContainsFunc(r.def.Devices.TPMs, func(t *device.TPM) bool { return t.Type == "emulator" }) {
		return
	}
	g.reg.loops.Go(func() {
		// When a large guest ends, its memory takes longer to free than its emulator takes to exit. So
		// check the run as well.
		if !r.missesTPM(g.reg.life) || r.ending() {
			return
		}
		g.log.Warn("TPM emulator has ended unexpectedly")
		g.remark(g.reg.life, r, "the TPM emulator (swtpm) has ended: the guest's TPM no longer answers, and a reset would end the guest; shut it down and start it again")
	})
}

// missesTPM waits until the emulator of a running guest has ended. It returns false if QEMU ends, which
// ends the emulator too, or if ctx ends.
func (r *run) missesTPM(ctx context.Context) bool {
	for missed := false; ; {
		emulator := holdTPM(r)
		if emulator == nil && missed {
			return true
		}
		missed = emulator == nil // a new emulator may not have written its pid file yet
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

// holdTPM adopts the process of the guest's TPM emulator. Nil: there is none. The caller must release it.
func holdTPM(r *run) *qemuprocess.Process {
	pid, process, err := tpmOf(r)
	if err != nil || process < 0 {
		return nil
	}
	defer unix.Close(process) //nolint:errcheck // keeps the PID from being reused until the process is adopted
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
