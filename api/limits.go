package api

import (
	"context"
	"io"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/lodge-kvm/lodge/api/lodgev1"
	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/socket"
)

// limits bound what clients may hold, one and all together. Times are those
// after which somebody is given up.
type limits struct {
	conns, connsEach int // connections; each: of one process
	calls, callsEach int // under way
	streams          int // calls at a time on one connection
	sets             int // under way
	message          int // bytes of one message from a client
	intake           int // bytes of all messages that are being taken in
	handshake        time.Duration
	idle             time.Duration // between calls of a connection
	patience         time.Duration // for a client to take a slice of an answer
	fresh            time.Duration // for guests to give fresh samples
	grace            time.Duration // for calls in flight when the daemon stops, twice
}

func defaultLimits() limits {
	return limits{
		conns: 4096, connsEach: 1024, calls: 4096, callsEach: 1024, streams: 256, sets: 256,
		message: 32 << 20, intake: 256 << 20,
		handshake: 10 * time.Second, idle: 5 * time.Minute, patience: 60 * time.Second, fresh: time.Minute, grace: 5 * time.Second,
	}
}

// places counts what is taken, in all and by each process.
type places struct {
	all, each int

	mu    sync.Mutex
	sum   int
	taken map[int32]int // by process; no zeros
}

func newPlaces(all, each int) *places { return &places{all: all, each: each, taken: map[int32]int{}} }

// take gives the process one more place, or says no.
func (p *places) take(pid int32) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sum >= p.all || p.taken[pid] >= p.each {
		return false
	}
	p.sum++
	p.taken[pid]++
	return true
}

func (p *places) leave(pid int32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sum--
	if p.taken[pid]--; p.taken[pid] == 0 {
		delete(p.taken, pid)
	}
}

func (p *places) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sum
}

// intake bounds the bytes of requests that are in the daemon at a time.
type intake struct {
	all int

	mu    sync.Mutex
	taken int
}

func newIntake(all int) *intake { return &intake{all: all} }

func (i *intake) take(n int) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.taken+n > i.all {
		return false
	}
	i.taken += n
	return true
}

func (i *intake) leave(n int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.taken -= n
}

// body is a request being taken in. It belongs to the call's goroutine.
type body struct {
	io.ReadCloser
	intake *intake
	taken  int
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if !b.intake.take(n) {
		return 0, fault.New(fault.NoCapacity, fault.Call, "requests of more than %d bytes are being taken in; try again later", b.intake.all)
	}
	b.taken += n
	return n, err
}

// peerKey is where a call's context keeps who calls.
type peerKey struct{}

// bounded lets calls in, one by one.
type bounded struct {
	*Server
	next   http.Handler
	refuse *connect.ErrorWriter
}

func (b *bounded) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.work.Add(1)
	defer b.work.Done()
	peer, _ := r.Context().Value(peerKey{}).(socket.Peer)
	if err := peer.Admit(false, b.Groups); err != nil {
		b.say(w, r, err)
		return
	}
	if !b.calls.take(peer.PID) {
		b.say(w, r, fault.New(fault.NoCapacity, fault.Call, "too many calls are under way: at most %d, and %d of one process", b.calls.all, b.calls.each))
		return
	}
	defer b.calls.leave(peer.PID)
	in := &body{ReadCloser: r.Body, intake: b.intake}
	defer func() { b.intake.leave(in.taken) }()
	r.Body = in
	out := &answer{ResponseWriter: w, control: http.NewResponseController(w), patience: b.limits.patience}
	if r.URL.Path == lodgev1.LodgeWatchProcedure {
		out.patience = 0 // whoever does not read loses events, and holds nothing else
	}
	defer out.rest()
	b.next.ServeHTTP(out, r)
}

func (b *bounded) say(w http.ResponseWriter, r *http.Request, err error) {
	if b.refuse.IsSupported(r) {
		_ = b.refuse.Write(w, r, wire(err)) // the client may have gone
		return
	}
	http.Error(w, err.Error(), http.StatusForbidden)
}

// answer gives a client up that does not take what is written.
type answer struct {
	http.ResponseWriter
	control  *http.ResponseController
	patience time.Duration // 0: for ever
}

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *answer) Write(p []byte) (int, error) {
	if a.patience > 0 {
		_ = a.control.SetWriteDeadline(time.Now().Add(a.patience)) // what cannot be bounded is bounded by its connection
	}
	return a.ResponseWriter.Write(p)
}

// Flush sends what was written; until the next write the clock stands still.
func (a *answer) Flush() {
	_ = a.control.Flush() // a broken connection shows at the next write
	a.rest()
}

func (a *answer) rest() {
	if a.patience > 0 {
		_ = a.control.SetWriteDeadline(time.Time{})
	}
}

// within bounds a call of a room by what the client asked for.
func within(ctx context.Context, d time.Duration, what string) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, d, fault.New(fault.Timeout, fault.Call, "%s within %v", what, d))
}
