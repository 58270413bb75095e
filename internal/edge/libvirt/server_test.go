package libvirt

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/mechanism/listener"
	"github.com/lodge-kvm/lodge/internal/word/event"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for an expected change.
const patience = 20 * time.Second

// testServer is a running server with its sockets.
type testServer struct {
	t      *testing.T
	server *rpc.Server
	events *event.Log
	stop   func() // ends Serve, as the daemon's end does
	socket string // read-write; the read-only one has "-ro" behind it
}

// serve runs a server until the test ends. change may set its limits and handlers
// before it accepts clients.
func serve(t *testing.T, change ...func(*rpc.Server)) *testServer {
	t.Helper()
	h := &testServer{t: t, events: event.NewLog(), socket: filepath.Join(t.TempDir(), "libvirt-sock")}
	h.server = New(rpc.Config{Backends: rpc.Backends{Events: h.events}, Log: slog.New(slog.DiscardHandler)})
	h.server.Limits.ShutdownGrace = patience / 4
	for _, c := range change {
		c(h.server)
	}
	var listeners []rpc.Listener
	for _, s := range []listener.Place{{Path: h.socket}, {Path: h.socket + "-ro", Everybody: true}} {
		l, err := listener.Listen(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		listeners = append(listeners, rpc.Listener{Listener: l, ReadOnly: s.Everybody})
	}
	ctx, stop := context.WithCancelCause(context.Background())
	h.stop = func() { stop(nil) }
	ended := make(chan error, 1)
	go func() { ended <- h.server.Serve(ctx, listeners...) }()
	t.Cleanup(func() {
		h.stop()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("Serve: %v", err)
			}
		case <-time.After(patience):
			t.Error("Serve does not end")
		}
	})
	return h
}

// rawClient is a client that can send anything.
type rawClient struct {
	t      testing.TB
	conn   *net.UnixConn
	serial uint32
}

// packet is a packet that a client receives.
type packet struct {
	xdr.Header
	payload []byte
}

func (h *testServer) dial(suffix string) *rawClient {
	h.t.Helper()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: h.socket + suffix})
	if err != nil {
		h.t.Fatal(err)
	}
	w := &rawClient{t: h.t, conn: conn}
	h.t.Cleanup(func() { _ = conn.Close() })
	w.deadline()
	return w
}

func (w *rawClient) deadline() {
	if err := w.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		w.t.Fatal(err)
	}
}

// open dials, authenticates and opens the connection.
func (h *testServer) open(suffix string) *rawClient {
	h.t.Helper()
	w := h.dial(suffix)
	w.must(xdr.ProcAuthList, nil, new(xdr.AuthListRet))
	w.must(xdr.ProcConnectOpen, &xdr.ConnectOpenArgs{}, nil)
	return w
}

// Clients leave unknown query parameters in the connection's URI.
func TestConnectOpen_URIParameters(t *testing.T) {
	for name, want := range map[string]bool{"": true, rpc.SystemURI: true, rpc.SystemURI + "?socket=/x&readonly=1": true, "qemu:///session": false, "xen:///": false, rpc.SystemURI + "/": false} {
		w := serve(t).dial("")
		w.must(xdr.ProcAuthList, nil, nil)
		if args := (&xdr.ConnectOpenArgs{Name: &name}); want {
			w.must(xdr.ProcConnectOpen, args, nil)
		} else {
			w.refused(xdr.ProcConnectOpen, args, rpc.CodeNoConnect)
		}
	}
}

func (w *rawClient) write(b []byte) {
	w.t.Helper()
	if _, err := w.conn.Write(b); err != nil {
		w.t.Fatal(err)
	}
}

func (w *rawClient) header(proc int32) xdr.Header {
	w.serial++
	return xdr.Header{Program: xdr.ProgramRemote, Version: xdr.Version, Proc: proc, Serial: w.serial}
}

// send sends a call and returns its header.
func (w *rawClient) send(proc int32, args xdr.Message) xdr.Header {
	w.t.Helper()
	h := w.header(proc)
	w.sendPacket(h, args)
	return h
}

func (w *rawClient) sendPacket(h xdr.Header, args xdr.Message) {
	w.t.Helper()
	b, err := xdr.AppendPacket(nil, h, args, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	w.write(b)
}

func (w *rawClient) read() (packet, error) {
	var word [4]byte
	if _, err := io.ReadFull(w.conn, word[:]); err != nil {
		return packet{}, err
	}
	b := make([]byte, binary.BigEndian.Uint32(word[:])-4)
	if _, err := io.ReadFull(w.conn, b); err != nil {
		return packet{}, err
	}
	h, err := xdr.ParseHeader(b)
	return packet{h, b[xdr.HeaderSize:]}, err
}

// next returns the next packet of any type.
func (w *rawClient) next() packet {
	w.t.Helper()
	p, err := w.read()
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

// fails receives the reply to h, which must be an error.
func (w *rawClient) fails(h xdr.Header) *xdr.NetError {
	w.t.Helper()
	p := w.next()
	e := new(xdr.NetError)
	if p.Serial != h.Serial || p.Proc != h.Proc || p.Status != xdr.StatusError {
		w.t.Fatalf("got %+v, want an error for serial %d", p.Header, h.Serial)
	}
	if err := e.Decode(xdr.NewReader(p.payload)); err != nil {
		w.t.Fatal(err)
	}
	return e
}

// refused makes a call, and checks the code of the error.
func (w *rawClient) refused(proc int32, args xdr.Message, want rpc.Code) {
	w.t.Helper()
	e := w.fails(w.send(proc, args))
	if rpc.Code(e.Code) != want {
		w.t.Fatalf("call %d: error %d %q, want code %d", proc, e.Code, *e.Message, want)
	}
}

// must makes a call, and decodes the result into ret.
func (w *rawClient) must(proc int32, args, ret xdr.Message) {
	w.t.Helper()
	w.result(w.send(proc, args), ret)
}

// result receives the reply to h, and decodes it into ret.
func (w *rawClient) result(h xdr.Header, ret xdr.Message) {
	w.t.Helper()
	p := w.next()
	if p.Status == xdr.StatusError {
		e := new(xdr.NetError)
		_ = e.Decode(xdr.NewReader(p.payload))
		w.t.Fatalf("call %d failed: %d %s", h.Proc, e.Code, *e.Message)
	}
	if p.Serial != h.Serial || p.Proc != h.Proc || p.Type != xdr.TypeReply {
		w.t.Fatalf("got %+v, want the reply to %+v", p.Header, h)
	}
	if ret != nil {
		r := xdr.NewReader(p.payload)
		if err := errors.Join(ret.Decode(r), r.End()); err != nil {
			w.t.Fatal(err)
		}
	}
}

// closed checks that the server has closed the connection.
func (w *rawClient) closed() {
	w.t.Helper()
	for {
		if _, err := w.read(); err != nil {
			var timeout net.Error
			if errors.As(err, &timeout) && timeout.Timeout() {
				w.t.Fatal("the connection is still open")
			}
			return
		}
	}
}

// works checks that a connection answers.
func (w *rawClient) works() {
	w.t.Helper()
	ret := new(xdr.ConnectGetTypeRet)
	w.must(xdr.ProcConnectGetType, nil, ret)
	if ret.Type != "QEMU" {
		w.t.Fatalf("type %q", ret.Type)
	}
}

func TestConnect_Calls(t *testing.T) {
	h := serve(t)
	w := h.open("")
	w.works()
	uri := new(xdr.ConnectGetURIRet)
	w.must(xdr.ProcConnectGetURI, nil, uri)
	if uri.URI != "qemu:///system" {
		t.Errorf("URI %q", uri.URI)
	}
	w.refused(xdr.ProcConnectOpen, &xdr.ConnectOpenArgs{}, rpc.CodeInternal)
	w.must(xdr.ProcConnectClose, nil, nil)
	w.closed()
}
