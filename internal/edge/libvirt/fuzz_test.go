package libvirt

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"

	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/word/event"
)

// FuzzConnection sends any bytes to a session, authenticated or not, that serves connection calls and an echoing
// stream. The connection may end, but only by the server's own decision, and nothing stays behind. All output
// consists of well-formed packets. An unauthenticated client opens no connection to a driver.
func FuzzConnection(f *testing.F) {
	add := func(headers ...xdr.Header) {
		var b []byte
		for _, h := range headers {
			b = append(b, raw(32, h, []byte{0, 0, 0, 1})...)
		}
		f.Add(b, false)
		f.Add(b, true)
	}
	add(call(xdr.ProcAuthList), call(xdr.ProcConnectOpen))
	add(call(xdr.ProcConnectGetType), call(xdr.ProcConnectSupportsFeature), call(xdr.ProcConnectOpen))
	add(withType(call(xdr.ProcConnectGetURI), xdr.TypeCallWithFDs))
	add(xdr.Header{Program: xdr.ProgramKeepalive, Version: 1, Proc: 1, Type: xdr.TypeMessage}, call(9999))
	base := withType(call(xdr.ProcDomainOpenConsole), xdr.TypeStream)
	data, end := base, base
	data.Status, end.Status = xdr.StatusContinue, xdr.StatusOK
	open := append(make([]byte, 0, 64), raw(60, call(xdr.ProcDomainOpenConsole), make([]byte, 32))...)
	open = append(open, raw(32, data, []byte("echo"))...)
	f.Add(append(open, raw(28, end, nil)...), false)
	f.Add(raw(0xffffffff, call(1), nil), false)

	f.Fuzz(func(t *testing.T, input []byte, anonymous bool) {
		synctest.Test(t, func(t *testing.T) {
			output, s := converse(input, anonymous)
			if s.Opened && !s.Authenticated {
				t.Fatal("an anonymous client has opened a connection")
			}
			for output.Len() > 0 {
				n, err := rpc.ReadLength(output)
				if err != nil || n > output.Len() {
					t.Fatalf("a client gets %[2]d of a packet's %[1]d bytes: %[3]v", n, output.Len(), err)
				}
				h, err := xdr.ParseHeader(output.Next(n))
				if err != nil || h.Type == xdr.TypeCall || h.Type == xdr.TypeCallWithFDs {
					t.Fatalf("a client is sent %+v, %v", h, err)
				}
			}
		})
	})
}

// TestConverse_ServerAnswers: the server answers the client of FuzzConnection, and does not refuse it at once.
func TestConverse_ServerAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if output, _ := converse(raw(28, call(xdr.ProcConnectGetType), nil), false); !bytes.Contains(output.Bytes(), []byte("QEMU")) {
			t.Errorf("an accepted client gets %q", output.Bytes())
		}
	})
}

// converse sends input as a client, and disconnects when the server is idle. It returns what the server
// sent, and the session.
func converse(input []byte, anonymous bool) (*bytes.Buffer, *rpc.Session) {
	s := New(rpc.Config{Backends: rpc.Backends{Events: event.NewLog()}, Log: slog.New(slog.DiscardHandler)})
	s.Table = rpc.Table{}
	g := rpc.Group{Table: s.Table, Program: xdr.ProgramRemote}
	rpc.AuthCalls(g)
	rpc.ConnectCalls(g)
	rpc.EventCalls(g)
	serveConsole(func(_ context.Context, st *rpc.Stream) error {
		_, err := io.Copy(st, st)
		return err
	})(s)

	near, far := net.Pipe()
	c := rpc.NewClient(s, far, false)
	if !anonymous {
		c.Session.Authenticated, c.Session.Opened, c.Session.URI = true, true, rpc.SystemURI
	}
	served := make(chan struct{})
	go func() {
		c.Serve()
		close(served)
	}()
	output := new(bytes.Buffer)
	drained := make(chan struct{})
	go func() {
		_, _ = io.Copy(output, near)
		close(drained)
	}()
	_, _ = near.Write(input)
	synctest.Wait()
	_ = near.Close()
	<-served
	<-drained
	return output, c.Session
}
