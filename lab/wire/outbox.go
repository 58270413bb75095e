package wire

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
)

// outboxDepth bounds the frames that wait to be written; at the bound their
// senders wait.
const outboxDepth = 32

// ErrClosed says that a session is over.
var ErrClosed = errors.New("the session is over")

// Outbox writes frames of many senders to one connection, in the order sent.
type Outbox struct {
	to     io.Writer
	frames chan Frame
	epoch  atomic.Uint32 // of the frames that are still wanted

	once  sync.Once
	over  chan struct{}
	ended chan struct{} // the writer has
	why   error         // set before over is closed
}

// NewOutbox begins to write to a connection. Close does not end a write that is
// under way: close the connection for that.
func NewOutbox(to io.Writer, epoch uint32) *Outbox {
	o := &Outbox{to: to, frames: make(chan Frame, outboxDepth), over: make(chan struct{}), ended: make(chan struct{})}
	o.epoch.Store(epoch)
	go o.run()
	return o
}

// Turn makes frames of every other epoch worthless, those that wait included.
func (o *Outbox) Turn(epoch uint32) { o.epoch.Store(epoch) }

// Send gives a frame to the writer.
func (o *Outbox) Send(f Frame) error {
	select {
	case <-o.over:
		return o.why
	default:
	}
	select {
	case o.frames <- f:
		return nil
	case <-o.over:
		return o.why
	}
}

// Close lets all further sends fail with an error.
func (o *Outbox) Close(why error) {
	o.once.Do(func() {
		o.why = why
		close(o.over)
	})
}

// Ended is closed once the writer has.
func (o *Outbox) Ended() <-chan struct{} { return o.ended }

func (o *Outbox) run() {
	defer close(o.ended)
	for {
		select {
		case <-o.over:
			return
		case f := <-o.frames:
			if f.Epoch != o.epoch.Load() {
				continue
			}
			if _, err := o.to.Write(f.Encode()); err != nil {
				o.Close(err)
				return
			}
		}
	}
}
