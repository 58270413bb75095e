package guest

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemuprocess"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/event"
)

// run is a running guest: its process, its monitor and what it holds of the
// host. The loop owns it; def, process and dir never change, and session may be
// read from anywhere.
type run struct {
	runRecord
	reg *Registry
	// guest is whose run it is; nil: the definition has gone, or it is not adopted yet.
	guest *Guest
	// alone says that no loop of the guest's runs yet.
	alone bool
	// ops are the operations that are under way.
	ops     *operation.Set[*run]
	log     *slog.Logger
	kernel  kernel.Root
	dir     string
	def     *domain.Definition
	process *qemuprocess.Process
	session atomic.Pointer[qmp.Session]
	// events is the session's, until the loop has read it to its end.
	events <-chan qmp.Event
	seen   uint64 // the number of the newest event that the loop has read
	// ended is the definition as the end of the process found it: what is given back
	// beside the loop is told by it, while the loop may go on to change def.
	ended *domain.Definition
	kept  bool // it was restored as it had ended by its own doing
	// spent says that the store has been told that the image which it came from is used up, ran that it
	// ran, by QEMU's own word, though its start failed.
	spent, ran bool
	// behindhand is why the run record does not say yet all that is so; nil: it does.
	behindhand atomic.Pointer[error]
	// unstored is why the store does not say yet what the directory does; nil: it does.
	unstored atomic.Pointer[error]
	// settling says that the guest has ended, and its operations are settled as what it held is given back.
	settling atomic.Bool
	noticed  bool // the loop knows that the process has ended
	behind   bool // events were missed: QEMU is to be asked for its state
	garbled  bool // QEMU sent an event that does not parse, and it was logged
	// full and unrestarted let it be logged that a disk is full, and that the machine is not restarted.
	full, unrestarted seldom
	// back hands over a new session after the old one was lost. It holds none, so
	// that none is forgotten in it.
	back chan *qmp.Session
	// reached is when the present session began, and patience how long the next one is
	// waited for at first; both the loop's.
	reached  time.Time
	patience time.Duration
	// lost is when the monitor was lost; nil: it is there.
	lost atomic.Pointer[time.Time]

	nodes    nodes
	releases []release
	// withheld are those that failed, in their order; who has them done gives them to holdOn.
	withheld []release
	// shorten says that the list of nodes that the guest may open is to lose some.
	shorten bool
	// dumping says that the memory is being dumped because the guest has panicked.
	dumping bool
	// dropped are the disks that the guest started without.
	dropped  []event.DomainMediaChange
	relays   relays
	labels   *labels // what it is called by mandatory access control; nil: nothing
	consoles consoles
	pictures pictures
	agent    agentLine
	endOnce  sync.Once
	ends     chan struct{}         // closed when the end has been asked for
	late     [endNow + 1]sync.Once // for each mode, the wait after which it is killed
	killOnce sync.Once
	kill     chan struct{} // closed when the process must go at once
}

// seldom lets a line of the log pass once a minute that QEMU could have written as often as it likes.
type seldom struct{ last atomic.Pointer[time.Time] }

func (s *seldom) passes() bool {
	now, last := time.Now(), s.last.Load()
	return (last == nil || now.Sub(*last) >= time.Minute) && s.last.CompareAndSwap(last, &now)
}

// release gives one thing back to the host.
type release struct {
	what string
	do   func(context.Context) error
}

func newRun(rec runRecord, dir string, root kernel.Root, log *slog.Logger) *run {
	return &run{runRecord: rec, nodes: nodes{last: rec.LastNode}, dir: dir, kernel: root, log: log, ends: make(chan struct{}), kill: make(chan struct{}), back: make(chan *qmp.Session)}
}

// monitorSocket is where a QEMU serves its monitor, in its directory.
const monitorSocket = "monitor.sock"

// monitorPath is where the guest's QEMU serves its monitor.
func (r *run) monitorPath() string { return filepath.Join(r.dir, monitorSocket) }

// hold remembers how to give something back. Things are given back in reverse.
func (r *run) hold(what string, do func(context.Context) error) {
	r.releases = append(r.releases, release{what, do})
}

// takeNIC gives the release of a NIC's interface to the caller.
func (r *run) takeNIC(alias string) (*heldNIC, func(context.Context) error) {
	for i, n := range r.NICs {
		if n.Alias != alias {
			continue
		}
		r.NICs = append(r.NICs[:i:i], r.NICs[i+1:]...)
		return &n, r.takeRelease(n.what())
	}
	return nil, nil
}

// takeRelease gives a release to the caller, who is to do it.
func (r *run) takeRelease(what string) func(context.Context) error {
	for i, held := range r.releases {
		if held.what == what {
			r.releases = append(r.releases[:i:i], r.releases[i+1:]...)
			return held.do
		}
	}
	return nil
}

// last is the definition by which is given back what the guest held.
func (r *run) last() *domain.Definition {
	if r.ended == nil { // it never became the loop's
		return r.def
	}
	return r.ended
}

// releaseAll gives everything back, going on after failures.
func (r *run) releaseAll(ctx context.Context) error {
	var failed []error
	if err := r.endOperations(ctx); err != nil {
		r.log.Error("an operation of a guest that has ended is not settled", "error", err)
		failed = append(failed, err)
		r.withheld = append(r.withheld, release{"operations", r.endOperations})
	}
	for len(r.releases) > 0 {
		last := r.releases[len(r.releases)-1]
		r.releases = r.releases[:len(r.releases)-1]
		failpoint.Reach("release.step")
		if err := last.do(ctx); err != nil {
			r.log.Error("cannot release what the guest held", "what", last.what, "error", err)
			failed = append(failed, err)
			r.withheld = append(r.withheld, last)
		}
	}
	failpoint.Reach("release.done")
	return errors.Join(failed...)
}

// removeDir removes the run directory. The loop may keep the record amid that, as for
// who changes the guest as it ends: what it adds is removed in another go.
func (r *run) removeDir(context.Context) (err error) {
	if cause := r.unstored.Load(); cause != nil {
		return *cause
	}
	for range 8 {
		if err = removeTree(r.dir); !errors.Is(err, unix.ENOTEMPTY) {
			return err
		}
	}
	return err
}

// connect makes s the run's session.
func (r *run) connect(s *qmp.Session) {
	r.session.Store(s)
	r.events, r.seen, r.reached = s.Events(), 0, time.Now()
	r.lost.Store(nil)
}

// leave lets go of a guest that runs on: the monitor takes one daemon at a time.
func (r *run) leave() {
	r.relays.stopAll()
	r.agent.close()
	if s := r.session.Load(); s != nil {
		s.Close()
	}
	r.process.Release()
}

// monitor gives the session, or says since when there is none.
func (r *run) monitor() (*qmp.Session, error) {
	if r == nil {
		return nil, fault.New(fault.WrongState, fault.Domain, "domain is not running")
	}
	if since, _ := r.stuck(); !since.IsZero() {
		return nil, fault.New(fault.Unresponsive, fault.Monitor,
			"the monitor of domain %q was lost %v ago while QEMU (process %d) lives on; Lodge keeps trying to reach it",
			r.Name, time.Since(since).Round(time.Second), r.PID)
	}
	s := r.session.Load()
	if command, since := s.Silent(); command != "" && time.Since(since) >= modifyLimit {
		// Others have waited as long as anybody does, and in vain.
		return nil, fault.New(fault.Timeout, fault.Monitor, "QEMU (process %d) has not answered %s for %v",
			r.PID, command, time.Since(since).Round(time.Millisecond))
	}
	return s, nil
}

// lose notes that the monitor is lost from now on.
func (r *run) lose() {
	now := time.Now()
	r.lost.Store(&now)
}

func (r *run) stuck() (since time.Time, on string) {
	if at := r.lost.Load(); at != nil {
		return *at, "a connection to its monitor"
	}
	return time.Time{}, ""
}

func (r *run) qemuEvents() <-chan qmp.Event {
	if r == nil {
		return nil
	}
	return r.events
}

// exited fires when the process is gone; never once the loop has noticed.
func (r *run) exited() <-chan struct{} {
	if r == nil || r.noticed {
		return nil
	}
	return r.process.Exited()
}

func (r *run) reconnected() <-chan *qmp.Session {
	if r == nil {
		return nil
	}
	return r.back
}

// gone reports whether the process has ended.
func (r *run) gone() bool {
	if r == nil || r.process == nil {
		return false
	}
	select {
	case <-r.process.Exited():
		return true
	default:
		return false
	}
}

// ending reports whether the process has ended or was asked to.
func (r *run) ending() bool {
	if r == nil {
		return false
	}
	select {
	case <-r.ends:
		return true
	default:
		return r.gone()
	}
}

// ending modes: how hard the process is asked.
type endMode int

const (
	// endPolitely only asks: QEMU writes out what it holds, however long it takes.
	endPolitely endMode = iota
	// endGracefully asks, and kills what does not follow in gracefulPatience.
	endGracefully
	// endNow is endGracefully with less patience, and with none at all for a
	// process that is stopped and cannot hear.
	endNow
)

const (
	gracefulPatience = 30 * time.Second
	nowPatience      = 10 * time.Second
)

// end asks the process to end, and sees to it that it does.
func (r *run) end(mode endMode) {
	r.endOnce.Do(func() {
		close(r.ends)
		r.ask()
		go r.askAgain()
	})
	switch mode {
	case endPolitely:
	case endGracefully:
		r.late[mode].Do(func() { go r.killAfter(gracefulPatience) })
	case endNow:
		if p, err := r.kernel.Process(r.PID); err == nil && (p.State == 'T' || p.State == 't') {
			r.killNow() // stopped: it would not hear
			return
		}
		r.late[mode].Do(func() { go r.killAfter(nowPatience) })
	}
}

// ask asks QEMU to end, by the signal that makes it write out what it holds. It
// says whether there is anybody to ask.
func (r *run) ask() bool {
	err := r.process.Signal(syscall.SIGTERM)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, os.ErrClosed) {
		return false
	}
	if err != nil {
		r.log.Warn("cannot signal QEMU", "pid", r.PID, "error", err)
	}
	return true
}

// firstNudge is how long QEMU, which ends within milliseconds when it has nothing
// to write, is let alone before it is asked again; then twice as long, and so on.
const firstNudge = 50 * time.Millisecond

// askAgain asks until the process has ended, is killed or is left to another
// daemon: QEMU 7.2 sometimes loses the wake-up of a signal that comes amid
// commands, and then sleeps on.
func (r *run) askAgain() {
	again := time.NewTimer(firstNudge)
	defer again.Stop()
	for wait := 2 * firstNudge; ; wait *= 2 {
		select {
		case <-r.process.Exited():
			return
		case <-r.kill:
			return
		case <-again.C:
		}
		if !r.ask() {
			return
		}
		again.Reset(wait)
	}
}

// killAfter kills the process unless it ends within the patience.
func (r *run) killAfter(patience time.Duration) {
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case <-r.process.Exited():
	case <-r.kill:
	case <-late.C:
		r.killNow()
	}
}

func (r *run) killNow() {
	r.killOnce.Do(func() {
		close(r.kill)
		if err := r.process.Kill(); err != nil && !errors.Is(err, os.ErrClosed) {
			r.log.Error("cannot kill QEMU", "pid", r.PID, "error", err)
		}
	})
}
