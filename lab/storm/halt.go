package storm

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/bare"
)

// halted is a guest whose QEMU is stopped. The process is held by a descriptor,
// so that a number that is used again hits nobody else.
type halted struct {
	guest int
	pidfd int
}

// halt stops the QEMUs of guests. They stay stopped until release.
func (t *turn) halt(guests ...int) error {
	if !t.target.at.Local() {
		return fault.New(fault.Unsupported, fault.Host, "the QEMUs run on another host, where the lab stops none")
	}
	processes, err := bare.Processes(t.prefix)
	if err != nil {
		return err
	}
	for _, guest := range guests {
		pid := processes[t.name(guest)]
		if pid == 0 {
			return fault.New(fault.NotFound, fault.Domain, "no QEMU process of guest %s is to be found on this host", t.name(guest))
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			return fault.Wrap(err, fault.Failed, fault.Host, "cannot hold process %d", pid)
		}
		t.halted = append(t.halted, &halted{guest, fd})
		if again, err := bare.Processes(t.name(guest)); err != nil || again[t.name(guest)] != pid {
			return errors.Join(err, fault.New(fault.Failed, fault.Domain, "guest %s has ended meanwhile", t.name(guest)))
		}
		if err := unix.PidfdSendSignal(fd, unix.SIGSTOP, nil, 0); err != nil {
			return fault.Wrap(err, fault.Failed, fault.Host, "cannot stop process %d", pid)
		}
	}
	return nil
}

// release lets stopped QEMUs go on. One that has ended needs nothing.
func (t *turn) release() error {
	var all error
	for _, h := range t.halted {
		err := unix.PidfdSendSignal(h.pidfd, unix.SIGCONT, nil, 0)
		if err != nil && !errors.Is(err, unix.ESRCH) {
			all = errors.Join(all, fault.Wrap(err, fault.Failed, fault.Domain, "guest %s stays stopped", t.name(h.guest)))
		}
		all = errors.Join(all, unix.Close(h.pidfd))
	}
	t.halted = nil
	return all
}

// tenth draws a tenth of the guests from first on, but one at least.
func (t *turn) tenth(first int) []int {
	n := max(1, t.cell.Guests/10)
	var drawn []int
	for _, i := range t.rand.Perm(t.cell.Guests - first)[:n] {
		drawn = append(drawn, first+i)
	}
	return drawn
}

// gone waits for a process to end.
func gone(ctx context.Context, pidfd int) error {
	const look = 100 // ms between looks at the context
	for {
		poll := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
		n, err := unix.Poll(poll, look)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fault.Wrap(err, fault.Failed, fault.Host, "cannot wait for a process")
		}
		if n > 0 {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// kill ends all QEMUs of this run, for a daemon that does not.
func (b *bench) kill(ctx context.Context) error {
	processes, err := bare.Processes(b.prefix)
	if err != nil {
		return err
	}
	ctx, stop := context.WithTimeoutCause(ctx, killPatience, errCut)
	defer stop()
	var all error
	for name, pid := range processes {
		fd, err := unix.PidfdOpen(pid, 0)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if again, failure := bare.Processes(name); failure == nil && err == nil && again[name] == pid {
			err = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
			if err == nil {
				err = gone(ctx, fd)
			}
			err = errors.Join(err, unix.Close(fd))
		}
		if err != nil {
			all = errors.Join(all, fault.Wrap(err, fault.Failed, fault.Domain, "the QEMU of guest %s is left behind", name))
		}
	}
	return all
}

const killPatience = 10 * time.Second
