package guest

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/lodge-kvm/lodge/device"
	"github.com/lodge-kvm/lodge/domain"
	"github.com/lodge-kvm/lodge/failpoint"
	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/kernel"
)

// startTPMs starts a software TPM for every emulated one of the guest. It ends
// by itself when QEMU closes its connection.
func (l *launching) startTPMs(ctx context.Context) error {
	for _, t := range l.run.def.Devices.TPMs {
		if t.Type != "emulator" {
			continue
		}
		socket := filepath.Join(l.run.ownPath(), t.Alias+".sock")
		l.run.hold("tpm", func(ctx context.Context) error { return stopTPMs(ctx, l.run) })
		if err := l.g.reg.startTPM(ctx, l.run, t, socket); err != nil {
			return err
		}
		if l.plan.TPMSockets == nil {
			l.plan.TPMSockets = map[string]string{}
		}
		l.plan.TPMSockets[t.Alias] = socket
	}
	return nil
}

func (r *Registry) startTPM(ctx context.Context, run *run, t *device.TPM, socket string) error {
	program, err := exec.LookPath("swtpm")
	if err != nil {
		return fault.Wrap(err, fault.Unsupported, fault.Config, "an emulated TPM needs swtpm; install the package swtpm")
	}
	state := r.tpmState(run.UUID)
	if err := os.MkdirAll(state, 0o700); err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot make the TPM's state directory")
	}
	// Without capabilities it makes no socket in a directory of the guest's user: it
	// makes one here, which is then given to that user.
	made := filepath.Join(run.dir, t.Alias+".sock")
	args := []string{
		"socket", "--daemon", "--terminate",
		"--tpmstate", "dir=" + state + ",mode=0600",
		"--ctrl", "type=unixio,path=" + made + ",mode=0600",
		"--pid", "file=" + tpmPID(run.dir),
		"--log", "file=" + filepath.Join(r.logDir(), run.Name+"-swtpm.log"),
	}
	if t.Version != "1.2" {
		args = append(args, "--tpm2")
	}
	// With --daemon the program returns when its socket is there.
	c := exec.CommandContext(ctx, program, args...)
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	var out []byte
	err = kernel.Confined(nil, func() (err error) { // its files are its own user's
		out, err = c.CombinedOutput()
		return err
	})
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot start the TPM emulator: %s", strings.TrimSpace(string(out)))
	}
	failpoint.Reach("launch.tpm")
	if u := run.User; u != nil {
		err := os.Lchown(made, int(u.UID), int(u.GID))
		if err == nil {
			err = os.Rename(made, socket)
		}
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot give the TPM's socket to the guest")
	}
	return nil
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
	if err := os.RemoveAll(r.tpmState(uuid)); err != nil {
		log.Error("cannot remove the TPM's state", "path", r.tpmState(uuid), "error", err)
	}
}

func tpmPID(dir string) string { return filepath.Join(dir, "swtpm.pid") }

// stopTPMs ends the emulator of a guest whose QEMU never connected, or has gone.
func stopTPMs(_ context.Context, run *run) error {
	text, err := os.ReadFile(tpmPID(run.dir))
	if errors.Is(err, os.ErrNotExist) {
		return nil // it has ended by itself, and taken its file along
	}
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 1 {
		return fault.New(fault.Failed, fault.Host, "the TPM emulator's pid file is damaged")
	}
	name, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "comm"))
	if err != nil || strings.TrimSpace(string(name)) != "swtpm" {
		return nil // the number is somebody else's now
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}
