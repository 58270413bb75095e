package libvirt

import (
	"context"
	"io"
	"log/slog"
	"net"
	"testing"

	"github.com/lodge-kvm/lodge/event"
	"github.com/lodge-kvm/lodge/xdr"
)

// FuzzConnection feeds a session that is open, with the calls of the connection
// and an echoing stream, whatever a client may send. The connection may end;
// it must do so by itself, and leave nothing behind.
func FuzzConnection(f *testing.F) {
	add := func(headers ...xdr.Header) {
		var b []byte
		for _, h := range headers {
			b = append(b, raw(32, h, []byte{0, 0, 0, 1})...)
		}
		f.Add(b)
	}
	add(call(xdr.ProcConnectGetType), call(xdr.ProcConnectSupportsFeature), call(xdr.ProcConnectOpen))
	add(withType(call(xdr.ProcConnectGetURI), xdr.TypeCallWithFDs))
	add(xdr.Header{Program: xdr.ProgramKeepalive, Version: 1, Proc: 1, Type: xdr.TypeMessage}, call(9999))
	base := withType(call(xdr.ProcDomainOpenConsole), xdr.TypeStream)
	data, end := base, base
	data.Status, end.Status = xdr.StatusContinue, xdr.StatusOK
	open := append(make([]byte, 0, 64), raw(60, call(xdr.ProcDomainOpenConsole), make([]byte, 32))...)
	open = append(open, raw(32, data, []byte("echo"))...)
	f.Add(append(open, raw(28, end, nil)...))
	f.Add(raw(0xffffffff, call(1), nil))

	s := New(Config{Rooms: Rooms{Events: event.NewLog()}, Log: slog.New(slog.DiscardHandler)})
	s.table = table{}
	g := group{s.table, xdr.ProgramRemote}
	authCalls(g)
	connectCalls(g)
	eventCalls(g)
	console(func(_ context.Context, st *stream) error {
		_, err := io.Copy(st, st)
		return err
	})(s)

	f.Fuzz(func(t *testing.T, input []byte) {
		near, far := net.Pipe()
		c := newClient(s, far, false)
		c.session.admitted, c.session.opened, c.session.uri = true, true, systemURI
		served := make(chan struct{})
		go func() {
			c.serve()
			close(served)
		}()
		drained := make(chan struct{})
		go func() {
			_, _ = io.Copy(io.Discard, near)
			close(drained)
		}()
		_, _ = near.Write(input)
		_ = near.Close()
		<-served
		<-drained
	})
}
