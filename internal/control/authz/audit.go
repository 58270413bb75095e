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

// Entry is one action of a client: done, tried, or refused at the door.
type Entry struct {
	Principal Principal
	// API is the API of the call, Call the name of the call there.
	API, Call  string
	Permission Permission
	Resource   Resource
	Rule       string // that allowed the call; empty: none was needed
	Err        error
	// Login says that the client was admitted. It is noted although it changes nothing.
	Login bool
	Took  time.Duration
}

// Bounds of the audit.
const (
	auditQueue = 8192     // entries that wait to be written; more are counted as lost
	auditText  = 256      // bytes of a name that a client gave
	auditFile  = 64 << 20 // bytes of the audit's own file; one older file is kept
	// Refusals and failures of one client that each get a line, if less than a minute lies between them; more
	// are counted. They cost the client nothing, and would push older entries out of the file.
	auditRefusals = 1000
)

// Audit writes one line for each change and each refusal. No caller waits for it: entries beyond the queue are
// counted, and the count is written. A nil audit writes nothing.
type Audit struct {
	log   *slog.Logger // the daemon's log
	own   *ownFile     // nil: no file was asked for
	queue chan Entry
	lost  atomic.Int64
	// refused are the clients with repeated refusals or failures; unsaid counts their calls without a line.
	refused lockout
	unsaid  atomic.Int64
	stop    chan struct{} // closed by Close
	done    chan struct{}
}

// OpenAudit writes into the daemon's log, and into a file if there is a path.
func OpenAudit(path string, log *slog.Logger) (*Audit, error) {
	a := &Audit{log: log, queue: make(chan Entry, auditQueue), stop: make(chan struct{}), done: make(chan struct{}), refused: lockout{limit: auditRefusals}}
	if path != "" {
		a.own = &ownFile{path: path}
		if err := a.own.open(); err != nil {
			return nil, err
		}
	}
	go a.write()
	return a, nil
}

// freeKinds are the kinds of errors of calls that were refused before they did any work.
var freeKinds = []fault.Kind{fault.Denied, fault.Invalid, fault.Unsupported, fault.NotFound, fault.Exists, fault.WrongState, fault.NoCapacity, fault.Busy}

// Note queues an entry. An allowed call that only reads is left out.
func (a *Audit) Note(e Entry) {
	if a == nil || e.Err == nil && !e.Permission.changes() && !e.Login {
		return
	}
	if e.Err != nil && !e.Principal.Trusted() && slices.Contains(freeKinds, fault.Of(e.Err)) {
		who := e.Principal.String()
		if !e.Principal.Local && e.Principal.Subject == "" {
			who = origin(e.Principal.Address)
		}
		if a.refused.isLocked(who) {
			a.unsaid.Add(1)
			return
		}
		a.refused.fail(who)
	}
	e.Resource.Name, e.Resource.Part = shortened(e.Resource.Name), shortened(e.Resource.Part) // while it waits
	select {
	case a.queue <- e:
	default:
		a.lost.Add(1)
	}
}

// Reopen opens the file again after it was moved away, for log rotation.
func (a *Audit) Reopen() {
	if a != nil && a.own != nil {
		a.own.moved.Store(true)
	}
}

// Close writes the queued entries; later ones are lost.
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
			a.log.Error("audit file not written; entries are in this log only", "error", a.own.failed)
			a.own.failed = nil
		}
	}
}

// writeCounts writes how many entries have no line.
func (a *Audit) writeCounts(out *slog.Logger) {
	if lost := a.lost.Swap(0); lost > 0 {
		out.Warn("audit", "lost", lost)
	}
	if unsaid := a.unsaid.Swap(0); unsaid > 0 {
		out.Warn("audit", "unsaid", unsaid)
	}
}

// attrs are the attributes of the line. The handler quotes them, so a name cannot start a line of its own.
func (e Entry) attrs() []slog.Attr {
	attrs := []slog.Attr{slog.String("api", e.API)}
	if e.Principal.Local {
		attrs = append(attrs, slog.Uint64("uid", uint64(e.Principal.Peer.UID)), slog.Int("pid", int(e.Principal.Peer.PID)))
	} else {
		attrs = append(attrs, slog.String("dn", shortened(e.Principal.Subject)), slog.String("address", e.Principal.Address))
	}
	attrs = append(attrs, slog.String("call", shortened(e.Call)), slog.String("verb", e.Permission.String()))
	if o := e.Resource.String(); o != "" {
		attrs = append(attrs, slog.String("object", shortened(o)))
	}
	if e.Rule != "" {
		attrs = append(attrs, slog.String("rule", shortened(e.Rule)))
	}
	attrs = append(attrs, slog.String("result", e.result()), slog.Duration("took", e.Took))
	return attrs
}

// result is the kind of the error without its text, which may quote input of the client.
func (e Entry) result() string {
	if e.Err == nil {
		return "ok"
	}
	return fault.Of(e.Err).String()
}

func shortened(text string) string {
	if len(text) > auditText {
		return text[:auditText] + "..." // a copy, so that the long text can be freed
	}
	return text
}

// ownFile is the audit's own file. Only the writing goroutine uses it.
type ownFile struct {
	path   string
	f      *os.File
	size   int64
	moved  atomic.Bool
	failed error // the error of the last write, until it was reported
}

func (o *ownFile) open() error {
	f, err := os.OpenFile(o.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot write the audit")
	}
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return errors.Join(fault.New(fault.Invalid, fault.Host, "cannot write the audit: %s is not a regular file", o.path), err, f.Close())
	}
	if o.f != nil {
		_ = o.f.Close() // written lines are already in the file
	}
	o.f, o.size = f, info.Size()
	return nil
}

// Write writes one line, in a new file if the old one is full or was moved.
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
