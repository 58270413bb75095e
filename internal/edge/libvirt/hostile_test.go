package libvirt

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

// raw makes a packet with any length word.
func raw(length uint32, h xdr.Header, payload []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, length)
	return append(h.Append(b), payload...)
}

func call(proc int32) xdr.Header {
	return xdr.Header{Program: xdr.ProgramRemote, Version: xdr.Version, Proc: proc, Serial: 77}
}

// TestFraming_BrokenPackets: each broken packet ends its own connection, and no other.
// Promise: X1, X4
func TestFraming_BrokenPackets(t *testing.T) {
	h := serve(t)
	bystander := h.open("")
	reply := call(xdr.ProcConnectGetType)
	reply.Type = xdr.TypeReply
	strange := call(xdr.ProcConnectGetType)
	strange.Type = 99
	for name, b := range map[string][]byte{
		"over-long":              raw(xdr.MaxPacket+1, call(xdr.ProcConnectGetType), nil),
		"longest number":         raw(0xffffffff, call(xdr.ProcConnectGetType), nil),
		"no length":              raw(0, call(xdr.ProcConnectGetType), nil),
		"shorter than a header":  raw(27, call(xdr.ProcConnectGetType), nil),
		"reply from a client":    raw(28, reply, nil),
		"unknown type":           raw(28, strange, nil),
		"too many descriptors":   raw(32, withType(call(xdr.ProcDomainCreateWithFiles), xdr.TypeCallWithFDs), []byte{0, 0, 0, 33}),
		"no descriptor count":    raw(28, withType(call(xdr.ProcDomainCreateWithFiles), xdr.TypeCallWithFDs), nil),
		"byte without its files": raw(32, withType(call(xdr.ProcDomainCreateWithFiles), xdr.TypeCallWithFDs), []byte{0, 0, 0, 1, 0}),
	} {
		t.Run(name, func(t *testing.T) {
			w := h.open("")
			w.write(b)
			w.closed()
			bystander.works()
		})
	}
	for name, limit := range map[string]uint32{"": rpc.FrameLimitAnonymous, "-ro": rpc.FrameLimitAnonymous} {
		w := h.dial(name)
		w.write(raw(limit+8, call(xdr.ProcAuthList), nil))
		w.closed()
	}
	w := h.open("-ro")
	w.write(raw(rpc.FrameLimitReadOnly+8, call(xdr.ProcConnectGetType), nil))
	w.closed()
	bystander.works()
}

// TestDescriptors_NotAnnounced: descriptors that a packet does not announce are closed, so that a client cannot use up
// those of the daemon.
// Promise: X1
func TestDescriptors_NotAnnounced(t *testing.T) {
	h := serve(t)
	for _, count := range []int{2, xdr.MaxFDs + 1} {
		w := h.open("")
		end, sent, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = end.Close() }()
		w.write(raw(32, withType(call(xdr.ProcDomainCreateWithFiles), xdr.TypeCallWithFDs), []byte{0, 0, 0, 1}))
		_, _, err = w.conn.WriteMsgUnix([]byte{0}, unix.UnixRights(slices.Repeat([]int{int(sent.Fd())}, count)...), nil)
		if err = errors.Join(err, sent.Close()); err != nil {
			t.Fatal(err)
		}
		w.closed()
		err = end.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, got := end.Read(make([]byte, 1)); err != nil || !errors.Is(got, io.EOF) {
			t.Errorf("of %d descriptors some are still open: %v, %v", count, got, err)
		}
	}
	h.open("").works()
}

// TestIntake_BoundsBytes: a single call is always accepted, further ones only within the bounds.
// Promise: X4
func TestIntake_BoundsBytes(t *testing.T) {
	in := rpc.NewIntake(3, 100)
	for _, c := range []struct {
		size int
		want bool
	}{{200, true}, {0, false}, {-200, true}, {60, true}, {60, false}, {40, true}, {1, false}, {-40, true}, {40, true}} {
		if c.size < 0 {
			in.Release(-c.size)
		} else if got := in.Acquire(c.size); got != c.want {
			t.Fatalf("%d bytes beside %d of %d calls: %v", c.size, in.Bytes, in.Calls, got)
		}
	}
	in = rpc.NewIntake(1, 100)
	if !in.Acquire(1) || in.Acquire(1) {
		t.Error("a second call is accepted over the bound of one")
	}
}

func withType(h xdr.Header, t xdr.Type) xdr.Header {
	h.Type = t
	return h
}

// A client that stops in the middle of a packet does not delay other clients.
// Promise: X1
func TestFraming_HalfPackets(t *testing.T) {
	h := serve(t)
	whole := raw(28, call(xdr.ProcConnectGetType), nil)
	for n := range whole {
		w := h.open("")
		w.write(whole[:n])
		if err := w.conn.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		w.closed()
	}
	stuck := h.open("")
	stuck.write(raw(xdr.MaxPacket, call(xdr.ProcConnectGetType), make([]byte, 100<<10)))
	h.open("").works()
}

// A well-formed but invalid call is answered with an error, and the connection stays open.
func TestCalls_Refused(t *testing.T) {
	h := serve(t)
	w := h.open("")
	for _, c := range []struct {
		name   string
		header xdr.Header
		want   rpc.Code
		text   string
	}{
		{"unknown procedure", call(9999), rpc.CodeRPC, "unknown procedure: 9999"},
		{"negative procedure", call(-1), rpc.CodeRPC, "unknown procedure: -1"},
		{"event as call", call(xdr.ProcDomainEventCallbackLifecycle), rpc.CodeRPC, "unknown procedure: 318"},
		{"unknown program", xdr.Header{Program: 0x1234, Version: 1, Serial: 77}, rpc.CodeRPC, "cannot find program 4660 version 1"},
		{"program for containers", xdr.Header{Program: xdr.ProgramLXC, Version: 1, Serial: 77}, rpc.CodeNoSupport, "this function is not supported by the connection driver: virsh lxc-enter-namespace is for containers, and Lodge runs virtual machines; use virsh console"},
		{"other version", xdr.Header{Program: xdr.ProgramRemote, Version: 2, Proc: 3, Serial: 77}, rpc.CodeRPC, "cannot find program 536903814 version 2"},
		{"program of another daemon", xdr.Header{Program: xdr.ProgramAdmin, Version: 1, Serial: 77}, rpc.CodeRPC, "cannot find program 110102160 version 1"},
		{"call with a status", xdr.Header{Program: xdr.ProgramRemote, Version: 1, Proc: 3, Serial: 77, Status: 1}, rpc.CodeRPC, "a call with status 1 makes no sense"},
		{
			"no handler", call(xdr.ProcInterfaceChangeBegin), rpc.CodeNoSupport,
			"this function is not supported by the connection driver: virsh iface-begin is not built; use the host's own network configuration",
		},
		{"arguments missing", call(xdr.ProcConnectSupportsFeature), rpc.CodeRPC, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.write(raw(28, c.header, nil))
			e := w.fails(c.header)
			if rpc.Code(e.Code) != c.want || c.text != "" && *e.Message != c.text {
				t.Fatalf("error %d %q, want %d %q", e.Code, *e.Message, c.want, c.text)
			}
			if c.want == rpc.CodeRPC && rpc.Origin(e.Domain) != rpc.FromRPC {
				t.Errorf("error from %d, want RPC", e.Domain)
			}
			w.works()
		})
	}
	// Stream packets without a stream are dropped.
	late := call(xdr.ProcStorageVolUpload)
	late.Type, late.Status = xdr.TypeStream, xdr.StatusContinue
	w.write(raw(32, late, []byte("late")))
	w.works()
	w.must(xdr.ProcConnectSupportsFeature, &xdr.ConnectSupportsFeatureArgs{Feature: rpc.FeatureTypedStrings}, nil)
	w.refused(xdr.ProcConnectOpen, &xdr.ConnectOpenArgs{Flags: 1 << 20}, rpc.CodeInvalidArg)
}

func TestAuth_CallsBefore(t *testing.T) {
	h := serve(t)
	w := h.dial("")
	for _, proc := range []int32{xdr.ProcConnectGetType, xdr.ProcConnectClose, xdr.ProcDomainDestroy} {
		header := w.send(proc, nil)
		if e := w.fails(header); rpc.Code(e.Code) != rpc.CodeRPC || *e.Message != "authentication required" {
			t.Fatalf("call %d: %d %q", proc, e.Code, *e.Message)
		}
	}
	w.must(xdr.ProcAuthList, nil, nil)
	w.refused(xdr.ProcConnectGetType, nil, rpc.CodeInternal) // not open
	w.must(xdr.ProcConnectOpen, &xdr.ConnectOpenArgs{}, nil)
	w.works()
}

// Promise: X1
func TestAuth_Timeout(t *testing.T) {
	h := serve(t, func(s *rpc.Server) { s.Limits.Handshake = 50 * time.Millisecond })
	silent, busy, done := h.dial(""), h.dial(""), h.open("")
	busy.write(raw(28, call(xdr.ProcConnectGetType), nil))
	silent.closed()
	busy.closed()
	done.works()
}

func TestReadOnly_RefusesChanges(t *testing.T) {
	h := serve(t)
	asked := h.dial("")
	asked.must(xdr.ProcAuthList, nil, nil)
	asked.must(xdr.ProcConnectOpen, &xdr.ConnectOpenArgs{Flags: rpc.OpenReadOnly}, nil)
	// Two calls are refused only because they ask for the guest's agent.
	writing := map[int32]xdr.Message{
		xdr.ProcDomainGetVCPUsFlags:      &xdr.DomainGetVCPUsFlagsArgs{Flags: 8},
		xdr.ProcDomainInterfaceAddresses: &xdr.DomainInterfaceAddressesArgs{Source: 1},
	}
	for _, w := range []*rawClient{h.open("-ro"), asked} {
		refused := 0
		for p := range xdr.Procedures(xdr.ProgramRemote) {
			if p.RefusedReadOnly {
				refused++
				if e := w.fails(w.send(p.Number, writing[p.Number])); rpc.Code(e.Code) != rpc.CodeOperationDenied {
					t.Errorf("%s: error %d %q", p.Name, e.Code, *e.Message)
				}
			}
		}
		w.refused(xdr.ProcDomainInterfaceAddresses, &xdr.DomainInterfaceAddressesArgs{Source: 3}, rpc.CodeArgUnsupported)
		if refused != 203 {
			t.Errorf("%d calls are refused, want 203", refused)
		}
		w.works()
	}
}

// TestClient_NeverReads: a client that reads no replies is disconnected, after a bounded
// number of calls. Other clients are served.
// Promise: W4
func TestClient_NeverReads(t *testing.T) {
	h := serve(t, func(s *rpc.Server) { s.Limits.PacketTimeout = 300 * time.Millisecond })
	bystander, deaf := h.open(""), h.open("")
	request := raw(28, call(xdr.ProcConnectGetHostname), nil)
	var err error
	for sent := 0; err == nil; sent++ { // until the server reads no more, then closes
		if sent > 1<<20 {
			t.Fatal("the server does not stop to read from a client that does not read")
		}
		_, err = deaf.conn.Write(request)
	}
	deaf.closed()
	bystander.works()
}

// TestKeepalive_PingFlood: pings are answered while calls are stuck and no more are read.
func TestKeepalive_PingFlood(t *testing.T) {
	stuck := make(chan struct{})
	h := serve(t, func(s *rpc.Server) {
		s.Limits.Calls, s.Limits.RunningCalls = 4, 2
		hold(s, xdr.ProcConnectGetCapabilities, stuck)
	})
	defer close(stuck)
	w := h.open("")
	ping := raw(28, xdr.Header{Program: xdr.ProgramKeepalive, Version: 1, Proc: xdr.ProcKeepalivePing, Type: xdr.TypeMessage}, nil)
	pong := func() {
		t.Helper()
		if p := w.next(); p.Program != xdr.ProgramKeepalive || p.Proc != xdr.ProcKeepalivePong || p.Type != xdr.TypeMessage {
			t.Fatalf("got %+v, want a pong", p.Header)
		}
	}
	for range 1000 {
		w.write(ping)
	}
	pong()
	marker := w.send(xdr.ProcConnectGetType, nil)
	for w.next().Serial != marker.Serial { // further pongs
	}
	for range 4 { // two run, two wait, and more are not read
		w.send(xdr.ProcConnectGetCapabilities, nil)
	}
	w.write(ping)
	w.send(xdr.ProcConnectGetCapabilities, nil)
	for range 3 { // the flood's pongs, that of the last ping, and some unrequested ones
		pong()
	}
	h.open("").works()
}

// hold makes an ordinary call wait until a channel is closed, or the daemon stops.
func hold(s *rpc.Server, number int32, until <-chan struct{}) {
	delete(s.Table, rpc.ProcedureKey{Program: xdr.ProgramRemote, Number: number})
	rpc.On(rpc.Group{Table: s.Table, Program: xdr.ProgramRemote}, number, func(ctx context.Context, _ *rpc.Handlers, _ *rpc.Request, _ *rpc.Void) (*xdr.ConnectGetCapabilitiesRet, error) {
		select {
		case <-until:
			return &xdr.ConnectGetCapabilitiesRet{Capabilities: "<capabilities/>"}, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	})
}

// TestCalls_PriorityOvertakes: calls that the table marks as priority do not wait for stuck calls.
func TestCalls_PriorityOvertakes(t *testing.T) {
	stuck := make(chan struct{})
	h := serve(t, func(s *rpc.Server) {
		s.Limits.RunningCalls = 2
		hold(s, xdr.ProcConnectGetCapabilities, stuck)
	})
	w := h.open("")
	var slow []xdr.Header
	for range 10 {
		slow = append(slow, w.send(xdr.ProcConnectGetCapabilities, nil))
	}
	w.works()
	close(stuck)
	for range slow {
		if p := w.next(); p.Proc != xdr.ProcConnectGetCapabilities || p.Status != xdr.StatusOK {
			t.Fatalf("got %+v", p.Header)
		}
	}
}

// The daemon's shutdown waits for the calls that have begun.
func TestServe_ShutdownFinishesCalls(t *testing.T) {
	release := make(chan struct{})
	h := serve(t, func(s *rpc.Server) {
		s.Limits.ShutdownGrace = 10 * patience
		hold(s, xdr.ProcConnectGetCapabilities, release)
	})
	w := h.open("")
	header := w.send(xdr.ProcConnectGetCapabilities, nil)
	w.works() // so the call before it was read
	var served *rpc.Client
	h.server.EachClient(func(c *rpc.Client) { served = c })
	h.stop()
	<-served.ReadCtx.Done()
	close(release)
	w.result(header, new(xdr.ConnectGetCapabilitiesRet))
	w.closed()
}

// TestConnect_ThousandClients opens a thousand connections at a time; each is answered.
func TestConnect_ThousandClients(t *testing.T) {
	h := serve(t)
	var crowd []*rawClient
	for range 1000 {
		crowd = append(crowd, h.open(""))
	}
	for _, w := range crowd {
		w.works()
	}
}

// TestConnect_FullSocket: at the bound, the next client waits until one disconnects. The other socket is not affected.
func TestConnect_FullSocket(t *testing.T) {
	h := serve(t, func(s *rpc.Server) { s.Limits.Clients = 2 })
	first, _ := h.open(""), h.open("")
	third := h.dial("")
	header := third.send(xdr.ProcAuthList, nil)
	h.open("-ro").works()
	_ = first.conn.Close()
	third.result(header, nil)
}
