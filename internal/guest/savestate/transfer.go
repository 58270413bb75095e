package savestate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/filelabel"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// migrateTo writes a guest's state to a file from its present offset, in at most most bytes, until it is
// complete or ctx ends.
func migrateTo(ctx context.Context, s *qmp.Session, f *os.File, most int64, p *machine.Progress, labels *filelabel.Labels) error {
	t, qemus, err := startTransfer(f, most, labels)
	if err != nil {
		return err
	}
	err = s.Execute(ctx, "migrate-set-parameters", map[string]any{"max-bandwidth": machine.Unlimited}, nil)
	if err == nil {
		err = s.ExecuteFD(ctx, qemus, "getfd", map[string]any{"fdname": "lodge-save"}, nil)
	}
	_ = qemus.Close() // QEMU has its own, or none
	if err == nil {
		err = s.Execute(ctx, "migrate", map[string]any{"uri": "fd:lodge-save"}, nil)
	}
	if err == nil {
		// A QEMU that waits for a file system may not answer until its socket is closed.
		settled := context.AfterFunc(ctx, t.closeConnection)
		err = machine.FollowMigration(ctx, s, p)
		settled()
	}
	return t.wait(ctx, err)
}

// transfer copies what QEMU writes into a file that QEMU is not passed. The file begins with the definition
// that a restore trusts, which a compromised QEMU could otherwise replace.
type transfer struct {
	from    net.Conn
	written chan error // receives one value, when all is written or writing has failed
}

// closePatience is how long QEMU may take to close its end after it has written everything.
const closePatience = 10 * time.Second

// maxStateSize bounds, in bytes, the state of a stopped guest: each page of its memory once, and the state of
// its devices. Without a bound a compromised QEMU could fill the file system.
func maxStateSize(d *domain.Definition) int64 {
	const beside = 1 << 30
	return int64(min(2*(d.Memory+d.MemoryBeside())+beside, math.MaxInt64))
}

// startTransfer begins to fill a file from its present offset, with at most most bytes. It returns QEMU's end
// of the connection, which the caller must close.
func startTransfer(to *os.File, most int64, labels *filelabel.Labels) (t *transfer, qemus *os.File, err error) {
	var ends [2]int
	err = labels.Sockets(func() (err error) {
		ends, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot make a socket pair")
	}
	ours := os.NewFile(uintptr(ends[0]), "stream")
	qemus = os.NewFile(uintptr(ends[1]), "stream")
	from, err := net.FileConn(ours)
	if err = errors.Join(err, ours.Close()); err != nil { // the connection has a duplicate
		return nil, nil, errors.Join(err, qemus.Close())
	}
	t = &transfer{from, make(chan error, 1)}
	go func() {
		const piece = 1 << 20
		n, err := io.CopyBuffer(struct{ io.Writer }{to}, io.LimitReader(from, most), make([]byte, piece))
		if err == nil && n == most {
			err = fault.New(fault.Failed, fault.Monitor, "QEMU wrote more than %d bytes of state, more than a guest of its size can have", most)
		}
		_ = from.Close() // QEMU's writes fail from now on
		if errors.Is(err, net.ErrClosed) {
			err = nil // end closed it, and its caller knows why
		}
		t.written <- fault.Wrap(withoutName(err), machine.FailureKind(err), fault.Host, "cannot write the guest's state")
	}()
	return t, qemus, nil
}

// closeConnection closes the connection, so that QEMU's writes fail.
func (t *transfer) closeConnection() { _ = t.from.Close() }

// wait waits until everything that QEMU has written is in the file. moved is the error of QEMU's part. An
// error of the file is returned in its place, because it is the cause. A file system that hangs does not
// delay the caller. Once ctx has ended, the file may be incomplete, whatever QEMU reports.
func (t *transfer) wait(ctx context.Context, moved error) error {
	defer t.closeConnection()
	wait := closePatience
	if moved != nil {
		t.closeConnection() // the rest is not needed
		wait = machine.CloseTimeout
	}
	late := time.NewTimer(wait)
	defer late.Stop()
	select {
	case err := <-t.written:
		return cmp.Or(err, moved, context.Cause(ctx))
	case <-ctx.Done():
		return cmp.Or(moved, context.Cause(ctx))
	case <-late.C:
	}
	return cmp.Or(moved, fault.New(fault.Timeout, fault.Monitor, "QEMU has written the guest's state, but has not closed its end within %v", closePatience))
}

// withoutName removes the file name from an error. It is a temporary name, which tells the user nothing.
func withoutName(err error) error {
	if p, is := errors.AsType[*fs.PathError](err); is {
		err = p.Err
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%w; free some space there and try again", err)
	}
	return err
}
