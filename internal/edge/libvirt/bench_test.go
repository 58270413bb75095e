package libvirt

import (
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"testing"

	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/mechanism/listener"
	"github.com/lodge-kvm/lodge/internal/word/event"
)

// BenchmarkCall is one small call and its reply over a real socket, among idle
// connections.
func BenchmarkCall(b *testing.B) {
	for _, idle := range []int{0, 1000} {
		b.Run(fmt.Sprintf("idle=%d", idle), func(b *testing.B) {
			s := New(rpc.Config{Backends: rpc.Backends{Events: event.NewLog()}, Log: slog.New(slog.DiscardHandler)})
			path := filepath.Join(b.TempDir(), "sock")
			l, err := listener.Listen(b.Context(), listener.Place{Path: path})
			if err != nil {
				b.Fatal(err)
			}
			served := make(chan error, 1)
			go func() { served <- s.Serve(b.Context(), rpc.Listener{Listener: l}) }()
			b.Cleanup(func() {
				if err := <-served; err != nil {
					b.Error(err)
				}
			})
			var w *rawClient
			for range idle + 1 {
				conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: path})
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(func() { _ = conn.Close() })
				w = &rawClient{t: b, conn: conn}
				w.must(xdr.ProcAuthList, nil, nil)
				w.must(xdr.ProcConnectOpen, &xdr.ConnectOpenArgs{}, nil)
			}
			for b.Loop() {
				w.must(xdr.ProcConnectGetType, nil, nil)
			}
		})
	}
}
