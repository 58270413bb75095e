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

// Entry is one call of a client: completed, failed or refused. A client that is not admitted has one, too.
type Entry struct {
	Principal Principal
	// API is "libvirt" or "lodge"; Call is the name of the call there.
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
	maxAuditQueue = 8192     // entries that wait to be written; more are counted as lost
	maxAuditText  = 256      // bytes of a name that a client gave
	maxAuditFile  = 64 << 20 // bytes of the audit's own file; one older file is kept
	// Refusals and failures of one client that each get a line, if less than a minute lies between them; more
	// are counted. They cost the client nothing, and would push older entries out of the file.
	maxAuditRefusals = 1000
)

// Audit writes one line for each change and each refusal. No caller waits for it: entries that do not fit into the
// queue are counted, and the count is written. A nil Audit writes nothing.
type Audit struct {
	log   *slog.Logger // the daemon's log
	file  *rotatedFile // nil: no file was asked for
	queue chan Entry
	lost  atomic.Int64
	// refused counts the refusals and failures of each client; unsaid counts its calls beyond the bound, which get no
	// line.
	refused lockout
	unsaid  atomic.Int64
	stop    chan struct{} // closed by Close
	done    chan struct{}
}

// OpenAudit writes into the daemon's log, and into the file at path unless path is empty.
func OpenAudit(path string, log *slog.Logger) (*Audit, error) {
	a := &Audit{log: log, queue: make(chan Entry, maxAuditQueue), stop: make(chan struct{}), done: make(chan struct{}), refused: lockout{limit: maxAuditRefusals}}
	if path != "" {
		a.file = &rotatedFile{path: path}
		if err := a.file.open(); err != nil {
			return nil, err
		}
	}
	go a.write()
	return a, nil
}

// refusalKinds are the errors of calls that ended before they did any work.
var refusalKinds = []fault.Kind{fault.Denied, fault.Invalid, fault.Unsupported, fault.NotFound, fault.Exists, fault.WrongState, fault.NoCapacity, fault.Busy}

// Note queues an entry. An allowed call that only reads is left out.
func (a *Audit) Note(e Entry) {
	if a == nil || e.Err == nil && !e.Permission.changes() && !e.Login {
		return
	}
	if e.Err != nil && !e.Principal.Trusted() && slices.Contains(refusalKinds, fault.Of(e.Err)) {
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
	if a != nil && a.file != nil {
		a.file.moved.Store(true)
	}
}

// Close writes the queued entries; later ones are lost.
func (a *Audit) Close() error {
	if a == nil {
		return nil
	}
	close(a.stop)
	<-a.done
	if a.file == nil {
		return nil
	}
	return a.file.f.Close()
}

func (a *Audit) write() {
	defer close(a.done)
	handlers := []slog.Handler{a.log.Handler()}
	if a.file != nil {
		handlers = append(handlers, slog.NewTextHandler(a.file, nil))
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
		if a.file != nil && a.file.failed != nil {
			a.log.Error("audit file not written; entries are in this log only", "error", a.file.failed)
			a.file.failed = nil
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

// attrs returns the attributes of the line. The handler quotes them, so a line break in a name starts no new line.
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

// result returns "ok" or the kind of the error. The text of the error is left out: it may quote a document of the
// client.
func (e Entry) result() string {
	if e.Err == nil {
		return "ok"
	}
	return fault.Of(e.Err).String()
}

// shortened cuts a text to maxAuditText bytes.
func shortened(text string) string {
	if len(text) > maxAuditText {
		return text[:maxAuditText] + "..." // a copy, so that the long text can be freed
	}
	return text
}

// rotatedFile is the audit's own file. Only the writing goroutine uses it, except for moved.
type rotatedFile struct {
	path   string
	f      *os.File
	size   int64
	moved  atomic.Bool // another program renamed the file, so it must be opened again
	failed error       // the error of the last write, until it was reported
}

func (o *rotatedFile) open() error {
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
func (o *rotatedFile) Write(line []byte) (int, error) {
	if o.size+int64(len(line)) > maxAuditFile {
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
