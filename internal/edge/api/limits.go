package api

import (
	"context"
	"io"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/lodge-kvm/lodge/api/lodgev1"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/control/authz"
)

// limits bound what clients may hold, one and all together. Times are those
// after which somebody is given up.
type limits struct {
	conns, connsEach         int // connections; each: of one owner
	strangers, strangersEach int // of them that no call was let in by yet
	calls, callsEach         int // under way
	looks, looksEach         int // of them that tell of all guests, until they are told
	streams                  int // calls at a time on one connection
	sets, setsEach           int // under way
	// Bytes of one message from a client: of most calls, and of those that bring
	// documents. Of how many words it may be is bounded too.
	message, documents int
	// Bytes of requests that are being taken in and worked on.
	intake, intakeEach int

	handshake time.Duration
	upload    time.Duration // for a request to come in as a whole
	idle      time.Duration // between calls of a connection
	patience  time.Duration // for a client to take a slice of an answer
	fresh     time.Duration // for guests to give fresh samples
	grace     time.Duration // for calls in flight when the daemon stops, twice
}

func defaultLimits() limits {
	return limits{
		conns: 4096, connsEach: 1024, strangers: 1024, strangersEach: 128, calls: 4096, callsEach: 1024, looks: 256, looksEach: 32,
		streams: 256, sets: 256, setsEach: 64,
		message: 256 << 10, documents: 32 << 20, intake: 64 << 20, intakeEach: 32<<20 + 64<<10,
		handshake: 10 * time.Second, upload: time.Minute, idle: 5 * time.Minute, patience: 60 * time.Second, fresh: time.Minute, grace: 5 * time.Second,
	}
}

// places counts what is taken, in all and by each owner.
type places struct {
	all, each int

	mu    sync.Mutex
	sum   int
	taken map[authz.Owner]int // no zeros
}

func newPlaces(all, each int) *places {
	return &places{all: all, each: each, taken: map[authz.Owner]int{}}
}

// take gives the owner n more, or says no.
func (p *places) take(by authz.Owner, n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sum+n > p.all || p.taken[by]+n > p.each {
		return false
	}
	p.sum += n
	p.taken[by] += n
	return true
}

func (p *places) leave(by authz.Owner, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sum -= n
	if p.taken[by] -= n; p.taken[by] == 0 {
		delete(p.taken, by)
	}
}

func (p *places) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sum
}

// body is a request being taken in. It belongs to the call's goroutine.
type body struct {
	io.ReadCloser
	by     authz.Owner
	intake *places
	taken  int
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if !b.intake.take(b.by, n) {
		return 0, fault.New(fault.NoCapacity, fault.Call, "requests of more than %d bytes are being taken in, or of more than %d from one client; try again later",
			b.intake.all, b.intake.each)
	}
	b.taken += n
	return n, err
}

// giveBack is the end of the call.
func (b *body) giveBack() { b.intake.leave(b.by, b.taken) }

// looks are the calls whose answers grow with the number of guests, and that are
// held as a whole until the client has read them.
var looks = map[string]bool{lodgev1.LodgeListGuestsProcedure: true, lodgev1.LodgeStatsProcedure: true, lodgev1.LodgeListTilesProcedure: true}

// clientKey is where a call's context keeps the connection that it comes by.
type clientKey struct{}

// bounded lets calls in, one by one.
type bounded struct {
	*Server
	next   http.Handler
	refuse *connect.ErrorWriter
}

func (b *bounded) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.work.Add(1)
	defer b.work.Done()
	c, _ := r.Context().Value(clientKey{}).(*client)
	if err := b.admit(r.Context(), c, r.URL.Path); err != nil {
		if c.strange.Load() {
			w.Header().Set("Connection", "close") // whoever is not let in has no connection
		}
		b.say(w, r, err)
		return
	}
	r = r.WithContext(context.WithValue(r.Context(), whoKey{}, c.who))
	if !b.calls.take(c.owner, 1) {
		b.say(w, r, fault.New(fault.NoCapacity, fault.Call, "too many calls are under way: at most %d, and %d of one client", b.calls.all, b.calls.each))
		return
	}
	defer b.calls.leave(c.owner, 1)
	if looks[r.URL.Path] {
		if !b.looking.take(c.owner, 1) {
			b.say(w, r, fault.New(fault.NoCapacity, fault.Call, "too many answers about all guests are on their way: at most %d, and %d to one client", b.looking.all, b.looking.each))
			return
		}
		defer b.looking.leave(c.owner, 1)
	}
	in := &body{ReadCloser: r.Body, by: c.owner, intake: b.intake}
	defer in.giveBack()
	r.Body = in
	out := &answer{ResponseWriter: w, control: http.NewResponseController(w), patience: b.limits.patience}
	if r.ContentLength != 0 {
		// The server ends this itself when the request has come in.
		_ = out.control.SetReadDeadline(time.Now().Add(b.limits.upload)) // every connection of this server has one
	}
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
