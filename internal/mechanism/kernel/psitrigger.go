package kernel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// HostMemoryPressure is the file of the whole host's memory pressure. A group's is MemoryGroup.PressureFile.
const HostMemoryPressure = "/proc/pressure/memory"

// PressureTrigger says when the kernel reports pressure: as soon as Stall was lost within Window
// (Documentation/accounting/psi.rst).
type PressureTrigger struct {
	// File is HostMemoryPressure, or a group's.
	File string
	// Full counts only time that all processes lost at once; otherwise any one process's counts.
	Full bool
	// Stall is at least 1 µs and at most Window, which is at most 10 s. Without CAP_SYS_RESOURCE, Window has to be a
	// multiple of 2 s, and older kernels, such as 6.1, set no trigger at all. Those want a Window of at least 500 ms.
	// The kernel looks ten times a Window, and every 2 s without the capability.
	Stall, Window time.Duration
}

// longestWindow is the longest Window of the kernel.
const longestWindow = 10 * time.Second

// PressureWatch is a trigger that is set in the kernel. It holds a descriptor until Close. One goroutine uses
// it at a time.
type PressureWatch struct {
	fd   int
	file string
}

// WatchPressure sets a trigger. Unsupported without pressure files, and where this process may not set this
// trigger; then the caller reads Pressure by a timer instead.
func (r Root) WatchPressure(t PressureTrigger) (*PressureWatch, error) {
	if t.Stall < time.Microsecond || t.Stall > t.Window || t.Window > longestWindow {
		return nil, fault.New(fault.Invalid, fault.Host, "cannot watch %s for %v of pressure within %v: give at least 1µs, within at most %v", t.File, t.Stall, t.Window, longestWindow)
	}
	kind := "some"
	if t.Full {
		kind = "full"
	}
	fd, err := open(r.path(t.File), unix.O_RDWR|unix.O_NONBLOCK)
	if err != nil {
		return nil, watchFault(err, t.File)
	}
	// The kernel takes the last byte for the end of a string, and overwrites it.
	text := fmt.Appendf(nil, "%s %d %d\x00", kind, t.Stall.Microseconds(), t.Window.Microseconds())
	if _, err := retryEINTR(func() (int, error) { return unix.Write(fd, text) }); err != nil {
		_ = unix.Close(fd)
		return nil, watchFault(err, t.File)
	}
	return &PressureWatch{fd, t.File}, nil
}

func watchFault(err error, file string) error {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.EOPNOTSUPP):
		return fault.Wrap(err, fault.Unsupported, fault.Host, "cannot watch %s: this kernel does not measure pressure, or the group is gone; psi=1 on the kernel's command line may switch it on", file)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EROFS):
		return fault.Wrap(err, fault.Unsupported, fault.Host, "cannot watch %s: this process may not set triggers; it needs CAP_SYS_RESOURCE", file)
	case errors.Is(err, unix.EINVAL): // WatchPressure has checked all else
		return fault.Wrap(err, fault.Unsupported, fault.Host,
			"cannot watch %s over this window: without CAP_SYS_RESOURCE it has to be a multiple of 2s, and for older kernels at least 500ms", file)
	}
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot watch %s", file)
}

// Close takes the trigger back. Wait must have returned.
func (w *PressureWatch) Close() error {
	return fault.Wrap(unix.Close(w.fd), fault.Failed, fault.Host, "cannot stop watching %s", w.file)
}

// Wait blocks until there was pressure since the last Wait, or until ctx ends: then its cause is the error. The
// kernel reports at most once a Window, so a loop of Waits is not busy. NotFound: the watched group is gone. A
// waiting call holds a thread of the operating system.
func (w *PressureWatch) Wait(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot wait for pressure in %s", w.file)
	}
	defer func() { _ = unix.Close(wake) }()
	woken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(woken)
		_, _ = unix.Write(wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // the counter is 0: it cannot be full
	})
	defer func() {
		if !stop() {
			<-woken // it may still write to wake
		}
	}()
	fds := []unix.PollFd{{Fd: int32(w.fd), Events: unix.POLLPRI}, {Fd: int32(wake), Events: unix.POLLIN}}
	if _, err := retryEINTR(func() (int, error) { return unix.Poll(fds, -1) }); err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot wait for pressure in %s", w.file)
	}
	switch {
	case fds[0].Revents&(unix.POLLERR|unix.POLLHUP|unix.POLLNVAL) != 0:
		return fault.New(fault.NotFound, fault.Host, "cannot wait for pressure in %s: the group is gone", w.file)
	case fds[0].Revents&unix.POLLPRI != 0:
		return nil
	}
	return context.Cause(ctx)
}
