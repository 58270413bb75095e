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

// limits bound what clients may hold, one of them and all together. A client that exceeds a time is
// disconnected.
type limits struct {
	conns, connsEach           int // connections; each: of one owner
	unadmitted, unadmittedEach int // connections without an admitted call
	calls, callsEach           int // calls under way
	largeCalls, largeCallsEach int // calls about all guests, until their answers are sent
	streams                    int // concurrent calls on one connection
	sets, setsEach             int // under way
	// Bytes of one message from a client: of most calls, and of calls with documents. maxWords bounds its
	// fields and list members too.
	message, documents int
	// Bytes of requests that are being received or worked on.
	intake, intakeEach int

	handshake time.Duration
	upload    time.Duration // to receive a whole request
	idle      time.Duration // between calls of a connection
	patience  time.Duration // for a client to take a part of an answer
	fresh     time.Duration // for guests to give fresh samples
	grace     time.Duration // for calls under way when the daemon stops, twice
}

func defaultLimits() limits {
	return limits{
		conns: 4096, connsEach: 1024, unadmitted: 1024, unadmittedEach: 128, calls: 4096, callsEach: 1024, largeCalls: 256, largeCallsEach: 32,
		streams: 256, sets: 256, setsEach: 64,
		message: 256 << 10, documents: 32 << 20, intake: 64 << 20, intakeEach: 32<<20 + 64<<10,
		handshake: 10 * time.Second, upload: time.Minute, idle: 5 * time.Minute, patience: 60 * time.Second, fresh: time.Minute, grace: 5 * time.Second,
	}
}

// quota counts the resources in use, in all and by each owner.
type quota struct {
	all, each int

	mu    sync.Mutex
	total int
	taken map[authz.Owner]int // no zeros
}

func newQuota(all, each int) *quota {
	return &quota{all: all, each: each, taken: map[authz.Owner]int{}}
}

// take counts n more for the owner, unless that exceeds a bound.
func (p *quota) take(by authz.Owner, n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.total+n > p.all || p.taken[by]+n > p.each {
		return false
	}
	p.total += n
	p.taken[by] += n
	return true
}

func (p *quota) release(by authz.Owner, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.total -= n
	if p.taken[by] -= n; p.taken[by] == 0 {
		delete(p.taken, by)
	}
}

func (p *quota) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.total
}

// body is a request that is being received. It belongs to the call's goroutine.
type body struct {
	io.ReadCloser
	by     authz.Owner
	intake *quota
	taken  int
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if !b.intake.take(b.by, n) {
		return 0, fault.New(fault.NoCapacity, fault.Call, "requests of more than %d bytes are being received, or of more than %d from one client; try again later",
			b.intake.all, b.intake.each)
	}
	b.taken += n
	return n, err
}

// giveBack ends the call's count.
func (b *body) giveBack() { b.intake.release(b.by, b.taken) }

// largeCalls are the calls with answers that grow with the number of guests and stay in memory until the client has
// read them.
var largeCalls = map[string]bool{lodgev1.LodgeListGuestsProcedure: true, lodgev1.LodgeStatsProcedure: true, lodgev1.LodgeListTilesProcedure: true}

// clientKey is where a call's context keeps its connection.
type clientKey struct{}

// limiter admits calls within the bounds.
type limiter struct {
	*Server
	next   http.Handler
	refuse *connect.ErrorWriter
}

func (b *limiter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.work.Add(1)
	defer b.work.Done()
	c, _ := r.Context().Value(clientKey{}).(*client)
	if err := b.admit(r.Context(), c, r.URL.Path); err != nil {
		if c.unadmitted.Load() {
			w.Header().Set("Connection", "close") // a client that was refused loses its connection
		}
		b.say(w, r, err)
		return
	}
	r = r.WithContext(context.WithValue(r.Context(), whoKey{}, c.who))
	if !b.calls.take(c.owner, 1) {
		b.say(w, r, fault.New(fault.NoCapacity, fault.Call, "too many calls are under way: the maximum is %d, and %d for one client", b.calls.all, b.calls.each))
		return
	}
	defer b.calls.release(c.owner, 1)
	if largeCalls[r.URL.Path] {
		if !b.largeCalls.take(c.owner, 1) {
			b.say(w, r, fault.New(fault.NoCapacity, fault.Call, "too many answers about all guests are being sent: the maximum is %d, and %d for one client", b.largeCalls.all, b.largeCalls.each))
			return
		}
		defer b.largeCalls.release(c.owner, 1)
	}
	in := &body{ReadCloser: r.Body, by: c.owner, intake: b.intake}
	defer in.giveBack()
	r.Body = in
	out := &answer{ResponseWriter: w, control: http.NewResponseController(w), patience: b.limits.patience}
	if r.ContentLength != 0 {
		// The server removes this deadline itself when the request has been received.
		_ = out.control.SetReadDeadline(time.Now().Add(b.limits.upload)) // every connection of this server supports it
	}
	if r.URL.Path == lodgev1.LodgeWatchProcedure {
		out.patience = 0 // a client that does not read loses events, and holds nothing else
	}
	defer out.rest()
	b.next.ServeHTTP(out, r)
}

func (b *limiter) say(w http.ResponseWriter, r *http.Request, err error) {
	if b.refuse.IsSupported(r) {
		_ = b.refuse.Write(w, r, toConnectError(err)) // the client may have disconnected
		return
	}
	http.Error(w, err.Error(), http.StatusForbidden)
}

// answer disconnects a client that does not read its answer.
type answer struct {
	http.ResponseWriter
	control  *http.ResponseController
	patience time.Duration // 0: no limit
}

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *answer) Write(p []byte) (int, error) {
	if a.patience > 0 {
		_ = a.control.SetWriteDeadline(time.Now().Add(a.patience)) // otherwise the connection's own deadline bounds it
	}
	return a.ResponseWriter.Write(p)
}

// Flush sends the written bytes; until the next write no deadline runs.
func (a *answer) Flush() {
	_ = a.control.Flush() // a broken connection shows at the next write
	a.rest()
}

func (a *answer) rest() {
	if a.patience > 0 {
		_ = a.control.SetWriteDeadline(time.Time{})
	}
}

// within bounds a call of a room by the time that the client gave.
func within(ctx context.Context, d time.Duration, what string) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, d, fault.New(fault.Timeout, fault.Call, "%s within %v", what, d))
}
