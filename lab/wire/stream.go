package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
)

// Send puts a frame on its way. It blocks while the connection is slow, and
// fails for good once the session is over.
type Send func(Frame) error

// ErrOverrun says that the peer sent more than it was given credit for.
var ErrOverrun = errors.New("the peer sends more than it was allowed to")

// Outlet is the writing end of a stream: it takes as much as the reader has
// room for and then waits.
type Outlet struct {
	to   Frame // its kind is Data; kept to be filled in
	send Send

	mu     sync.Mutex
	more   *sync.Cond
	credit int
	failed error
}

// NewOutlet is the writing end of a stream of a call.
func NewOutlet(epoch, id uint32, stream uint8, send Send) *Outlet {
	o := &Outlet{to: Frame{Kind: Data, Stream: stream, Epoch: epoch, ID: id}, send: send, credit: Window}
	o.more = sync.NewCond(&o.mu)
	return o
}

// Write sends all of p, in as many frames as it takes.
func (o *Outlet) Write(p []byte) (int, error) {
	written := 0
	for written < len(p) {
		n, err := o.reserve(min(len(p)-written, MaxPayload))
		if err != nil {
			return written, err
		}
		f := o.to
		f.Payload = append([]byte(nil), p[written:written+n]...)
		if err := o.send(f); err != nil {
			return written, err
		}
		written += n
	}
	return written, nil
}

// reserve takes up to want bytes of credit, and waits for the first.
func (o *Outlet) reserve(want int) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.credit == 0 && o.failed == nil {
		o.more.Wait()
	}
	if o.failed != nil {
		return 0, o.failed
	}
	n := min(want, o.credit)
	o.credit -= n
	return n, nil
}

// Close says that there is no more.
func (o *Outlet) Close() error {
	f := o.to
	f.Kind = End
	return o.send(f)
}

// Credited takes in a Credit frame's payload.
func (o *Outlet) Credited(payload []byte) error {
	if len(payload) != 4 {
		return fmt.Errorf("a credit of %d bytes' length", len(payload))
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	n := binary.BigEndian.Uint32(payload)
	if n > Window || o.credit+int(n) > Window {
		return errors.New("more credit than was used")
	}
	o.credit += int(n)
	o.more.Broadcast()
	return nil
}

// Fail ends every wait, now and later, with an error.
func (o *Outlet) Fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.failed == nil {
		o.failed = err
	}
	o.more.Broadcast()
}

// Inlet is the reading end of a stream. It holds at most Window bytes.
type Inlet struct {
	from Frame // kind Credit
	send Send

	mu    sync.Mutex
	more  *sync.Cond
	held  []byte
	taken int   // read and not yet credited
	over  error // io.EOF, or why nothing more comes
}

// NewInlet is the reading end of a stream of a call.
func NewInlet(epoch, id uint32, stream uint8, send Send) *Inlet {
	i := &Inlet{from: Frame{Kind: Credit, Stream: stream, Epoch: epoch, ID: id}, send: send}
	i.more = sync.NewCond(&i.mu)
	return i
}

// Push takes in a Data frame's payload. It never waits.
func (i *Inlet) Push(payload []byte) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.over != nil {
		return nil // nobody reads any more
	}
	if len(i.held)+i.taken+len(payload) > Window {
		return ErrOverrun
	}
	i.held = append(i.held, payload...)
	i.more.Broadcast()
	return nil
}

// Finish says that nothing more comes: io.EOF for a whole stream. What is held
// can still be read.
func (i *Inlet) Finish(err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.over == nil {
		i.over = err
	}
	i.more.Broadcast()
}

// Read waits for bytes and gives the writer room for as many.
func (i *Inlet) Read(p []byte) (int, error) {
	n, credit, err := i.take(p)
	if credit > 0 {
		f := i.from
		f.Payload = binary.BigEndian.AppendUint32(nil, uint32(credit))
		if failed := i.send(f); failed != nil && err == nil && n == 0 {
			err = failed
		}
	}
	return n, err
}

func (i *Inlet) take(p []byte) (n, credit int, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for len(i.held) == 0 && i.over == nil {
		i.more.Wait()
	}
	if len(i.held) == 0 {
		return 0, 0, i.over
	}
	n = copy(p, i.held)
	i.held = i.held[n:]
	if i.taken += n; i.over == nil && i.taken >= Window/4 {
		credit, i.taken = i.taken, 0
	}
	return n, credit, nil
}

var _ io.Writer = (*Outlet)(nil)
