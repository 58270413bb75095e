package remote_test

import (
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/remote"
)

// answers are what a daemon's packets may hold, and more of the like.
func answers(f *testing.F) [][]byte {
	text := "it does not want to"
	var all [][]byte
	for _, m := range []xdr.Message{
		&xdr.ConnectGetHostnameRet{Hostname: "host"},
		&xdr.NetError{Code: 3, Domain: 10, Message: &text},
		&xdr.StreamHole{Length: 1 << 40},
		&xdr.ConnectGetCapabilitiesRet{Capabilities: strings.Repeat("x", 1<<10)},
	} {
		packet, err := xdr.AppendPacket(nil, xdr.Header{}, m, 0)
		if err != nil {
			f.Fatal(err)
		}
		all = append(all, packet[xdr.LengthSize+xdr.HeaderSize:])
	}
	return append(all, nil, []byte("data"), make([]byte, 256<<10), []byte{0, 0, 0, 0xff})
}

// step is one packet: its type, status, serial and payload. Of the first bit of its
// type: of keepalive; of the last type: bytes that are no packet.
const step = 4

// FuzzDaemon has another daemon say anything to the lab, which calls it, reads its events
// and a stream. Each call ends, with words where it fails, and a stream that is not read
// holds no more than it may.
func FuzzDaemon(f *testing.F) {
	payloads := answers(f)
	const reply, message, data, hole = byte(xdr.TypeReply), byte(xdr.TypeMessage), byte(xdr.TypeStream), byte(xdr.TypeStreamHole)
	const fine, bad, more = byte(xdr.StatusOK), byte(xdr.StatusError), byte(xdr.StatusContinue)
	f.Add([]byte{reply, fine, 1, 0, reply, fine, 2, 4, data, more, 2, 5, data, more, 2, 4, data, fine, 2, 4, message, fine, 0, 5}, []byte{})
	f.Add([]byte{reply, bad, 1, 1, reply, bad, 2, 1, 0x80 | message, fine, 0, 4}, []byte{})
	f.Add([]byte{reply, fine, 2, 4, data, more, 2, 5, hole, more, 2, 2, data, bad, 2, 1, reply, fine, 1, 3}, []byte{})
	f.Add([]byte{reply, fine, 2, 4, data, more, 2, 6, data, more, 2, 6, data, bad, 2, 7, reply, bad, 1, 7, 7, 0, 0, 255}, []byte{0, 0, 0, 28, 0x20, 0, 0x80, 0x86})
	f.Fuzz(func(t *testing.T, order, other []byte) {
		synctest.Test(t, func(t *testing.T) {
			near, far := net.Pipe()
			c := remote.New(near)
			go func() { _, _ = io.Copy(io.Discard, far) }()
			ctx, stop := context.WithTimeout(t.Context(), time.Minute)
			defer stop()
			var all sync.WaitGroup
			all.Go(func() {
				var ret xdr.ConnectGetHostnameRet
				if err := c.Call(ctx, xdr.ProcConnectGetHostname, nil, &ret); err != nil && err.Error() == "" {
					t.Error("a call fails without a word")
				}
			})
			synctest.Wait()
			all.Go(func() { stream(ctx, t, c) })
			synctest.Wait()
			for ; len(order) >= step; order = order[step:] {
				payload := other
				if n := int(order[3]); n < len(payloads) {
					payload = payloads[n]
				}
				h := xdr.Header{Program: xdr.ProgramRemote, Version: xdr.Version, Proc: xdr.ProcDomainOpenConsole, Type: xdr.Type(order[0] & 7), Status: xdr.Status(order[1]), Serial: uint32(order[2])}
				if order[0]&0x80 != 0 {
					h.Program, h.Proc = xdr.ProgramKeepalive, xdr.ProcKeepalivePing
				}
				packet, err := xdr.AppendRaw(nil, h, payload)
				if err != nil || h.Type == 7 {
					packet = payload
				}
				_, _ = far.Write(packet)
				synctest.Wait()
			}
			_ = far.Close()
			all.Wait()
			c.Close()
		})
	})
}

// stream opens a stream, writes to it, and reads it to its end.
func stream(ctx context.Context, t *testing.T, c *remote.Conn) {
	s, err := c.OpenStream(ctx, xdr.ProcDomainOpenConsole, &xdr.DomainOpenConsoleArgs{}, nil)
	if err != nil {
		return
	}
	_, _ = s.Write([]byte("x"))
	var kept strings.Builder
	_, err = io.Copy(&kept, s)
	if err != nil && err.Error() == "" {
		t.Error("a stream fails without a word")
	}
	_ = s.Finish(ctx)
	_ = s.Close()
}
