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

	"github.com/lodge-kvm/lodge/lab/remote"
	"github.com/lodge-kvm/lodge/xdr"
)

// Answer is what a test says to a call: a result, which may be nil, or an error,
// of which only *remote.Error can be told to a client.
type Answer func(proc int32, args xdr.Message) (xdr.Message, error)

// Listen answers for a daemon at the socket whose path it gives, until the test
// ends. Several clients are served at once, each one's calls in their order.
func Listen(t *testing.T, answer Answer) string {
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
			client, err := listener.Accept()
			if err != nil {
				return
			}
			stop := context.AfterFunc(t.Context(), func() { client.Close() })
			clients.Go(func() {
				defer stop()
				serve(t, client, answer)
			})
		}
	})
	return path
}

// serve answers one client's calls in their order until it goes.
func serve(t *testing.T, client net.Conn, answer Answer) {
	defer client.Close()
	in := bufio.NewReader(client)
	for {
		h, payload, err := ReadPacket(in)
		if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET) {
			return
		}
		if err != nil {
			t.Errorf("the client sent no packet: %v", err)
			return
		}
		var args xdr.Message
		if p := xdr.Lookup(h.Program, h.Proc); p != nil && p.NewArgs != nil {
			args = p.NewArgs()
			r := xdr.NewReader(payload)
			if err := errors.Join(args.Decode(r), r.End()); err != nil {
				t.Errorf("%s: %v", p.Name, err)
			}
		}
		if _, err := client.Write(Reply(t, h, answer, args)); err != nil {
			return // it has gone
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
