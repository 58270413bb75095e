// Package remotetest is the other end of package remote, for tests: a daemon
// that a test answers for.
package remotetest

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/remote"
)

// Answer is a test's answer to a call: a result, which may be nil, or an error. Only
// an error of type *remote.Error can be sent to a client.
type Answer func(proc int32, args xdr.Message) (xdr.Message, error)

// Opens gives the other end of the stream that a call opens; nil if it opens none.
type Opens func(proc int32, args xdr.Message) io.ReadWriteCloser

// Listen answers for a daemon at a new socket until the test ends, and returns the
// socket's path. Several clients are served at once, the calls of each in their order.
func Listen(t *testing.T, answer Answer) string {
	t.Helper()
	return ListenStreams(t, answer, func(int32, xdr.Message) io.ReadWriteCloser { return nil })
}

// ListenStreams is Listen for a daemon that has streams, too.
func ListenStreams(t *testing.T, answer Answer, opens Opens) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sock")
	listener, err := new(net.ListenConfig).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var clients sync.WaitGroup
	t.Cleanup(func() { listener.Close(); clients.Wait() })
	clients.Go(func() {
		for {
			socket, err := listener.Accept()
			if err != nil {
				return
			}
			stop := context.AfterFunc(t.Context(), func() { socket.Close() })
			clients.Go(func() {
				defer stop()
				c := &client{socket: socket, streams: map[uint32]io.ReadWriteCloser{}}
				c.serve(t, answer, opens)
			})
		}
	})
	return path
}

// client is one that is served.
type client struct {
	socket  net.Conn
	sending sync.Mutex // a packet goes out whole
	streams map[uint32]io.ReadWriteCloser
	pumps   sync.WaitGroup
}

func (c *client) send(packet []byte) error {
	c.sending.Lock()
	defer c.sending.Unlock()
	_, err := c.socket.Write(packet)
	return err
}

// serve answers a client's calls in their order until it goes.
func (c *client) serve(t *testing.T, answer Answer, opens Opens) {
	defer c.pumps.Wait()
	defer func() {
		c.socket.Close()
		for _, s := range c.streams {
			_ = s.Close()
		}
	}()
	in := bufio.NewReader(c.socket)
	for {
		h, payload, err := ReadPacket(in)
		if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET) {
			return
		}
		if err != nil {
			t.Errorf("the client sent no packet: %v", err)
			return
		}
		if h.Type == xdr.TypeStream || h.Type == xdr.TypeStreamHole {
			c.carry(t, h, payload)
			continue
		}
		var args xdr.Message
		if p := xdr.Lookup(h.Program, h.Proc); p != nil && p.NewArgs != nil {
			args = p.NewArgs()
			r := xdr.NewReader(payload)
			if err := errors.Join(args.Decode(r), r.End()); err != nil {
				t.Errorf("%s: %v", p.Name, err)
			}
		}
		reply := Reply(t, h, answer, args)
		if err := c.send(reply); err != nil {
			return // it has gone
		}
		if told, err := xdr.ParseHeader(reply[xdr.LengthSize:]); err != nil || told.Status != xdr.StatusOK {
			continue // a refused call opens no stream
		}
		if s := opens(h.Proc, args); s != nil {
			c.streams[h.Serial] = s
			c.pumps.Go(func() { c.pump(h, s) })
		}
	}
}

// carry gives a stream's other end what the client sends, holes as zeros. The end of
// a stream is answered.
func (c *client) carry(t *testing.T, h xdr.Header, payload []byte) {
	s := c.streams[h.Serial]
	if s == nil {
		return
	}
	if h.Type == xdr.TypeStreamHole {
		var hole xdr.StreamHole
		if err := hole.Decode(xdr.NewReader(payload)); err != nil {
			t.Errorf("the client sent no hole: %v", err)
		}
		payload = make([]byte, hole.Length)
	}
	if h.Status == xdr.StatusContinue && len(payload) > 0 {
		_, _ = s.Write(payload)
		return
	}
	_ = s.Close()
	delete(c.streams, h.Serial)
	h.Status = xdr.StatusOK
	if packet, err := xdr.AppendRaw(nil, h, nil); err == nil {
		_ = c.send(packet) // unless it has gone
	}
}

// pump gives the client what a stream's other end sends.
func (c *client) pump(h xdr.Header, s io.Reader) {
	h.Type, h.Status = xdr.TypeStream, xdr.StatusContinue
	chunk := make([]byte, xdr.StreamData)
	for {
		n, err := s.Read(chunk)
		if n == 0 || err != nil {
			return
		}
		packet, err := xdr.AppendRaw(nil, h, chunk[:n])
		if err != nil || c.send(packet) != nil {
			return
		}
	}
}

// ReadPacket takes one packet off a connection.
func ReadPacket(in io.Reader) (xdr.Header, []byte, error) {
	var length [xdr.LengthSize]byte
	if _, err := io.ReadFull(in, length[:]); err != nil {
		return xdr.Header{}, nil, err
	}
	n, err := xdr.CheckLength(binary.BigEndian.Uint32(length[:]))
	if err != nil {
		return xdr.Header{}, nil, err
	}
	packet := make([]byte, n)
	if _, err := io.ReadFull(in, packet); err != nil {
		return xdr.Header{}, nil, err
	}
	h, err := xdr.ParseHeader(packet)
	return h, packet[xdr.HeaderSize:], err
}

// Reply is the packet that answers a call.
func Reply(t *testing.T, call xdr.Header, answer Answer, args xdr.Message) []byte {
	call.Type = xdr.TypeReply
	payload, err := answer(call.Proc, args)
	if err != nil {
		refused, ok := errors.AsType[*remote.Error](err)
		if !ok {
			t.Errorf("a daemon cannot answer %v", err)
			refused = &remote.Error{Message: err.Error()}
		}
		call.Status = xdr.StatusError
		payload = &xdr.NetError{Code: refused.Code, Domain: refused.Domain, Message: &refused.Message, Level: 2}
	}
	packet, err := xdr.AppendPacket(nil, call, payload, 0)
	if err != nil {
		t.Error(err)
	}
	return packet
}
