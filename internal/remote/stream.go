package remote

import (
	"context"
	"io"
	"slices"
	"sync"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

// maxUnread bounds the bytes of a stream that were received and not read. The
// protocol cannot slow one stream alone, so a stream is ended if its reader falls
// that far behind.
const maxUnread = 16 << 20

// Stream is the bytes beside a call that opens one: a volume's content, a
// guest's channel. Reads and writes may go on at once. A daemon may stop reading
// the whole connection when a stream's other end takes nothing, so what must not
// be held up has a connection of its own.
type Stream struct {
	conn   *Conn
	header xdr.Header

	mu      sync.Mutex
	news    chan struct{} // closed and renewed when something changes
	packets [][]byte      // received and not read
	unread  int
	ended   bool // no more data
	over    bool // the daemon has said its last word
	err     error
}

// OpenStream makes a call that opens a stream.
func (c *Conn) OpenStream(ctx context.Context, proc int32, args, ret xdr.Message) (*Stream, error) {
	s := &Stream{conn: c, news: make(chan struct{})}
	err := c.exchange(ctx, xdr.ProgramRemote, proc, args, ret, func(serial uint32) {
		s.header = xdr.Header{Program: xdr.ProgramRemote, Version: xdr.Version, Proc: proc, Type: xdr.TypeStream, Serial: serial}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.streams[serial] = s
	})
	if err != nil {
		s.forget()
		return nil, named(xdr.ProgramRemote, proc, err)
	}
	return s, nil
}

func (s *Stream) forget() {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	delete(s.conn.streams, s.header.Serial)
}

// change runs do under the lock, and then wakes all goroutines that wait for a change.
func (s *Stream) change(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
	close(s.news)
	s.news = make(chan struct{})
}

// take is given each packet of the stream, by the connection's reader.
func (s *Stream) take(h xdr.Header, payload []byte) {
	s.change(func() {
		switch {
		case s.over:
		case h.Type == xdr.TypeStreamHole:
			s.fail(fault.New(fault.Unsupported, fault.Call, "a hole came in a stream that was not opened as sparse"))
		case h.Status == xdr.StatusContinue && len(payload) == 0:
			s.ended = true
		case h.Status == xdr.StatusContinue && s.unread+len(payload) > maxUnread:
			s.fail(fault.New(fault.NoCapacity, fault.Call, "%d bytes of a stream wait to be read", s.unread))
		case h.Status == xdr.StatusContinue:
			s.packets, s.unread = append(s.packets, slices.Clone(payload)), s.unread+len(payload)
		case h.Status == xdr.StatusOK:
			s.ended, s.over = true, true
		default:
			s.fail(answer{h.Status, payload}.into(nil))
		}
	})
}

func (s *Stream) fail(err error) { s.ended, s.over, s.err = true, true, err }

// broken is told when the connection has ended.
func (s *Stream) broken(err error) {
	s.change(func() {
		if !s.over {
			s.fail(err)
		}
	})
}

// Read gives what the daemon sent; io.EOF when it has sent all.
func (s *Stream) Read(p []byte) (int, error) {
	for {
		s.mu.Lock()
		if len(s.packets) > 0 {
			n := copy(p, s.packets[0])
			s.unread -= n
			if s.packets[0] = s.packets[0][n:]; len(s.packets[0]) == 0 {
				s.packets = s.packets[1:]
			}
			s.mu.Unlock()
			return n, nil
		}
		ended, err, news := s.ended, s.err, s.news
		s.mu.Unlock()
		if ended && err == nil {
			err = io.EOF
		}
		if ended {
			return 0, err
		}
		<-news
	}
}

// closed says why nothing can be sent any more; nil: it can.
func (s *Stream) closed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over && s.err == nil {
		return io.ErrClosedPipe
	}
	if s.over {
		return s.err
	}
	return nil
}

// Write sends. It returns when the socket has taken all.
func (s *Stream) Write(p []byte) (int, error) {
	for sent := 0; sent < len(p); {
		if err := s.closed(); err != nil {
			return sent, err
		}
		chunk := p[sent:min(len(p), sent+xdr.StreamData)]
		if err := s.send(context.Background(), xdr.StatusContinue, chunk); err != nil {
			return sent, err
		}
		sent += len(chunk)
	}
	return len(p), nil
}

// Hole says that so many bytes read as zeros, in a stream that was opened as sparse.
func (s *Stream) Hole(ctx context.Context, bytes int64) error {
	if err := s.closed(); err != nil {
		return err
	}
	h := s.header
	h.Type, h.Status = xdr.TypeStreamHole, xdr.StatusContinue
	packet, err := xdr.AppendPacket(nil, h, &xdr.StreamHole{Length: bytes}, 0)
	if err != nil {
		return err
	}
	return s.conn.send(ctx, packet)
}

func (s *Stream) send(ctx context.Context, status xdr.Status, payload []byte) error {
	h := s.header
	h.Status = status
	packet, err := xdr.AppendRaw(nil, h, payload)
	if err != nil {
		return err
	}
	return s.conn.send(ctx, packet)
}

// Finish says that all was sent, and waits until the daemon says that it has
// dealt with it.
func (s *Stream) Finish(ctx context.Context) error {
	defer s.forget()
	s.mu.Lock()
	over, err := s.over, s.err
	s.mu.Unlock()
	if over {
		return err
	}
	if err := s.send(ctx, xdr.StatusOK, nil); err != nil {
		return err
	}
	for {
		s.mu.Lock()
		over, err, news := s.over, s.err, s.news
		s.mu.Unlock()
		if over {
			return err
		}
		select {
		case <-news:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Close drops the stream: reads and writes in progress end, and unread data is lost.
func (s *Stream) Close() error {
	s.mu.Lock()
	over := s.over
	s.mu.Unlock()
	s.change(func() {
		if !s.over {
			s.fail(io.ErrClosedPipe)
		}
		s.packets, s.unread = nil, 0
	})
	s.forget()
	if over {
		return nil
	}
	ctx, stop := context.WithTimeout(context.Background(), pongPatience)
	defer stop()
	return s.send(ctx, xdr.StatusError, nil)
}
