package libvirt

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/host/volume"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// streamer serves a call that opens a stream with body.
func streamer[A any, PA rpc.Message[A]](number int32, body rpc.StreamBody) func(*rpc.Server) {
	return func(s *rpc.Server) {
		delete(s.Table, rpc.ProcedureKey{Program: xdr.ProgramRemote, Number: number})
		rpc.OnStream(rpc.Group{Table: s.Table, Program: xdr.ProgramRemote}, number, func(context.Context, *rpc.Handlers, *rpc.Request, PA) (*rpc.Void, rpc.StreamBody, error) {
			return nil, body, nil
		})
	}
}

func upload(body rpc.StreamBody) func(*rpc.Server) {
	return streamer[xdr.StorageVolUploadArgs](xdr.ProcStorageVolUpload, body)
}

func download(body rpc.StreamBody) func(*rpc.Server) {
	return streamer[xdr.StorageVolDownloadArgs](xdr.ProcStorageVolDownload, body)
}

func serveConsole(body rpc.StreamBody) func(*rpc.Server) {
	return streamer[xdr.DomainOpenConsoleArgs](xdr.ProcDomainOpenConsole, body)
}

// openStream makes the call and receives its reply.
func (w *rawClient) openStream(proc int32, args xdr.Message) xdr.Header {
	w.t.Helper()
	h := w.send(proc, args)
	w.result(h, nil)
	h.Type = xdr.TypeStream
	return h
}

func (w *rawClient) data(h xdr.Header, status xdr.Status, payload []byte) {
	w.t.Helper()
	h.Status = status
	b, err := xdr.AppendRaw(nil, h, payload)
	if err != nil {
		w.t.Fatal(err)
	}
	w.write(b)
}

// expect receives one stream packet.
func (w *rawClient) expect(h xdr.Header, status xdr.Status) []byte {
	w.t.Helper()
	p := w.next()
	if p.Type != xdr.TypeStream || p.Serial != h.Serial || p.Proc != h.Proc || p.Status != status {
		w.t.Fatalf("got %+v with %d bytes, want a stream packet of serial %d with status %d", p.Header, len(p.payload), h.Serial, status)
	}
	return p.payload
}

func TestStream_Upload(t *testing.T) {
	got := make(chan []byte, 1)
	h := serve(t, upload(func(_ context.Context, st *rpc.Stream) error {
		b, err := io.ReadAll(st)
		got <- b
		return err
	}))
	w := h.open("")
	st := w.openStream(xdr.ProcStorageVolUpload, new(xdr.StorageVolUploadArgs))
	want := bytes.Repeat([]byte("0123456789"), 1<<20)
	for rest := want; len(rest) > 0; {
		n := min(len(rest), 3<<20)
		w.data(st, xdr.StatusContinue, rest[:n])
		rest = rest[n:]
	}
	w.data(st, xdr.StatusOK, nil)
	w.expect(st, xdr.StatusOK)
	if !bytes.Equal(<-got, want) {
		t.Fatal("the received data differs from the sent data")
	}
	w.works()
}

func TestUpload_ErrorAtEnd(t *testing.T) {
	h := serve(t, upload(func(_ context.Context, st *rpc.Stream) error {
		_, err := io.Copy(io.Discard, st)
		return errors.Join(err, fault.New(fault.Failed, fault.Volume, "cannot flush"))
	}))
	w := h.open("")
	st := w.openStream(xdr.ProcStorageVolUpload, new(xdr.StorageVolUploadArgs))
	w.data(st, xdr.StatusContinue, []byte("x"))
	w.data(st, xdr.StatusOK, nil)
	e := new(xdr.NetError)
	if err := e.Decode(xdr.NewReader(w.expect(st, xdr.StatusError))); err != nil || rpc.Code(e.Code) != rpc.CodeOperationFailed {
		t.Fatalf("error %+v, %v", e, err)
	}
	w.data(st, xdr.StatusContinue, []byte("late")) // dropped
	w.works()
}

// TestUpload_StreamTakesNothing: while a stream's body reads nothing, the server does not read
// from the client, but sends it pongs. In the end only the stream is closed.
func TestUpload_StreamTakesNothing(t *testing.T) {
	h := serve(t, func(s *rpc.Server) { s.Limits.StreamStall = 1500 * time.Millisecond }, upload(func(ctx context.Context, _ *rpc.Stream) error {
		<-ctx.Done()
		return context.Cause(ctx)
	}))
	w := h.open("")
	st := w.openStream(xdr.ProcStorageVolUpload, new(xdr.StorageVolUploadArgs))
	w.sendPacket(xdr.Header{Program: xdr.ProgramKeepalive, Version: 1, Proc: xdr.ProcKeepalivePing, Type: xdr.TypeMessage}, nil)
	for range rpc.StreamQueue + 1 {
		w.data(st, xdr.StatusContinue, make([]byte, 1<<20))
	}
	for pongs := 0; ; {
		p := w.next()
		if p.Program == xdr.ProgramKeepalive {
			pongs++
			continue
		}
		if p.Status != xdr.StatusError || p.Serial != st.Serial || pongs < 2 {
			t.Fatalf("after %d pongs got %+v, want the stream's error after two", pongs, p.Header)
		}
		break
	}
	w.works()
}

// TestUpload_IdleClient: the upload of a client that sends nothing more is aborted, which frees the
// volume.
// Promise: A15
func TestUpload_IdleClient(t *testing.T) {
	h := serve(t, withPools(t), func(s *rpc.Server) { s.Limits.UploadIdle = 200 * time.Millisecond })
	pools, dir := h.server.Handlers.Pools, t.TempDir()
	p, err := pools.Define(t.Context(), scope.Daemon("a test"), "<pool type='dir'><name>a</name><target><path>"+dir+"</path></target></pool>", false)
	if err == nil {
		err = p.Start(t.Context(), scope.Daemon("a test"), volume.NoBuild)
	}
	if err == nil {
		_, err = p.CreateVolume(t.Context(), scope.Daemon("a test"), "<volume><name>disk</name><capacity>1048576</capacity></volume>", volume.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	w := h.open("")
	st := w.openStream(xdr.ProcStorageVolUpload, &xdr.StorageVolUploadArgs{Volume: xdr.StorageVol{Pool: "a", Name: "disk"}})
	w.data(st, xdr.StatusContinue, []byte("some"))
	e := new(xdr.NetError)
	if err := e.Decode(xdr.NewReader(w.expect(st, xdr.StatusError))); err != nil || rpc.Code(e.Code) != rpc.CodeTimeout {
		t.Fatalf("error %+v, %v", e, err)
	}
	w.works()
	if err := p.DeleteVolume(t.Context(), scope.Daemon("a test"), "disk"); err != nil {
		t.Error(err)
	}
}

func TestStream_Download(t *testing.T) {
	want := bytes.Repeat([]byte("abc"), 1<<20)
	h := serve(t, download(func(_ context.Context, st *rpc.Stream) error {
		_, err := io.Copy(st, bytes.NewReader(want))
		return err
	}))
	w := h.open("")
	st := w.openStream(xdr.ProcStorageVolDownload, new(xdr.StorageVolDownloadArgs))
	var got []byte
	for {
		p := w.expect(st, xdr.StatusContinue)
		if len(p) == 0 {
			break
		}
		got = append(got, p...)
	}
	if !bytes.Equal(got, want) {
		t.Fatal("the received data differs from the sent data")
	}
	w.data(st, xdr.StatusOK, nil)
	w.expect(st, xdr.StatusOK)
	w.works()
}

func TestStream_ClientAborts(t *testing.T) {
	ended := make(chan struct{}, 1)
	h := serve(t, download(func(_ context.Context, st *rpc.Stream) error {
		for {
			if _, err := st.Write(make([]byte, 1000)); err != nil {
				ended <- struct{}{}
				return err
			}
		}
	}))
	for _, status := range []xdr.Status{xdr.StatusError, xdr.StatusOK} {
		w := h.open("")
		st := w.openStream(xdr.ProcStorageVolDownload, new(xdr.StorageVolDownloadArgs))
		w.expect(st, xdr.StatusContinue)
		w.data(st, status, nil)
		for p := w.next(); p.Status != xdr.StatusOK; p = w.next() {
			if p.Status != xdr.StatusContinue {
				t.Fatalf("got %+v", p.Header)
			}
		}
		<-ended
		w.works()
	}
	disconnected := h.open("")
	disconnected.openStream(xdr.ProcStorageVolDownload, new(xdr.StorageVolDownloadArgs))
	_ = disconnected.conn.Close()
	<-ended
}

func TestStream_Console(t *testing.T) {
	h := serve(t, serveConsole(func(_ context.Context, st *rpc.Stream) error {
		_, err := io.Copy(st, st) // an echo
		return err
	}))
	w := h.open("")
	st := w.openStream(xdr.ProcDomainOpenConsole, new(xdr.DomainOpenConsoleArgs))
	for _, text := range []string{"login", "root"} {
		w.data(st, xdr.StatusContinue, []byte(text))
		if got := w.expect(st, xdr.StatusContinue); string(got) != text {
			t.Fatalf("echo %q of %q", got, text)
		}
	}
	hole := st
	hole.Type = xdr.TypeStreamHole
	w.data(st, xdr.StatusOK, nil)
	w.expect(st, xdr.StatusOK)
	st = w.openStream(xdr.ProcDomainOpenConsole, new(xdr.DomainOpenConsoleArgs))
	hole.Serial = st.Serial
	w.sendPacket(hole, &xdr.StreamHole{Length: 1})
	w.expect(st, xdr.StatusError)
	w.works()
}

func TestStream_Bound(t *testing.T) {
	h := serve(t, func(s *rpc.Server) { s.Limits.Streams = 3 }, upload(func(_ context.Context, st *rpc.Stream) error {
		_, err := io.Copy(io.Discard, st)
		return err
	}), download(func(context.Context, *rpc.Stream) error { return nil }))
	w := h.open("")
	for range 2 * rpc.MaxEndedStreams { // ended and never finished: they do not count
		st := w.openStream(xdr.ProcStorageVolDownload, new(xdr.StorageVolDownloadArgs))
		w.expect(st, xdr.StatusContinue)
	}
	var open []xdr.Header
	for range 3 {
		open = append(open, w.openStream(xdr.ProcStorageVolUpload, new(xdr.StorageVolUploadArgs)))
	}
	w.refused(xdr.ProcStorageVolUpload, new(xdr.StorageVolUploadArgs), rpc.CodeOperationFailed)
	w.data(open[0], xdr.StatusOK, nil)
	w.expect(open[0], xdr.StatusOK)
	w.openStream(xdr.ProcStorageVolUpload, new(xdr.StorageVolUploadArgs))
}

// TestDescriptors_BothWays sends files both ways.
func TestDescriptors_BothWays(t *testing.T) {
	h := serve(t, func(s *rpc.Server) {
		remote := rpc.Group{Table: s.Table, Program: xdr.ProgramRemote}
		delete(s.Table, rpc.ProcedureKey{Program: xdr.ProgramRemote, Number: xdr.ProcDomainCreateWithFiles})
		delete(s.Table, rpc.ProcedureKey{Program: xdr.ProgramRemote, Number: xdr.ProcDomainOpenGraphicsFD})
		rpc.OnFilesIn(remote, xdr.ProcDomainCreateWithFiles, func(
			_ context.Context, _ *rpc.Handlers, _ *rpc.Request, args *xdr.DomainCreateWithFilesArgs, files []*os.File,
		) (*xdr.DomainCreateWithFilesRet, error) {
			for _, f := range files {
				b, err := io.ReadAll(f)
				if err != nil {
					return nil, err
				}
				args.Domain.Name += string(b)
			}
			return &xdr.DomainCreateWithFilesRet{Domain: args.Domain}, nil
		})
		rpc.OnFilesOut(remote, xdr.ProcDomainOpenGraphicsFD, func(
			context.Context, *rpc.Handlers, *rpc.Request, *xdr.DomainOpenGraphicsFDArgs,
		) (*rpc.Void, []*os.File, error) {
			r, out, err := os.Pipe()
			if err != nil {
				return nil, nil, err
			}
			_, err = out.WriteString("picture")
			return nil, []*os.File{r}, errors.Join(err, out.Close())
		})
	})
	w := h.open("")
	for range 3 { // the packet after one with files must be found
		w.sendFiles(t, "one", "two")
		w.works()
		w.receiveFile(t)
		w.works()
	}
}

func (w *rawClient) sendFiles(t *testing.T, contents ...string) {
	t.Helper()
	h := w.header(xdr.ProcDomainCreateWithFiles)
	h.Type = xdr.TypeCallWithFDs
	b, err := xdr.AppendPacket(nil, h, &xdr.DomainCreateWithFilesArgs{Domain: xdr.Domain{Name: "web:"}}, len(contents))
	if err != nil {
		t.Fatal(err)
	}
	w.write(b)
	want := "web:"
	for _, c := range contents {
		r, out, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := out.WriteString(c); err != nil {
			t.Fatal(err)
		}
		if err := rpc.SendFile(w.conn, r); err != nil {
			t.Fatal(err)
		}
		_, _ = r.Close(), out.Close()
		want += c
	}
	ret := new(xdr.DomainCreateWithFilesRet)
	w.result(h, ret)
	if ret.Domain.Name != want {
		t.Fatalf("got %q, want %q", ret.Domain.Name, want)
	}
}

func (w *rawClient) receiveFile(t *testing.T) {
	t.Helper()
	w.send(xdr.ProcDomainOpenGraphicsFD, new(xdr.DomainOpenGraphicsFDArgs))
	p := w.next()
	if p.Type != xdr.TypeReplyWithFDs || !bytes.Equal(p.payload, []byte{0, 0, 0, 1}) {
		t.Fatalf("got %+v %x", p.Header, p.payload)
	}
	f, err := rpc.ReceiveFile(w.conn)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(f)
	if err != nil || string(b) != "picture" {
		t.Fatalf("got %q, %v", b, err)
	}
	_ = f.Close()
}

// TestDescriptors_NoLeaks: descriptors that come with calls that take none, or with a packet that
// does not announce them, are closed.
func TestDescriptors_NoLeaks(t *testing.T) {
	h := serve(t)
	w := h.open("")
	r, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	for _, proc := range []int32{xdr.ProcConnectGetType, xdr.ProcInterfaceChangeBegin} {
		header := call(proc)
		header.Type = xdr.TypeCallWithFDs
		w.write(raw(32, header, []byte{0, 0, 0, 1}))
		if err := rpc.SendFile(w.conn, out); err != nil {
			t.Fatal(err)
		}
		w.next()
	}
	packet := raw(28, call(xdr.ProcConnectGetType), nil) // with a descriptor that it does not announce
	if _, _, err := w.conn.WriteMsgUnix(packet, rights(t, out), nil); err != nil {
		t.Fatal(err)
	}
	w.next()
	_ = out.Close()
	if err := r.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(make([]byte, 1)); !errors.Is(err, io.EOF) { // ends when no process holds the other side
		t.Fatalf("the other side is still held: %v", err)
	}
}

func rights(t *testing.T, f *os.File) []byte {
	t.Helper()
	raw, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var b []byte
	if err := raw.Control(func(fd uintptr) { b = unix.UnixRights(int(fd)) }); err != nil {
		t.Fatal(err)
	}
	return b
}

// TestStream_RightRevokedAtOpen: the rules may have changed after the call was authorized, and before
// endDenied could find the stream.
// Promise: A4
func TestStream_RightRevokedAtOpen(t *testing.T) {
	c := &rpc.Client{Ctx: t.Context(), Server: &rpc.Server{Memory: rpc.NewMemory(rpc.MaxClientMemory)}, Streams: rpc.NewStreams(1)}
	st, err := c.Streams.Open(c, &xdr.Procedure{Stream: xdr.StreamBoth}, xdr.Header{})
	if err != nil {
		t.Fatal(err)
	}
	c.Streams.SetRecheck(st, nil, func() error { return nil })
	if err := context.Cause(st.Ctx); err != nil {
		t.Errorf("an allowed stream has ended: %v", err)
	}
	forbidden := errors.New("forbidden")
	c.Streams.SetRecheck(st, nil, func() error { return forbidden })
	if err := context.Cause(st.Ctx); !errors.Is(err, forbidden) {
		t.Errorf("a forbidden stream has ended with %v", err)
	}
}
