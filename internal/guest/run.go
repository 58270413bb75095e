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

// run is one running QEMU of a guest: its process, its monitor and the host resources that it holds. The
// loop owns it. process and dir never change; session may be read from any goroutine.
type run struct {
	runRecord
	reg *Registry
	// guest is the guest that runs. Nil: its definition is gone, or it is not adopted yet.
	guest *Guest
	// alone says that the guest's loop does not run yet.
	alone bool
	// ops are the operations in progress.
	ops     *operation.Set[*run]
	log     *slog.Logger
	kernel  kernel.Root
	dir     string
	def     *domain.Definition
	process *qemuprocess.Process
	session atomic.Pointer[qmp.Session]
	// events is the session's event queue, kept until the loop has read it to the end.
	events <-chan qmp.Event
	seen   uint64 // the number of the newest event that the loop has read
	// ended is the definition at the end of the process. Resources are released by it, beside the loop,
	// while the loop may still change def.
	ended *domain.Definition
	kept  bool // it was restored from an image of a guest that had shut down
	// spent says that the store has recorded the saved image as used. ran says that the guest ran although
	// its start failed: QEMU sent RESUME.
	spent, ran bool
	// behindhand is why the run record on disk is out of date. Nil: it is current.
	behindhand atomic.Pointer[error]
	// unstored is why the store lacks something that the run directory has. Nil: it lacks nothing.
	unstored atomic.Pointer[error]
	// settling says that the guest has ended, and its operations are settled while its resources are
	// released.
	settling atomic.Bool
	noticed  bool // the loop has handled the end of the process
	behind   bool // events were missed: QEMU must be asked for its state
	garbled  bool // QEMU sent an event that does not parse, and this was logged
	// full and unrestarted limit two log lines: that a disk is full, and that the machine is not restarted.
	full, unrestarted seldom
	// back hands the loop a new session after the old one was lost. It is unbuffered, so that no session is
	// left in it.
	back chan *qmp.Session
	// reached is when the present session began. patience is the first delay before the next reconnect.
	// Both belong to the loop.
	reached  time.Time
	patience time.Duration
	// lost is when the monitor was lost. Nil: it is connected.
	lost atomic.Pointer[time.Time]

	nodes    nodes
	releases []release
	// withheld are the releases that failed, in order. To repeat them, pass them to holdOn.
	withheld []release
	// shorten says that the device nodes which the guest may open must be reduced.
	shorten bool
	// dumping says that the memory is being dumped after a panic of the guest.
	dumping bool
	// dropped are the disks that the guest was started without.
	dropped  []event.DomainMediaChange
	relays   relays
	labels   *labels // the labels under SELinux or AppArmor; nil: none
	consoles consoles
	pictures pictures
	agent    agentLine
	endOnce  sync.Once
	ends     chan struct{}         // closed when a stop was requested
	late     [endNow + 1]sync.Once // by mode: starts the timer that kills the process
	killOnce sync.Once
	kill     chan struct{} // closed when the process must be killed at once
}

// seldom lets a log line through at most once a minute, because a compromised QEMU could trigger it at any
// rate.
type seldom struct{ last atomic.Pointer[time.Time] }

// passes reports whether a line may be logged now.
func (s *seldom) passes() bool {
	now, last := time.Now(), s.last.Load()
	return (last == nil || now.Sub(*last) >= time.Minute) && s.last.CompareAndSwap(last, &now)
}

// release gives one resource back to the host. what names it in logs.
type release struct {
	what string
	do   func(context.Context) error
}

func newRun(rec runRecord, dir string, root kernel.Root, log *slog.Logger) *run {
	return &run{runRecord: rec, nodes: nodes{last: rec.LastNode}, dir: dir, kernel: root, log: log, ends: make(chan struct{}), kill: make(chan struct{}), back: make(chan *qmp.Session)}
}

// monitorSocket is the file name of the monitor's socket in the run directory.
const monitorSocket = "monitor.sock"

// monitorPath returns the path of the guest's monitor socket.
func (r *run) monitorPath() string { return filepath.Join(r.dir, monitorSocket) }

// hold pushes a release. Releases run in reverse order.
func (r *run) hold(what string, do func(context.Context) error) {
	r.releases = append(r.releases, release{what, do})
}

// takeNIC removes a NIC from the run and returns it with its release, which the caller must run.
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

// takeRelease removes the release of that name and returns it to the caller, who must run it. Nil: there is
// none.
func (r *run) takeRelease(what string) func(context.Context) error {
	for i, held := range r.releases {
		if held.what == what {
			r.releases = append(r.releases[:i:i], r.releases[i+1:]...)
			return held.do
		}
	}
	return nil
}

// last returns the definition that names the guest's resources for their release.
func (r *run) last() *domain.Definition {
	if r.ended == nil { // the loop never owned it
		return r.def
	}
	return r.ended
}

// releaseAll runs all releases and goes on after a failure. Failed releases move to withheld.
func (r *run) releaseAll(ctx context.Context) error {
	var failed []error
	if err := r.endOperations(ctx); err != nil {
		r.log.Error("cannot settle an operation of an ended guest", "error", err)
		failed = append(failed, err)
		r.withheld = append(r.withheld, release{"operations", r.endOperations})
	}
	for len(r.releases) > 0 {
		last := r.releases[len(r.releases)-1]
		r.releases = r.releases[:len(r.releases)-1]
		failpoint.Reach("release.step")
		if err := last.do(ctx); err != nil {
			r.log.Error("cannot release a resource of the guest", "what", last.what, "error", err)
			failed = append(failed, err)
			r.withheld = append(r.withheld, last)
		}
	}
	failpoint.Reach("release.done")
	return errors.Join(failed...)
}

// removeDir removes the run directory. The loop may write the record during this, for a client that changes
// the guest as it ends. Such a new file is removed in another pass, of at most eight.
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

// connect makes s the session of the run.
func (r *run) connect(s *qmp.Session) {
	r.session.Store(s)
	r.events, r.seen, r.reached = s.Events(), 0, time.Now()
	r.lost.Store(nil)
}

// leave disconnects from a guest that runs on, so that the next daemon can connect: the monitor accepts one
// client at a time.
func (r *run) leave() {
	r.relays.stopAll()
	r.agent.close()
	if s := r.session.Load(); s != nil {
		s.Close()
	}
	r.process.Release()
}

// monitor returns the session, or an error that says since when the monitor is lost or silent.
func (r *run) monitor() (*qmp.Session, error) {
	if r == nil {
		return nil, fault.New(fault.WrongState, fault.Domain, "domain is not running")
	}
	if since, _ := r.stuck(); !since.IsZero() {
		return nil, fault.New(fault.Unresponsive, fault.Monitor,
			"the monitor of domain %q was lost %v ago while QEMU (process %d) still runs; Lodge keeps trying to reconnect",
			r.Name, time.Since(since).Round(time.Second), r.PID)
	}
	s := r.session.Load()
	if command, since := s.Silent(); command != "" && time.Since(since) >= modifyLimit {
		// Other callers have waited for the longest time that any caller waits, without an answer.
		return nil, fault.New(fault.Timeout, fault.Monitor, "QEMU (process %d) has not answered %s for %v",
			r.PID, command, time.Since(since).Round(time.Millisecond))
	}
	return s, nil
}

// lose records that the monitor is lost from now on.
func (r *run) lose() {
	now := time.Now()
	r.lost.Store(&now)
}

// stuck returns since when the monitor is lost, and the missing part. Zero: it is connected.
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

// exited returns a channel that is closed when the process has ended. It is nil once the loop has noticed
// that.
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

// ending reports whether the process has ended or was asked to end.
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

// endMode says how hard the process is made to end.
type endMode int

const (
	// endPolitely only asks: QEMU flushes its disks, however long that takes.
	endPolitely endMode = iota
	// endGracefully asks, and kills a process that has not ended within gracefulPatience.
	endGracefully
	// endNow asks, and kills after nowPatience. A stopped process (SIGSTOP) cannot react and is killed at
	// once.
	endNow
)

const (
	gracefulPatience = 30 * time.Second
	nowPatience      = 10 * time.Second
)

// end asks the process to end, and kills it as mode says.
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
			r.killNow() // a stopped process does not react to SIGTERM
			return
		}
		r.late[mode].Do(func() { go r.killAfter(nowPatience) })
	}
}

// ask sends SIGTERM, on which QEMU flushes its disks and ends. It reports whether there is still a process
// to signal.
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

// firstNudge is the delay before the signal is repeated; each further delay is twice as long. A QEMU with
// nothing to flush ends within milliseconds.
const firstNudge = 50 * time.Millisecond

// askAgain repeats the signal until the process has ended, is killed or is left to the next daemon. QEMU
// 7.2 sometimes loses the wake-up of a signal that arrives between commands, and then sleeps on.
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

// killAfter kills the process if it has not ended after patience.
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

// killNow kills the process with SIGKILL, once.
func (r *run) killNow() {
	r.killOnce.Do(func() {
		close(r.kill)
		if err := r.process.Kill(); err != nil && !errors.Is(err, os.ErrClosed) {
			r.log.Error("cannot kill QEMU", "pid", r.PID, "error", err)
		}
	})
}
