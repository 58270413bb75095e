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

// limits bound the resources of one client and of all together. A client that exceeds a time is
// disconnected.
type limits struct {
	conns, connsEach           int // connections; each: of one owner
	unadmitted, unadmittedEach int // connections without an admitted call
	calls, callsEach           int // calls under way
	largeCalls, largeCallsEach int // calls about all guests, until their answers are sent
	streams                    int // concurrent calls on one connection
	sets, setsEach             int // under way
	// Bytes of one message from a client: of most calls, and of calls with documents. maxItems bounds its
	// fields and list members, too.
	message, documents int
	// Bytes of requests that are being received or worked on.
	intake, intakeEach int

	handshake     time.Duration
	upload        time.Duration // to receive a whole request
	idle          time.Duration // between calls of a connection
	writeTimeout  time.Duration // for a client to read a part of an answer
	maxFreshWait  time.Duration // the longest wait for fresh samples of guests
	shutdownGrace time.Duration // for calls under way when the daemon stops, twice: before and after their connections are closed
}

func defaultLimits() limits {
	return limits{
		conns: 4096, connsEach: 1024, unadmitted: 1024, unadmittedEach: 128, calls: 4096, callsEach: 1024, largeCalls: 256, largeCallsEach: 32,
		streams: 256, sets: 256, setsEach: 64,
		message: 256 << 10, documents: 32 << 20, intake: 64 << 20, intakeEach: 32<<20 + 64<<10,
		handshake: 10 * time.Second, upload: time.Minute, idle: 5 * time.Minute, writeTimeout: 60 * time.Second, maxFreshWait: time.Minute, shutdownGrace: 5 * time.Second,
	}
}

// quota counts a resource in use, in total and by owner.
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
func (q *quota) take(by authz.Owner, n int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.total+n > q.all || q.taken[by]+n > q.each {
		return false
	}
	q.total += n
	q.taken[by] += n
	return true
}

func (q *quota) release(by authz.Owner, n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.total -= n
	if q.taken[by] -= n; q.taken[by] == 0 {
		delete(q.taken, by)
	}
}

func (q *quota) count() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.total
}

// countedBody is a request that is being received. It belongs to the call's goroutine.
type countedBody struct {
	io.ReadCloser
	by     authz.Owner
	intake *quota
	taken  int
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if !b.intake.take(b.by, n) {
		return 0, fault.New(fault.NoCapacity, fault.Call, "requests of more than %d bytes are being received, or of more than %d from one client; try again later",
			b.intake.all, b.intake.each)
	}
	b.taken += n
	return n, err
}

// release ends the call's count.
func (b *countedBody) release() { b.intake.release(b.by, b.taken) }

// largeCalls are the calls whose answers grow with the number of guests. An answer stays in memory until the client
// has read it.
var largeCalls = map[string]bool{lodgev1.LodgeListGuestsProcedure: true, lodgev1.LodgeStatsProcedure: true, lodgev1.LodgeMemoryProcedure: true, lodgev1.LodgeListTilesProcedure: true}

// clientKey is the key of a call's connection in its context.
type clientKey struct{}

// limiter admits calls within the bounds.
type limiter struct {
	*Server
	next        http.Handler
	errorWriter *connect.ErrorWriter
}

func (l *limiter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.work.Add(1)
	defer l.work.Done()
	c, _ := r.Context().Value(clientKey{}).(*client)
	if err := l.admit(r.Context(), c, r.URL.Path); err != nil {
		if c.unadmitted.Load() {
			w.Header().Set("Connection", "close") // a refused client is disconnected
		}
		l.writeError(w, r, err)
		return
	}
	r = r.WithContext(context.WithValue(r.Context(), principalKey{}, c.principal))
	if !l.calls.take(c.owner, 1) {
		l.writeError(w, r, fault.New(fault.NoCapacity, fault.Call, "too many calls are under way: the maximum is %d, and %d for one client", l.calls.all, l.calls.each))
		return
	}
	defer l.calls.release(c.owner, 1)
	if largeCalls[r.URL.Path] {
		if !l.largeCalls.take(c.owner, 1) {
			l.writeError(w, r, fault.New(fault.NoCapacity, fault.Call, "too many answers about all guests are being sent: the maximum is %d, and %d for one client", l.largeCalls.all, l.largeCalls.each))
			return
		}
		defer l.largeCalls.release(c.owner, 1)
	}
	in := &countedBody{ReadCloser: r.Body, by: c.owner, intake: l.intake}
	defer in.release()
	r.Body = in
	out := &responseWriter{ResponseWriter: w, control: http.NewResponseController(w), timeout: l.limits.writeTimeout}
	if r.ContentLength != 0 {
		// The server removes this deadline itself when the request has been received.
		_ = out.control.SetReadDeadline(time.Now().Add(l.limits.upload)) // every connection of this server supports it
	}
	if r.URL.Path == lodgev1.LodgeWatchProcedure {
		out.timeout = 0 // a client that does not read loses events, and takes no other memory
	}
	defer out.clearDeadline()
	l.next.ServeHTTP(out, r)
}

func (l *limiter) writeError(w http.ResponseWriter, r *http.Request, err error) {
	if l.errorWriter.IsSupported(r) {
		_ = l.errorWriter.Write(w, r, toConnectError(err)) // the client may have disconnected
		return
	}
	http.Error(w, err.Error(), http.StatusForbidden)
}

// responseWriter sets a deadline for each write, so that a client that does not read is disconnected.
type responseWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration // 0: no limit
}

// Unwrap is for http.ResponseController.
func (w *responseWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *responseWriter) Write(p []byte) (int, error) {
	if w.timeout > 0 {
		_ = w.control.SetWriteDeadline(time.Now().Add(w.timeout)) // after an error the connection's own deadline bounds the write
	}
	return w.ResponseWriter.Write(p)
}

// Flush sends the written bytes; until the next write no deadline runs.
func (w *responseWriter) Flush() {
	_ = w.control.Flush() // a broken connection shows at the next write
	w.clearDeadline()
}

func (w *responseWriter) clearDeadline() {
	if w.timeout > 0 {
		_ = w.control.SetWriteDeadline(time.Time{})
	}
}

// withTimeout bounds an inner call by the time that the client set; what begins the text of the timeout's error.
func withTimeout(ctx context.Context, d time.Duration, what string) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, d, fault.New(fault.Timeout, fault.Call, "%s within %v", what, d))
}
