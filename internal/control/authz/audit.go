package authz

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Entry is one thing that a client did, tried to do, or was not let in for.
type Entry struct {
	Who Who
	// API is the way that it came by, Call its name there.
	API, Call string
	Verb      Verb
	Object    Object
	Rule      string // that allowed it; empty: none was needed
	Err       error
	// Login says that the client was let in, which is noted though it changes nothing.
	Login bool
	Took  time.Duration
}

// Bounds of the audit.
const (
	auditQueue = 8192     // entries that wait to be written; more are counted as lost
	auditText  = 256      // bytes of a name that a client gave
	auditFile  = 64 << 20 // bytes of the audit's own file, of which one older is kept
	// Refusals and failures of one client, each within a minute of the one before, that have a
	// line each; more are counted. They cost nothing, and would push what was done out of the file.
	auditRefusals = 1000
)

// Audit writes one line for each change and each refusal. Nobody waits for it:
// what there is no room for is counted, and the count is written. A nil audit
// writes nothing.
type Audit struct {
	log   *slog.Logger // the daemon's
	own   *ownFile     // nil: none was asked for
	queue chan Entry
	lost  atomic.Int64
	// refused are the clients that are refused, or fail, again and again; unsaid counts those
	// of their calls that have no line.
	refused strikes
	unsaid  atomic.Int64
	stop    chan struct{} // closed by Close
	done    chan struct{}
}

// OpenAudit begins to write into the daemon's log, and into a file of its own if
// there is a path.
func OpenAudit(path string, log *slog.Logger) (*Audit, error) {
	a := &Audit{log: log, queue: make(chan Entry, auditQueue), stop: make(chan struct{}), done: make(chan struct{}), refused: strikes{most: auditRefusals}}
	if path != "" {
		a.own = &ownFile{path: path}
		if err := a.own.open(); err != nil {
			return nil, err
		}
	}
	go a.write()
	return a, nil
}

// costless are the sorts of errors of calls that were refused before they did anything.
var costless = []fault.Kind{fault.Denied, fault.Invalid, fault.Unsupported, fault.NotFound, fault.Exists, fault.WrongState, fault.NoCapacity, fault.Busy}

// Note takes an entry. What only read and was allowed is left out.
func (a *Audit) Note(e Entry) {
	if a == nil || e.Err == nil && !e.Verb.changes() && !e.Login {
		return
	}
	if e.Err != nil && !e.Who.Trusted() && slices.Contains(costless, fault.Of(e.Err)) {
		who := e.Who.String()
		if !e.Who.Local && e.Who.Subject == "" {
			who = origin(e.Who.Address)
		}
		if a.refused.out(who) {
			a.unsaid.Add(1)
			return
		}
		a.refused.note(who)
	}
	e.Object.Name, e.Object.Part = shortened(e.Object.Name), shortened(e.Object.Part) // as long as it waits
	select {
	case a.queue <- e:
	default:
		a.lost.Add(1)
	}
}

// Reopen goes on in a new file, when somebody has moved the old one away.
func (a *Audit) Reopen() {
	if a != nil && a.own != nil {
		a.own.moved.Store(true)
	}
}

// Close writes what waits; what is noted later is lost.
func (a *Audit) Close() error {
	if a == nil {
		return nil
	}
	close(a.stop)
	<-a.done
	if a.own == nil {
		return nil
	}
	return a.own.f.Close()
}

func (a *Audit) write() {
	defer close(a.done)
	handlers := []slog.Handler{a.log.Handler()}
	if a.own != nil {
		handlers = append(handlers, slog.NewTextHandler(a.own, nil))
	}
	out := slog.New(slog.NewMultiHandler(handlers...))
	for {
		var e Entry
		select {
		case e = <-a.queue:
		case <-a.stop:
			select {
			case e = <-a.queue:
			default:
				a.writeCounts(out)
				return
			}
		}
		a.writeCounts(out)
		out.LogAttrs(context.Background(), slog.LevelInfo, "audit", e.attrs()...)
		if a.own != nil && a.own.failed != nil {
			a.log.Error("cannot write the audit's file; its lines are in this log alone", "error", a.own.failed)
			a.own.failed = nil
		}
	}
}

// writeCounts says how many entries have no line.
func (a *Audit) writeCounts(out *slog.Logger) {
	if lost := a.lost.Swap(0); lost > 0 {
		out.Warn("audit", "lost", lost)
	}
	if unsaid := a.unsaid.Swap(0); unsaid > 0 {
		out.Warn("audit", "unsaid", unsaid)
	}
}

// attrs are the words of the line. The handler quotes them, so that no name
// begins a line of its own.
func (e Entry) attrs() []slog.Attr {
	attrs := []slog.Attr{slog.String("api", e.API)}
	if e.Who.Local {
		attrs = append(attrs, slog.Uint64("uid", uint64(e.Who.Peer.UID)), slog.Int("pid", int(e.Who.Peer.PID)))
	} else {
		attrs = append(attrs, slog.String("dn", shortened(e.Who.Subject)), slog.String("address", e.Who.Address))
	}
	attrs = append(attrs, slog.String("call", shortened(e.Call)), slog.String("verb", e.Verb.String()))
	if o := e.Object.String(); o != "" {
		attrs = append(attrs, slog.String("object", shortened(o)))
	}
	if e.Rule != "" {
		attrs = append(attrs, slog.String("rule", shortened(e.Rule)))
	}
	attrs = append(attrs, slog.String("result", e.result()), slog.Duration("took", e.Took))
	return attrs
}

// result is the kind of the error and never its text, which may quote what a
// client sent.
func (e Entry) result() string {
	if e.Err == nil {
		return "ok"
	}
	return fault.Of(e.Err).String()
}

func shortened(text string) string {
	if len(text) > auditText {
		return text[:auditText] + "..." // a copy
	}
	return text
}

// ownFile is the audit's own file. It belongs to who writes.
type ownFile struct {
	path   string
	f      *os.File
	size   int64
	moved  atomic.Bool
	failed error // the last write; until it was reported
}

func (o *ownFile) open() error {
	f, err := os.OpenFile(o.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot write the audit")
	}
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return errors.Join(fault.New(fault.Invalid, fault.Host, "cannot write the audit: %s is no file", o.path), err, f.Close())
	}
	if o.f != nil {
		_ = o.f.Close() // what was written is written
	}
	o.f, o.size = f, info.Size()
	return nil
}

// Write writes one line, in a new file when the old one is full or has moved.
func (o *ownFile) Write(line []byte) (int, error) {
	if o.size+int64(len(line)) > auditFile {
		if err := os.Rename(o.path, o.path+".0"); err == nil {
			o.moved.Store(true)
		}
	}
	if o.moved.Swap(false) {
		if err := o.open(); err != nil {
			o.failed = err
		}
	}
	n, err := o.f.Write(line)
	o.size += int64(n)
	if err != nil {
		o.failed = err
	}
	return n, err
}
