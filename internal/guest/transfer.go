package guest

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
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// transfer brings what QEMU writes into a file that QEMU does not get: before it in an image lies the
// definition that a restore believes, and a QEMU that was taken over would write another there.
type transfer struct {
	from    net.Conn
	written chan error // one, when all has been written, or nothing more can be
}

// lastWrite is how long QEMU may take to let go when it has written all.
const lastWrite = 10 * time.Second

// mostState bounds the state of a guest that does not run, in bytes: each page of its memory once, and what
// devices have. A QEMU that was taken over would fill the file system without an end.
func mostState(d *domain.Definition) int64 {
	const beside = 1 << 30
	return int64(min(2*(d.Memory+d.MemoryBeside())+beside, math.MaxInt64))
}

// transferTo begins to fill a file from its present offset, with so many bytes at most, and gives QEMU's end, which
// is the caller's to close.
func transferTo(to *os.File, most int64, labels *labels) (t *transfer, qemus *os.File, err error) {
	var ends [2]int
	err = labels.sockets(func() (err error) {
		ends, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot make a pair of sockets")
	}
	ours := os.NewFile(uintptr(ends[0]), "stream")
	qemus = os.NewFile(uintptr(ends[1]), "stream")
	from, err := net.FileConn(ours)
	if err = errors.Join(err, ours.Close()); err != nil { // the connection has a copy
		return nil, nil, errors.Join(err, qemus.Close())
	}
	t = &transfer{from, make(chan error, 1)}
	go func() {
		const piece = 1 << 20
		n, err := io.CopyBuffer(struct{ io.Writer }{to}, io.LimitReader(from, most), make([]byte, piece))
		if err == nil && n == most {
			err = fault.New(fault.Failed, fault.Monitor, "QEMU has more than %d bytes of state, which no guest of its size has", most)
		}
		_ = from.Close() // QEMU writes to nobody when this cannot
		if errors.Is(err, net.ErrClosed) {
			err = nil // by end, whose caller knows why
		}
		t.written <- fault.Wrap(withoutName(err), failure(err), fault.Host, "cannot write what the guest has")
	}()
	return t, qemus, nil
}

// hangUp has QEMU write to nobody.
func (t *transfer) hangUp() { _ = t.from.Close() }

// end waits until all is in the file that QEMU has written, after what came of QEMU's part; an
// error of the file's own is the reason of QEMU's, and told in its place. A file system that hangs
// keeps the file, and nobody. Once ctx has ended the file may not have all, whatever QEMU says.
func (t *transfer) end(ctx context.Context, moved error) error {
	defer t.hangUp()
	wait := lastWrite
	if moved != nil {
		t.hangUp() // nothing more is wanted
		wait = closeTime
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
	return cmp.Or(moved, fault.New(fault.Timeout, fault.Monitor, "QEMU has moved the guest's state, and does not let go of what it wrote it to for %v", lastWrite))
}

// withoutName is why a file could not be written, without the name that it is open by, which says nothing to who knows
// where it lies.
func withoutName(err error) error {
	if p, is := errors.AsType[*fs.PathError](err); is {
		err = p.Err
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%w; make room there and try again", err)
	}
	return err
}
