package provision

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/mechanism/sandbox"
)

// TPMLog follows the guest's name in the file name of the TPM emulator's log.
const TPMLog = "-swtpm"

// HoldTPMs pushes the release that ends the guest's TPM emulator and gives its state back to the daemon's
// user.
func HoldTPMs(r *machine.Registry, run *machine.Instance) {
	run.PushRelease("tpm", func(ctx context.Context) error {
		if err := stopTPMs(ctx, run); err != nil {
			return err
		}
		state := TPMState(r, run.UUID)
		_ = os.Remove(state) // this removes only an empty state, of a TPM that never stored anything
		// Another guest gets this user's number later, and must not be able to read the state.
		if err := ChownTPM(state, sandbox.User{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}); !errors.Is(err, os.ErrNotExist) {
			return fault.Wrap(err, fault.Failed, fault.Host, "cannot take the TPM's state back")
		}
		return nil
	})
}

// ReadSmall reads the beginning, at most 1 KiB, of a file that a guest's user may have written. It follows
// no link and never blocks, because that user may have replaced the file.
func ReadSmall(path string) (string, error) {
	f, err := os.OpenFile(path, unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	const enough = 1 << 10
	text, err := io.ReadAll(io.LimitReader(f, enough))
	return string(text), err
}

// ChownTPM gives a TPM's state to a user. No process may be creating files in it. There may be any number of
// files, because a compromised emulator can make them, so they are read in portions.
func ChownTPM(state string, u sandbox.User) error {
	dir, err := os.Open(state)
	if err != nil {
		return err
	}
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(machine.NamesPerRead)
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

// TPMState is the directory of a guest's TPM state, which outlives its instances.
func TPMState(r *machine.Registry, uuid string) string { return filepath.Join(r.DataDir, "tpm", uuid) }

// TPMPID is the file that has the process of a TPM's emulator.
func TPMPID(run *machine.Instance) string { return filepath.Join(OwnPath(run), "swtpm.pid") }

// FindTPM finds the TPM emulator that serves a guest. The caller must close the returned pidfd; -1 means that
// there is none. The guest's user may have written the pid file. So the PID is accepted only for a swtpm
// that runs as this user.
func FindTPM(run *machine.Instance) (pid, process int, err error) {
	text, err := ReadSmall(TPMPID(run))
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
// TPMPatience.
func stopTPMs(_ context.Context, run *machine.Instance) error {
	_, process, err := FindTPM(run)
	if err != nil || process < 0 {
		return err
	}
	defer unix.Close(process) //nolint:errcheck // nothing was written
	if err := unix.PidfdSendSignal(process, unix.SIGTERM, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	// Processes that still run as the guest's user when the user is freed are killed. This wait gives the
	// emulator time to write its state.
	_, _ = unix.Poll([]unix.PollFd{{Fd: int32(process), Events: unix.POLLIN}}, int(TPMPatience/time.Millisecond))
	return nil
}

// TPMPatience is how long to wait for a TPM emulator that was told to end.
const TPMPatience = 2 * time.Second
