package remote_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/remote"
	"github.com/lodge-kvm/lodge/internal/remote/remotetest"
)

// pair gives a client and the daemon's end of its connection.
func pair(t *testing.T) (*remote.Conn, net.Conn) {
	t.Helper()
	near, far := net.Pipe()
	if err := far.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	c := remote.New(near)
	t.Cleanup(func() { c.Close(); far.Close() })
	return c, far
}

func send(t *testing.T, far net.Conn, packet []byte) {
	t.Helper()
	if _, err := far.Write(packet); err != nil {
		t.Error(err)
	}
}

func receive(t *testing.T, far net.Conn) (xdr.Header, []byte) {
	t.Helper()
	h, payload, err := remotetest.ReadPacket(far)
	if err != nil {
		t.Error(err)
	}
	return h, payload
}

func lookup(ctx context.Context, c *remote.Conn, name string) (xdr.Domain, error) {
	var ret xdr.DomainLookupByNameRet
	err := c.Call(ctx, xdr.ProcDomainLookupByName, &xdr.DomainLookupByNameArgs{Name: name}, &ret)
	return ret.Domain, err
}

func TestAnswersGoToTheirCalls(t *testing.T) {
	c, far := pair(t)
	const calls = 20
	var group sync.WaitGroup
	for i := range calls {
		group.Go(func() {
			name := fmt.Sprintf("guest-%d", i)
			if d, err := lookup(t.Context(), c, name); err != nil || d.Name != name {
				t.Errorf("asked for %s: got %q, %v", name, d.Name, err)
			}
		})
	}
	type call struct {
		h    xdr.Header
		name string
	}
	var all []call
	for range calls {
		h, payload := receive(t, far)
		var args xdr.DomainLookupByNameArgs
		if err := args.Decode(xdr.NewReader(payload)); err != nil {
			t.Fatal(err)
		}
		all = append(all, call{h, args.Name})
	}
	// The calls are answered in reverse order, after a reply to a call that was not made.
	stray := all[0].h
	stray.Serial = 9999
	all = append(all, call{stray, "nobody's"})
	for _, one := range slices.Backward(all) {
		send(t, far, remotetest.Reply(t, one.h, func(int32, xdr.Message) (xdr.Message, error) {
			return &xdr.DomainLookupByNameRet{Domain: xdr.Domain{Name: one.name, ID: -1}}, nil
		}, nil))
	}
	group.Wait()
}

func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		code        int32
		unsupported bool
	}{{42, false}, {3, true}, {67, true}, {1, false}} {
		client, far := pair(t)
		go func() {
			h, _ := receive(t, far)
			send(t, far, remotetest.Reply(t, h, func(int32, xdr.Message) (xdr.Message, error) {
				return nil, &remote.Error{Code: c.code, Domain: 10, Message: "no such thing"}
			}, nil))
		}()
		_, err := lookup(t.Context(), client, "x")
		refused, ok := errors.AsType[*remote.Error](err)
		if !ok || refused.Code != c.code || refused.Unsupported() != c.unsupported {
			t.Errorf("code %d: got %v, unsupported %v", c.code, err, ok && refused.Unsupported())
		}
		for _, part := range []string{"DOMAIN_LOOKUP_BY_NAME", "no such thing"} {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("code %d: %v does not say %s", c.code, err, part)
			}
		}
	}
}

func TestPingsAreAnsweredDuringACall(t *testing.T) {
	c, far := pair(t)
	done := make(chan error, 1)
	go func() {
		_, err := lookup(t.Context(), c, "x")
		done <- err
	}()
	call, _ := receive(t, far)
	ping, err := xdr.AppendRaw(nil, xdr.Header{
		Program: xdr.ProgramKeepalive, Version: xdr.Version, Proc: xdr.ProcKeepalivePing, Type: xdr.TypeMessage,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	send(t, far, ping)
	if h, _ := receive(t, far); h.Program != xdr.ProgramKeepalive || h.Proc != xdr.ProcKeepalivePong || h.Type != xdr.TypeMessage {
		t.Errorf("answered a ping by %+v", h)
	}
	send(t, far, remotetest.Reply(t, call, func(int32, xdr.Message) (xdr.Message, error) {
		return &xdr.DomainLookupByNameRet{}, nil
	}, nil))
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestBrokenDaemonsEndCallsWithAReason(t *testing.T) {
	reply := func(h xdr.Header, payload []byte) []byte {
		h.Type = xdr.TypeReply
		packet, err := xdr.AppendRaw(nil, h, payload)
		if err != nil {
			t.Fatal(err)
		}
		return packet
	}
	for name, c := range map[string]struct {
		say  func(call xdr.Header) []byte
		want string
	}{
		"goes":               {func(xdr.Header) []byte { return nil }, "has ended"},
		"too long":           {func(xdr.Header) []byte { return binary.BigEndian.AppendUint32(nil, 1<<30) }, "packet length"},
		"too short":          {func(xdr.Header) []byte { return binary.BigEndian.AppendUint32(nil, 7) }, "packet length"},
		"half a packet":      {func(h xdr.Header) []byte { return reply(h, make([]byte, 100))[:40] }, "has ended"},
		"no result":          {func(h xdr.Header) []byte { return reply(h, nil) }, "needs"},
		"more than a result": {func(h xdr.Header) []byte { return reply(h, make([]byte, 100)) }, "left over"},
		"no reason": {func(h xdr.Header) []byte {
			h.Status = xdr.StatusError
			return reply(h, []byte{1, 2})
		}, "needs"},
	} {
		t.Run(name, func(t *testing.T) {
			client, far := pair(t)
			go func() {
				h, _ := receive(t, far)
				send(t, far, c.say(h))
				far.Close()
			}()
			if _, err := lookup(t.Context(), client, "x"); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want something with %q", err, c.want)
			}
		})
	}
}

func TestACallEndsWithItsContext(t *testing.T) {
	c, far := pair(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := lookup(ctx, c, "x")
		done <- err
	}()
	late, _ := receive(t, far)
	enough := errors.New("enough")
	cancel(enough)
	if err := <-done; !errors.Is(err, enough) {
		t.Errorf("got %v", err)
	}
	// The connection takes further calls, and the late answer does no harm.
	go func() {
		answer := func(int32, xdr.Message) (xdr.Message, error) {
			return &xdr.DomainLookupByNameRet{Domain: xdr.Domain{Name: "y"}}, nil
		}
		send(t, far, remotetest.Reply(t, late, answer, nil))
		h, _ := receive(t, far)
		send(t, far, remotetest.Reply(t, h, answer, nil))
	}()
	if d, err := lookup(t.Context(), c, "y"); err != nil || d.Name != "y" {
		t.Errorf("got %q, %v", d.Name, err)
	}
}

func TestADaemonThatDoesNotReadHoldsNobodyUp(t *testing.T) {
	c, _ := pair(t)
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer stop()
	if _, err := lookup(ctx, c, "x"); err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if _, err := lookup(t.Context(), c, "x"); err == nil {
		t.Error("a call went out behind half a packet")
	}
}

func TestDialProvesWhoItIs(t *testing.T) {
	for _, c := range []struct {
		name  string
		kinds []int32
		calls []int32
		want  fault.Kind
	}{
		{"nothing asked", nil, []int32{xdr.ProcAuthList, xdr.ProcConnectOpen}, -1},
		{"none", []int32{0}, []int32{xdr.ProcAuthList, xdr.ProcConnectOpen}, -1},
		{"polkit", []int32{2}, []int32{xdr.ProcAuthList, xdr.ProcAuthPolkit, xdr.ProcConnectOpen}, -1},
		{"sasl", []int32{1}, []int32{xdr.ProcAuthList}, fault.Unsupported},
	} {
		t.Run(c.name, func(t *testing.T) {
			var calls []int32
			path := remotetest.Listen(t, func(proc int32, args xdr.Message) (xdr.Message, error) {
				calls = append(calls, proc)
				switch proc {
				case xdr.ProcAuthList:
					return &xdr.AuthListRet{Types: c.kinds}, nil
				case xdr.ProcAuthPolkit:
					return &xdr.AuthPolkitRet{Complete: true}, nil
				case xdr.ProcConnectOpen:
					if open := args.(*xdr.ConnectOpenArgs); open.Name == nil || *open.Name != "qemu:///system" || open.Flags != 0 {
						t.Errorf("opened %+v", open)
					}
				}
				return nil, nil
			})
			conn, err := remote.Dial(t.Context(), remote.System+"?socket="+path)
			if err == nil {
				if pid, err := conn.PeerID(); err != nil || pid != os.Getpid() {
					t.Errorf("the daemon's process is %d, %v; it is this one", pid, err)
				}
				conn.Close()
			}
			if (c.want < 0) != (err == nil) || err != nil && fault.Of(err) != c.want {
				t.Errorf("got %v", err)
			}
			if fmt.Sprint(calls) != fmt.Sprint(c.calls) {
				t.Errorf("called %v, want %v", calls, c.calls)
			}
		})
	}
}

func TestEventsArriveBesideCalls(t *testing.T) {
	c, far := pair(t)
	event, err := xdr.AppendPacket(nil, xdr.Header{
		Program: xdr.ProgramRemote, Version: xdr.Version, Proc: xdr.ProcDomainEventCallbackLifecycle, Type: xdr.TypeMessage,
	}, &xdr.DomainEventCallbackLifecycleMsg{CallbackID: 3}, 0)
	if err != nil {
		t.Fatal(err)
	}
	send(t, far, event)
	e := <-c.Events()
	var message xdr.DomainEventCallbackLifecycleMsg
	if err := message.Decode(xdr.NewReader(e.Payload)); err != nil || e.Proc != xdr.ProcDomainEventCallbackLifecycle || message.CallbackID != 3 {
		t.Errorf("got %+v as %+v, %v", e, message, err)
	}
}
