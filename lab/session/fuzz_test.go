package session_test

import (
	"context"
	"encoding/json"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lodge-kvm/lodge/lab/session"
	"github.com/lodge-kvm/lodge/lab/wire"
)

// said is what a guest's frames may hold, and more of the like.
var said = []string{
	`{"version":1,"name":"g","kernel":"6.1","cpus":2,"boot":"b"}`,
	`{"result":{"status":0}}`,
	`{"error":"no","kind":"not found"}`,
	`{"result":{"wall":"2026-01-02T03:04:05Z","up":1000,"source":"tsc"}}`,
	much + "\n",
	`{"start":"0001-01-01T00:00:00Z","length":-1,"ops":{"":{"done":-1}}}` + "\n",
	"\x00\x00\x40\x00",
	"\xff\xff\xff\xff",
	strings.Repeat("x", wire.MaxPayload),
	"{}", "null", "",
	strings.Repeat(much+"\n", 256),
}

// much is an interval that did as much as one may.
const much = `{"start":"2026-01-02T03:04:05Z","length":1000000000,"ops":{"read":{"done":9007199254740992,"bytes":9007199254740992}}}`

// step is one frame: of 11 kinds (those that there are, none, and what is no frame), of
// a stream, for a call, and what it holds. Of the first bit of its kind: of another host.
const step = 4

// FuzzGuest has a guest say anything to the lab that asks it for everything. Each call
// ends, what it gives is no more than was sent, and no figure is one that cannot be.
func FuzzGuest(f *testing.F) {
	const data, end, credit, reply, lost = byte(wire.Data), byte(wire.End), byte(wire.Credit), byte(wire.Reply), byte(wire.Lost)
	const in, out, errs = wire.Input, wire.Output, wire.Errors
	f.Add([]byte{data, out, 1, 8, data, errs, 1, 8, end, out, 1, 11, reply, 0, 1, 1, data, out, 2, 8, end, out, 2, 11, reply, 0, 2, 9, credit, in, 3, 6, reply, 0, 3, 2}, "")
	f.Add([]byte{reply, 0, 4, 3, reply, 0, 8, 3, reply, 0, 9, 3, reply, 0, 7, 3, reply, 0, 5, 1, data, out, 6, 4, data, out, 6, 4, data, out, 6, 5, reply, 0, 6, 1}, "")
	f.Add([]byte{data, out, 6, 255, data, out, 6, 255, reply, 0, 6, 9, lost, 0, 0, 10}, said[4])
	f.Add(slices.Repeat([]byte{data, out, 6, 12}, 5), "")
	f.Add([]byte{reply, 0, 1, 254, 10, 0, 0, 8, reply, 0, 2, 9}, "{\"result\":\n{\"result\":7}")
	f.Add([]byte{data | 0x80, out, 1, 8, byte(wire.Welcome), 0, 0, 0, byte(wire.Call), 0, 1, 1, reply, 9, 77, 1}, "")
	f.Fuzz(func(t *testing.T, order []byte, others string) {
		also := strings.SplitAfter(others, "\n")
		synctest.Test(t, func(t *testing.T) {
			host, guest := net.Pipe()
			met, asked := make(chan uint32, 1), make(chan struct{})
			go hear(guest, met)
			go func() {
				epoch := <-met
				_, _ = guest.Write(wire.Frame{Kind: wire.Welcome, Epoch: epoch, Payload: []byte(said[0])}.Encode())
				<-asked
				for len(order) >= step {
					_, _ = guest.Write(frame(order[:step], epoch, also))
					order = order[step:]
				}
			}()
			ctx, stop := context.WithTimeout(t.Context(), time.Minute)
			defer stop()
			s, err := session.Open(ctx, host)
			if err != nil {
				t.Fatal(err)
			}
			askAll(ctx, t, s, asked)
			_ = s.Close()
			_ = guest.Close()
			if s.Err() == nil {
				t.Error("a session that was closed goes on")
			}
		})
	})
}

// frame is what a step says.
func frame(step []byte, epoch uint32, also []string) []byte {
	payload := also[int(255-step[3])%len(also)]
	if n := int(step[3]); n < len(said) {
		payload = said[n]
	}
	payload = payload[:min(len(payload), wire.MaxPayload)]
	if step[0]&0x80 != 0 {
		epoch++
	}
	kind := wire.Kind(step[0] & 0x7f % 11)
	if kind > wire.Lost {
		return []byte(payload)
	}
	return wire.Frame{Kind: kind, Stream: step[1], Epoch: epoch, ID: uint32(step[2]), Payload: []byte(payload)}.Encode()
}

// hear takes what the host sends, and tells of its epoch.
func hear(guest net.Conn, met chan<- uint32) {
	from := wire.NewReader(guest)
	for {
		f, err := from.Next()
		if err != nil {
			return
		}
		if f.Kind == wire.Hello {
			met <- f.Epoch
		}
	}
}

// askAll makes one call of each kind, in this order, closes asked, and waits for all.
func askAll(ctx context.Context, t *testing.T, s *session.Session, asked chan<- struct{}) {
	var all sync.WaitGroup
	defer all.Wait()
	var got strings.Builder
	for _, ask := range []func(){
		func() {
			r, _ := s.Exec(ctx, session.Command{Argv: []string{"x"}, Stdin: strings.NewReader("y")})
			if len(r.Stdout)+len(r.Stderr) > 2*wire.Window+2*wire.MaxPayload<<8 {
				t.Errorf("%d bytes of output", len(r.Stdout))
			}
		},
		func() { _ = s.Get(ctx, "/x", &got) },
		func() { _ = s.Put(ctx, "/x", 0o600, strings.NewReader(strings.Repeat("x", 2*wire.Window))) },
		func() { _, _ = s.Clock(ctx) },
		func() { _, _ = s.Sample(ctx) },
		func() { load(ctx, t, s) },
		func() { _ = s.Power(ctx) },
	} {
		all.Go(ask)
		synctest.Wait()
	}
	close(asked)
}

// load runs one to its end, and looks at what it is said to have done.
func load(ctx context.Context, t *testing.T, s *session.Session) {
	job, err := s.Start(ctx, "mail", json.RawMessage(`{}`))
	if err != nil {
		return
	}
	for i := range job.Intervals() {
		if err := i.Check(); err != nil {
			t.Error(err)
		}
	}
	total, _ := job.Wait(context.WithoutCancel(ctx))
	for name, c := range total.Ops {
		if c.Done < 0 || c.Errors < 0 || c.Bytes < 0 {
			t.Errorf("of %q %d were done and %d failed, of %d bytes", name, c.Done, c.Errors, c.Bytes)
		}
	}
	if total.Length < 0 {
		t.Errorf("it took %v", total.Length)
	}
}
