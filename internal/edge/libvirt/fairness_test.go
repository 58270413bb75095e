package libvirt

import (
	"context"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/control/authz"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

// heavy makes a call that needs a CPU for a while, and counts the calls.
type heavy struct{ inside, most, done atomic.Int32 }

func (h *heavy) install(s *rpc.Server) {
	delete(s.Table, rpc.ProcedureKey{Program: xdr.ProgramRemote, Number: xdr.ProcConnectGetCapabilities})
	rpc.On(rpc.Group{Table: s.Table, Program: xdr.ProgramRemote}, xdr.ProcConnectGetCapabilities, func(ctx context.Context, _ *rpc.Handlers, _ *rpc.Request, _ *rpc.Void) (*xdr.ConnectGetCapabilitiesRet, error) {
		doc, err := rpc.RunFair(ctx, func() (string, error) {
			if n := h.inside.Add(1); n > h.most.Load() {
				h.most.Store(n) // a lower bound: another call may store less in between
			}
			for end := time.Now().Add(2 * time.Millisecond); time.Now().Before(end); {
			}
			h.inside.Add(-1)
			h.done.Add(1)
			return "<capabilities/>", nil
		})
		return &xdr.ConnectGetCapabilitiesRet{Capabilities: doc}, err
	})
}

// TestFairness_HeavyClient counts how many queued calls of one client are done while
// another client waits for one call: few, and never all.
// Promise: W4
func TestFairness_HeavyClient(t *testing.T) {
	var work heavy
	h := serve(t, func(s *rpc.Server) { work.install(s); s.Limits.RunningCalls = 256 })
	much, little := h.open(""), h.open("")
	const calls = 256
	for range calls {
		much.send(xdr.ProcConnectGetCapabilities, nil)
	}
	left := calls
	// Its reply shows that the calls before it were read: priority calls do not wait for them.
	for marker := much.send(xdr.ProcConnectGetType, nil); much.next().Serial != marker.Serial; left-- {
	}
	for name, ask := range map[string]func(){
		"cheap": func() { little.must(xdr.ProcConnectGetHostname, nil, new(xdr.ConnectGetHostnameRet)) },
		"heavy": func() { little.must(xdr.ProcConnectGetCapabilities, nil, new(xdr.ConnectGetCapabilitiesRet)) },
	} {
		before := work.done.Load()
		ask()
		if n := work.done.Load() - before; n > calls/8 {
			t.Errorf("%d calls of another client are done before one %s call", n, name)
		}
	}
	for range left {
		if p := much.next(); p.Status != xdr.StatusOK {
			t.Fatalf("%+v", p.Header)
		}
	}
	if most := int(work.most.Load()); most >= runtime.GOMAXPROCS(0) && most > 1 {
		t.Errorf("%d are at work at once, with %d processors", most, runtime.GOMAXPROCS(0))
	}
}

// heldBytes returns the bytes that all clients are charged for.
func heldBytes(m *rpc.Memory) int {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	return m.Total
}

func holders(m *rpc.Memory) int {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	return len(m.ByClient) + len(m.ByOwner)
}

// eventually waits for a change that the server makes in another goroutine.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !so(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatal("never:", what)
		}
	}
}

// TestMemory_ClientsThatDoNotRead: the replies of all clients together are bounded. At the
// bound, the connections with the most bytes are closed.
// Promise: W4
func TestMemory_ClientsThatDoNotRead(t *testing.T) {
	const size, limit, crowd, running = 64 << 10, 2 << 20, 20, 2
	var most atomic.Int64
	h := serve(t, func(s *rpc.Server) {
		s.Memory.Limit, s.Limits.RunningCalls = limit, running
		delete(s.Table, rpc.ProcedureKey{Program: xdr.ProgramRemote, Number: xdr.ProcConnectGetCapabilities})
		rpc.On(rpc.Group{Table: s.Table, Program: xdr.ProgramRemote}, xdr.ProcConnectGetCapabilities, func(context.Context, *rpc.Handlers, *rpc.Request, *rpc.Void) (*xdr.ConnectGetCapabilitiesRet, error) {
			most.Store(max(most.Load(), int64(heldBytes(&s.Memory))))
			return &xdr.ConnectGetCapabilitiesRet{Capabilities: strings.Repeat("x", size)}, nil
		})
	})
	bystander := h.open("")
	var deaf []*rawClient
	for range crowd {
		w := h.open("")
		deaf = append(deaf, w)
		for range 100 {
			b, err := xdr.AppendPacket(nil, w.header(xdr.ProcConnectGetCapabilities), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.conn.Write(b); err != nil {
				break // it was given up
			}
		}
		bystander.works()
	}
	if slack := int64(limit + crowd*running*2*size); most.Load() > slack {
		t.Errorf("clients are charged for %d bytes, more than %d", most.Load(), slack)
	}
	for _, w := range deaf {
		_ = w.conn.Close()
	}
	bystander.works()
	eventually(t, "all memory is released", func() bool { return heldBytes(&h.server.Memory) == 0 && holders(&h.server.Memory) == 0 })
}

// TestMemory_CountsStreams: the data that streams have not read yet counts for the memory
// bound. It is released when the stream reads it, fails, or its client disconnects.
// Promise: X4
func TestMemory_CountsStreams(t *testing.T) {
	const size, limit = 1 << 20, 16 << 20
	goOn := make(chan struct{})
	h := serve(t, func(s *rpc.Server) { s.Memory.Limit = limit }, upload(func(ctx context.Context, st *rpc.Stream) error {
		select {
		case <-goOn:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		_, err := io.Copy(io.Discard, struct{ io.Reader }{st})
		return err
	}))
	bystander, greedy := h.open(""), h.open("")
	var all []xdr.Header
	for range limit / size {
		all = append(all, greedy.openStream(xdr.ProcStorageVolUpload, new(xdr.StorageVolUploadArgs)))
	}
	for _, st := range slices.Repeat(all, rpc.StreamQueue) {
		st.Status = xdr.StatusContinue
		b, err := xdr.AppendRaw(nil, st, make([]byte, size))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := greedy.conn.Write(b); err != nil {
			break // it was given up
		}
	}
	greedy.closed()
	bystander.works()
	eventually(t, "all memory is released", func() bool { return heldBytes(&h.server.Memory) == 0 })
	st := bystander.openStream(xdr.ProcStorageVolUpload, new(xdr.StorageVolUploadArgs))
	for range rpc.StreamQueue {
		bystander.data(st, xdr.StatusContinue, make([]byte, size))
	}
	eventually(t, "what waits is counted", func() bool { return heldBytes(&h.server.Memory) >= rpc.StreamQueue*size })
	close(goOn)
	eventually(t, "all memory is released", func() bool { return heldBytes(&h.server.Memory) == 0 })
	bystander.data(st, xdr.StatusOK, nil)
	bystander.expect(st, xdr.StatusOK)
}

// A client that starts a packet and stops in the middle is disconnected.
func TestFraming_StalledPacket(t *testing.T) {
	h := serve(t, func(s *rpc.Server) { s.Limits.PacketTimeout = 100 * time.Millisecond })
	bystander, slow := h.open(""), h.open("")
	slow.write(raw(xdr.MaxPacket, call(xdr.ProcConnectGetType), make([]byte, 100<<10)))
	slow.closed()
	bystander.works() // an idle connection has no deadline
	eventually(t, "the memory of the partial packet is released", func() bool { return heldBytes(&h.server.Memory) == 0 })
}

func TestConnect_BoundPerOwner(t *testing.T) {
	h := serve(t, func(s *rpc.Server) { s.Limits.ClientsPerOwner = 3 })
	first, second, third := h.open(""), h.open(""), h.open("-ro")
	more := h.dial("")
	more.closed()
	for _, w := range []*rawClient{first, second, third} {
		w.works()
	}
	_ = first.conn.Close()
	eventually(t, "another client is accepted", func() bool {
		w := h.dial("")
		defer w.conn.Close()
		w.serial++
		b, err := xdr.AppendPacket(nil, call(xdr.ProcAuthList), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.conn.Write(b); err != nil {
			return false
		}
		_, err = w.read()
		return err == nil
	})
}

// TestConnect_AnonymousBound opens more connections without authentication than one user may have.
// Promise: A9
func TestConnect_AnonymousBound(t *testing.T) {
	h := serve(t, func(s *rpc.Server) { s.Limits.AnonymousPerOwner = 2 })
	var in []*rpc.Client
	for range 3 {
		near, far := net.Pipe()
		defer func() { _, _ = near.Close(), far.Close() }()
		if c := rpc.NewClient(h.server, near, false); h.server.Add(c) {
			in = append(in, c)
		}
	}
	if len(in) != 2 {
		t.Fatalf("%d anonymous connections of one user are accepted", len(in))
	}
	h.server.MarkAuthenticated(in[0])
	near, far := net.Pipe()
	defer func() { _, _ = near.Close(), far.Close() }()
	one := rpc.NewClient(h.server, near, false)
	if !h.server.Add(one) {
		t.Error("no client is admitted after one has authenticated")
	}
	for _, c := range append(in, one) {
		h.server.Remove(c)
	}
	if len(h.server.Anonymous) != 0 || len(h.server.Connections) != 0 || len(h.server.Tenants) != 0 {
		t.Errorf("anonymous connections %v, connections %v and tenants %v stay", h.server.Anonymous, h.server.Connections, h.server.Tenants)
	}
}

// TestLimits_PerHost: clients from different hosts share no limit on connections or memory.
// Promise: W4
func TestLimits_PerHost(t *testing.T) {
	h := serve(t, func(s *rpc.Server) { s.Limits.AnonymousPerOwner = 1 })
	connect := func(address string) (*rpc.Client, bool) {
		near, far := net.Pipe()
		t.Cleanup(func() { _, _ = near.Close(), far.Close() })
		c := rpc.NewClient(h.server, near, false)
		c.Session.Identity = authz.Principal{Address: address} // as useTLS sets it
		return c, h.server.Add(c)
	}
	one, in := connect("192.0.2.1:1000")
	other, alsoIn := connect("192.0.2.2:1000")
	if _, again := connect("192.0.2.1:1001"); !in || !alsoIn || again {
		t.Fatalf("accepted: the first connection %v, that of another host %v, a second one of the first host %v", in, alsoIn, again)
	}
	h.server.Memory.Charge(one, 10)
	if n := h.server.Memory.ByOwner[other.Owner]; n != 0 {
		t.Errorf("%d bytes of one host count for another", n)
	}
	h.server.Memory.Release(one, 10)
	h.server.Remove(one)
	h.server.Remove(other)
}

// Thousands of clients connect and leave at any point of a call. No client that stays is refused.
// Promise: W4
func TestConnect_Storm(t *testing.T) {
	h := serve(t)
	bystander := h.open("")
	var crowd sync.WaitGroup
	for i := range 8 {
		crowd.Go(func() {
			for j := range 250 {
				w := h.dial([]string{"", "-ro"}[j%2])
				switch (i + j) % 4 {
				case 0: // disconnects at once
				case 1:
					w.write(raw(28, call(xdr.ProcAuthList), nil)[:j%28])
				case 2:
					w.must(xdr.ProcAuthList, nil, nil)
				case 3:
					w.must(xdr.ProcAuthList, nil, nil)
					w.must(xdr.ProcConnectOpen, &xdr.ConnectOpenArgs{Flags: uint32(j % 2)}, nil)
					w.works()
				}
				_ = w.conn.Close()
			}
		})
	}
	for range 100 {
		bystander.works()
	}
	crowd.Wait()
	bystander.works()
	eventually(t, "all clients are disconnected", func() bool {
		h.server.Mu.Lock()
		defer h.server.Mu.Unlock()
		return len(h.server.Connected) == 1 && len(h.server.Connections) == 1
	})
}

// When memory runs out, the server closes a connection of the user with the most memory in total. A larger single
// connection of another user stays open.
func TestMemory_LargestOwnerClosed(t *testing.T) {
	connected := func(uid uint32) *rpc.Client {
		c := &rpc.Client{Owner: authz.Owner{UID: uid}}
		c.Ctx, c.End = context.WithCancelCause(t.Context())
		return c
	}
	m := rpc.NewMemory(1000)
	single := connected(1)
	m.Charge(single, 300)
	var many []*rpc.Client
	for range 10 {
		many = append(many, connected(2))
		m.Charge(many[len(many)-1], 71)
	}
	if single.Ctx.Err() != nil {
		t.Error("the largest single connection is closed")
	}
	if !slices.ContainsFunc(many, func(c *rpc.Client) bool { return c.Ctx.Err() != nil }) {
		t.Error("no connection is closed")
	}
	m.Release(single, 300)
	for _, c := range many {
		m.Release(c, 71)
	}
	if len(m.ByClient)+len(m.ByOwner)+m.Total != 0 {
		t.Errorf("%d bytes are left: %v %v", m.Total, m.ByClient, m.ByOwner)
	}
}

// Callbacks use memory of the daemon, so they count for the memory bound.
func TestMemory_CountsCallbacks(t *testing.T) {
	h := serve(t)
	w := h.open("")
	eventually(t, "nothing is held", func() bool { return heldBytes(&h.server.Memory) == 0 })
	const some = 10
	var last int32
	for range some {
		last = w.watch(0, nil)
	}
	eventually(t, "callbacks are held", func() bool { return heldBytes(&h.server.Memory) == some*rpc.SubscriptionSize })
	w.must(xdr.ProcConnectDomainEventCallbackDeregisterAny, &xdr.WithCallbackID{CallbackID: last}, nil)
	eventually(t, "one less is held", func() bool { return heldBytes(&h.server.Memory) == (some-1)*rpc.SubscriptionSize })
	_ = w.conn.Close()
	eventually(t, "all memory is released", func() bool { return heldBytes(&h.server.Memory) == 0 })
}
