package machine

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
	"github.com/lodge-kvm/lodge/internal/guest/filelabel"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemuprocess"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/event"
)

// Instance is one running QEMU of a guest: its process, its monitor and the host resources that it holds. The
// loop owns it. Process and Dir never change; Session may be read from any goroutine.
type Instance struct {
	InstanceRecord
	Reg *Registry
	// Guest is the guest that runs. Nil: its definition is gone, or it is not adopted yet.
	Guest *Guest
	// Alone says that the guest's loop does not run yet.
	Alone bool
	// Ops are the operations in progress.
	Ops        *operation.Set[*Instance]
	Log        *slog.Logger
	Kernel     kernel.Root
	Dir        string
	Definition *domain.Definition
	Process    *qemuprocess.Process
	Session    atomic.Pointer[qmp.Session]
	// Events is the session's event queue, kept until the loop has read it to the end.
	Events     <-chan qmp.Event
	EventsSeen uint64 // the number of the newest event that the loop has read
	// Ended is the definition at the end of the process. Resources are released by it, beside the loop,
	// while the loop may still change Definition.
	Ended      *domain.Definition
	StayPaused bool // it was restored from an image of a guest that had shut down
	// SaveConsumed says that the store has recorded the saved image as used. Ran says that the guest ran although
	// its start failed: QEMU sent RESUME.
	SaveConsumed, Ran bool
	// behindhand is why the instance record on disk is out of date. Nil: it is current.
	behindhand atomic.Pointer[error]
	// Unstored is why the store lacks something that the run directory has. Nil: it lacks nothing.
	Unstored atomic.Pointer[error]
	// Settling says that the guest has ended, and its operations are settled while its resources are
	// released.
	Settling    atomic.Bool
	Noticed     bool // the loop has handled the end of the process
	NeedsResync bool // events were missed: QEMU must be asked for its state
	garbled     bool // QEMU sent an event that does not parse, and this was logged
	// Full and Unrestarted limit two log lines: that a disk is full, and that the machine is not restarted.
	Full, Unrestarted OncePerMinute
	// NewSessions hands the loop a new session after the old one was lost. It is unbuffered, so that no session is
	// left in it.
	NewSessions chan *qmp.Session
	// ReachedAt is when the present session began. Patience is the first delay before the next reconnect.
	// Both belong to the loop.
	ReachedAt time.Time
	Patience  time.Duration
	// Lost is when the monitor was lost. Nil: it is connected.
	Lost atomic.Pointer[time.Time]

	Nodes    nodes
	Releases []release
	// FailedReleases are the releases that failed, in the order of the attempts. GiveBackLater repeats them.
	FailedReleases []release
	// DropNodes says that the device nodes which the guest may open must be reduced.
	DropNodes bool
	// Dumping says that the memory is being dumped after a panic of the guest.
	Dumping bool
	// Dropped are the disks that the guest was started without.
	Dropped    []event.DomainMediaChange
	Relays     Relays
	Labels     *filelabel.Labels // the labels under SELinux or AppArmor; nil: none
	Consoles   Consoles
	Pictures   Pictures
	Agent      agentLine
	endOnce    sync.Once
	ends       chan struct{}         // closed when a stop was requested
	KillTimers [EndNow + 1]sync.Once // by mode: starts the timer that kills the process
	killOnce   sync.Once
	kill       chan struct{} // closed when the process must be killed at once
}

// OncePerMinute lets a log line through at most once a minute, because a compromised QEMU could trigger it at any
// rate.
type OncePerMinute struct{ last atomic.Pointer[time.Time] }

// Passes reports whether a line may be logged now.
func (s *OncePerMinute) Passes() bool {
	now, last := time.Now(), s.last.Load()
	return (last == nil || now.Sub(*last) >= time.Minute) && s.last.CompareAndSwap(last, &now)
}

// release gives one resource back to the host. what names it in logs.
type release struct {
	what string
	do   func(context.Context) error
}

// NewInstance makes an instance that has no process yet.
func NewInstance(rec InstanceRecord, dir string, root kernel.Root, log *slog.Logger) *Instance {
	return &Instance{InstanceRecord: rec, Nodes: nodes{last: rec.LastNode}, Dir: dir, Kernel: root, Log: log, ends: make(chan struct{}), kill: make(chan struct{}), NewSessions: make(chan *qmp.Session)}
}

// MonitorSocket is the file name of the monitor's socket in the run directory.
const MonitorSocket = "monitor.sock"

// MonitorPath returns the path of the guest's monitor socket.
func (r *Instance) MonitorPath() string { return filepath.Join(r.Dir, MonitorSocket) }

// Hold pushes a release. Releases run in reverse order.
func (r *Instance) Hold(what string, do func(context.Context) error) {
	r.Releases = append(r.Releases, release{what, do})
}

// TakeNIC removes a NIC from the instance and returns it with its release, which the caller must run.
func (r *Instance) TakeNIC(alias string) (*HeldNIC, func(context.Context) error) {
	for i, n := range r.NICs {
		if n.Alias != alias {
			continue
		}
		r.NICs = append(r.NICs[:i:i], r.NICs[i+1:]...)
		return &n, r.TakeRelease(n.What())
	}
	return nil, nil
}

// TakeRelease removes the release of that name and returns it to the caller, who must run it. Nil: there is
// none.
func (r *Instance) TakeRelease(what string) func(context.Context) error {
	for i, held := range r.Releases {
		if held.what == what {
			r.Releases = append(r.Releases[:i:i], r.Releases[i+1:]...)
			return held.do
		}
	}
	return nil
}

// LastDefinition returns the definition that names the guest's resources for their release.
func (r *Instance) LastDefinition() *domain.Definition {
	if r.Ended == nil { // the loop never owned it
		return r.Definition
	}
	return r.Ended
}

// ReleaseAll runs all releases, the newest first, and continues after a failure. Failed releases move to
// FailedReleases.
func (r *Instance) ReleaseAll(ctx context.Context) error {
	var failed []error
	if err := r.endOperations(ctx); err != nil {
		r.Log.Error("cannot settle an operation of an ended guest", "error", err)
		failed = append(failed, err)
		r.FailedReleases = append(r.FailedReleases, release{"operations", r.endOperations})
	}
	for len(r.Releases) > 0 {
		last := r.Releases[len(r.Releases)-1]
		r.Releases = r.Releases[:len(r.Releases)-1]
		failpoint.Reach("release.step")
		if err := last.do(ctx); err != nil {
			r.Log.Error("cannot release a resource of the guest", "what", last.what, "error", err)
			failed = append(failed, err)
			r.FailedReleases = append(r.FailedReleases, last)
		}
	}
	failpoint.Reach("release.done")
	return errors.Join(failed...)
}

// RemoveDir removes the run directory. A client may change the guest as it ends, and the loop then writes the
// record during the removal. Such a new file is removed in another pass, of at most eight.
func (r *Instance) RemoveDir(context.Context) (err error) {
	if cause := r.Unstored.Load(); cause != nil {
		return *cause
	}
	for range 8 {
		if err = RemoveTree(r.Dir); !errors.Is(err, unix.ENOTEMPTY) {
			return err
		}
	}
	return err
}

// Connect makes s the session of the instance.
func (r *Instance) Connect(s *qmp.Session) {
	r.Session.Store(s)
	r.Events, r.EventsSeen, r.ReachedAt = s.Events(), 0, time.Now()
	r.Lost.Store(nil)
}

// Monitor returns the session, or an error that says since when the monitor is lost or silent.
func (r *Instance) Monitor() (*qmp.Session, error) {
	if r == nil {
		return nil, fault.New(fault.WrongState, fault.Domain, "domain is not running")
	}
	if since, _ := r.stuck(); !since.IsZero() {
		return nil, fault.New(fault.Unresponsive, fault.Monitor,
			"the monitor of domain %q was lost %v ago while QEMU (process %d) still runs; Lodge keeps trying to reconnect",
			r.Name, time.Since(since).Round(time.Second), r.PID)
	}
	s := r.Session.Load()
	if command, since := s.LongestUnanswered(); command != "" && time.Since(since) >= ModifyLimit {
		// Other callers have waited for the longest time that any caller waits, without an answer.
		return nil, fault.New(fault.Timeout, fault.Monitor, "QEMU (process %d) has not answered %s for %v",
			r.PID, command, time.Since(since).Round(time.Millisecond))
	}
	return s, nil
}

// MonitorLost records that the monitor is lost from now on.
func (r *Instance) MonitorLost() {
	now := time.Now()
	r.Lost.Store(&now)
}

// stuck returns since when the monitor is lost, and the missing part. Zero: it is connected.
func (r *Instance) stuck() (since time.Time, on string) {
	if at := r.Lost.Load(); at != nil {
		return *at, "a connection to its monitor"
	}
	return time.Time{}, ""
}

// QEMUEvents gives QEMU's events in their order; nil: there is no QEMU.
func (r *Instance) QEMUEvents() <-chan qmp.Event {
	if r == nil {
		return nil
	}
	return r.Events
}

// Exited returns a channel that is closed when the process has ended. It is nil once the loop has noticed
// that.
func (r *Instance) Exited() <-chan struct{} {
	if r == nil || r.Noticed {
		return nil
	}
	return r.Process.Exited()
}

// Reconnected gives a session that replaces a lost one.
func (r *Instance) Reconnected() <-chan *qmp.Session {
	if r == nil {
		return nil
	}
	return r.NewSessions
}

// Gone reports whether the process has ended.
func (r *Instance) Gone() bool {
	if r == nil || r.Process == nil {
		return false
	}
	select {
	case <-r.Process.Exited():
		return true
	default:
		return false
	}
}

// Ending reports whether the process has ended or was asked to end.
func (r *Instance) Ending() bool {
	if r == nil {
		return false
	}
	select {
	case <-r.ends:
		return true
	default:
		return r.Gone()
	}
}

// endMode says how hard the process is made to end.
type endMode int

const (
	// endPolitely only asks: QEMU flushes its disks, however long that takes.
	endPolitely endMode = iota
	// EndGracefully asks, and kills a process that has not ended within gracefulPatience.
	EndGracefully
	// EndNow asks, and kills after nowPatience. A stopped process (SIGSTOP) cannot react and is killed at
	// once.
	EndNow
)

const (
	gracefulPatience = 30 * time.Second
	nowPatience      = 10 * time.Second
)

// End asks the process to end, and kills it as mode says.
func (r *Instance) End(mode endMode) {
	r.endOnce.Do(func() {
		close(r.ends)
		r.ask()
		go r.askAgain()
	})
	switch mode {
	case endPolitely:
	case EndGracefully:
		r.KillTimers[mode].Do(func() { go r.killAfter(gracefulPatience) })
	case EndNow:
		if p, err := r.Kernel.Process(r.PID); err == nil && (p.State == 'T' || p.State == 't') {
			r.KillNow() // a stopped process does not react to SIGTERM
			return
		}
		r.KillTimers[mode].Do(func() { go r.killAfter(nowPatience) })
	}
}

// ask sends SIGTERM, on which QEMU flushes its disks and ends. It reports whether there is still a process
// to signal.
func (r *Instance) ask() bool {
	err := r.Process.Signal(syscall.SIGTERM)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, os.ErrClosed) {
		return false
	}
	if err != nil {
		r.Log.Warn("cannot signal QEMU", "pid", r.PID, "error", err)
	}
	return true
}

// firstNudge is the delay before the signal is repeated; each further delay is twice as long. A QEMU with
// nothing to flush ends within milliseconds.
const firstNudge = 50 * time.Millisecond

// askAgain repeats the signal until the process has ended, is killed or is left to the next daemon. QEMU
// 7.2 sometimes loses the wake-up of a signal that arrives between commands, and then sleeps on.
func (r *Instance) askAgain() {
	again := time.NewTimer(firstNudge)
	defer again.Stop()
	for wait := 2 * firstNudge; ; wait *= 2 {
		select {
		case <-r.Process.Exited():
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
func (r *Instance) killAfter(patience time.Duration) {
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case <-r.Process.Exited():
	case <-r.kill:
	case <-late.C:
		r.KillNow()
	}
}

// KillNow kills the process with SIGKILL, once.
func (r *Instance) KillNow() {
	r.killOnce.Do(func() {
		close(r.kill)
		if err := r.Process.Kill(); err != nil && !errors.Is(err, os.ErrClosed) {
			r.Log.Error("cannot kill QEMU", "pid", r.PID, "error", err)
		}
	})
}

// LastEvents is how long the release waits for QEMU's last events after its process has ended.
const LastEvents = time.Second
