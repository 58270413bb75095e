package lifecycle

import (
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/event"
)

// Fact is something that happened to a guest, or was begun with it.
type Fact interface{ fact() }

// Started says that the guest's machine is complete; Reason is booted or
// restored. It runs, unless the start asked for a paused guest.
type Started struct {
	Reason domain.Reason
	Paused bool
}

// Pausing announces why the next Stopped happens.
type Pausing struct{ Reason domain.Reason }

// Resuming announces why the next Resumed happens.
type Resuming struct{ Reason domain.Reason }

// Stopped says that QEMU stopped the vCPUs.
type Stopped struct{}

// Resumed says that QEMU resumed the vCPUs.
type Resumed struct{}

// Failing announces a disk error or watchdog that stops the processors.
type Failing struct{ Reason domain.Reason }

// Ending announces why the process is about to end.
type Ending struct{ Reason domain.Reason }

// RebootAsked says that the next power-off is meant to be a reboot.
type RebootAsked struct{}

// ShutdownAsked cancels RebootAsked: the next power-off is an end.
type ShutdownAsked struct{}

// PoweredDown says that the guest (or the host, for ByHost) turned the machine
// off. ByReset means that it was a reset that the definition treats as an end.
type PoweredDown struct{ ByHost, ByReset bool }

// WasReset says that the machine was reset, by the guest or by request.
type WasReset struct{}

// Panicked says that the guest reported its panic.
type Panicked struct{}

// Dumped says that the memory of a panicked guest was dumped, or the dump
// failed.
type Dumped struct{}

// Slept says that the guest suspended itself to memory.
type Slept struct{}

// Woke says that the guest woke from that.
type Woke struct{}

// Ended says that the process has ended.
type Ended struct{}

// Found is the state in which a restarted daemon found the guest.
type Found struct {
	Phase  domain.State
	Reason domain.Reason
}

func (Started) fact()       {}
func (Pausing) fact()       {}
func (Resuming) fact()      {}
func (Stopped) fact()       {}
func (Resumed) fact()       {}
func (Failing) fact()       {}
func (Ending) fact()        {}
func (RebootAsked) fact()   {}
func (ShutdownAsked) fact() {}
func (PoweredDown) fact()   {}
func (WasReset) fact()      {}
func (Panicked) fact()      {}
func (Dumped) fact()        {}
func (Slept) fact()         {}
func (Woke) fact()          {}
func (Ended) fact()         {}
func (Found) fact()         {}

// Step returns the state after a fact, and the effects to carry out, in order.
// Facts about a guest that has already ended change nothing.
func Step(s State, f Fact) (State, []Effect) {
	switch f := f.(type) {
	case Started:
		return started(s, f)
	case Found:
		return found(s, f)
	}
	if !s.Phase.Active() {
		return s, nil
	}
	switch f := f.(type) {
	case Pausing:
		s.PauseFor = f.Reason
	case Resuming:
		s.ResumeFor = f.Reason
	case Failing:
		s.PauseFor = f.Reason
	case Ending:
		s.EndFor = f.Reason
	case RebootAsked:
		s.Rebooting = true
	case ShutdownAsked:
		s.Rebooting = false
	case Stopped:
		return stopped(s)
	case Resumed:
		return resumed(s)
	case PoweredDown:
		return poweredDown(s, f)
	case WasReset:
		return s, []Effect{AnnounceReboot{}}
	case Panicked:
		return panicked(s)
	case Dumped:
		return dumped(s)
	case Slept:
		s.Phase, s.Reason = domain.PMSuspended, domain.ReasonUnknown
		return s, []Effect{Announce{event.PMSuspended, event.DetailMemory}}
	case Woke:
		return woke(s)
	case Ended:
		return ended(s)
	}
	return s, nil
}

// started begins a life. The Resumed that QEMU told of while the machine was
// being made comes after this fact and finds the guest running already.
func started(s State, f Started) (State, []Effect) {
	s = State{Persistent: s.Persistent, Policy: s.Policy}
	detail := event.DetailBooted
	if f.Reason == domain.ReasonRestored {
		detail = event.DetailRestored
	}
	effects := []Effect{Announce{event.Started, detail}}
	if !f.Paused {
		s.Phase, s.Reason = domain.Running, f.Reason
		return s, append(effects, Announce{event.Resumed, event.DetailUnpaused})
	}
	s.Phase, s.Reason = domain.Paused, domain.ReasonUser
	if f.Reason != domain.ReasonRestored {
		detail = event.DetailPaused
	}
	return s, append(effects, Announce{event.Suspended, detail})
}

// found corrects the state of a guest, and announces changes that happened while no daemon ran.
func found(s State, f Found) (State, []Effect) {
	was := s.Phase
	s.Phase, s.Reason = f.Phase, f.Reason
	ran := was == domain.Running || was == domain.Blocked
	switch {
	case ran && f.Phase == domain.Paused && f.Reason == domain.ReasonIOError:
		return s, []Effect{Announce{event.Suspended, event.DetailIOError}}
	case ran && f.Phase == domain.Paused:
		return s, []Effect{Announce{event.Suspended, event.DetailPaused}}
	case ran && f.Phase == domain.PMSuspended:
		return s, []Effect{Announce{event.PMSuspended, event.DetailMemory}}
	case was == domain.Paused && f.Phase == domain.Running:
		return s, []Effect{Announce{event.Resumed, event.DetailUnpaused}}
	case was == domain.PMSuspended && f.Phase == domain.Running:
		return s, []Effect{Announce{event.Started, event.DetailWakeup}}
	}
	return s, nil
}

func stopped(s State) (State, []Effect) {
	if s.Restarting || s.Phase != domain.Running && s.Phase != domain.Blocked {
		return s, nil
	}
	s.Phase, s.Reason = domain.Paused, s.PauseFor
	s.PauseFor = ""
	detail := event.DetailPaused
	switch s.Reason {
	case "":
		s.Reason = domain.ReasonUnknown
	case domain.ReasonIOError:
		detail = event.DetailIOError
	case domain.ReasonWatchdog:
		detail = event.DetailWatchdog
	}
	return s, []Effect{Announce{event.Suspended, detail}}
}

func resumed(s State) (State, []Effect) {
	s.Restarting = false
	if s.Phase != domain.Paused {
		return s, nil
	}
	s.Phase, s.Reason = domain.Running, s.ResumeFor
	s.ResumeFor, s.PauseFor = "", ""
	if s.Reason == "" {
		s.Reason = domain.ReasonUnpaused
	}
	return s, []Effect{Announce{event.Resumed, event.DetailUnpaused}}
}

// poweredDown follows the guest's policy. QEMU keeps the stopped machine, so
// that it can be reset if the policy or a reboot request asks for that. QEMU may repeat the
// event; only the first one counts.
func poweredDown(s State, f PoweredDown) (State, []Effect) {
	if s.Phase == domain.ShuttingDown && s.EndFor != "" || s.Phase == domain.Paused && s.Reason == domain.ReasonShuttingDown {
		return s, nil
	}
	policy := s.Policy.OnPoweroff
	if f.ByReset {
		policy = s.Policy.OnReboot
	}
	if s.Rebooting || (policy == "restart" && !f.ByHost) {
		if s.Restarting {
			return s, nil
		}
		s.Rebooting, s.Restarting = false, true
		return s, []Effect{ResetMachine{}} // the reset announces itself
	}
	detail := event.DetailGuestAsked
	if f.ByHost {
		detail = event.DetailHostAsked
	}
	effects := []Effect{Announce{event.Shutdown, detail}}
	if policy == "preserve" && !f.ByHost {
		s.Phase, s.Reason = domain.Paused, domain.ReasonShuttingDown
		return s, effects
	}
	s.Phase, s.Reason = domain.ShuttingDown, domain.ReasonUnknown
	if s.EndFor == "" {
		s.EndFor = domain.ReasonShutdown
	}
	return s, append(effects, End{})
}

// panicked follows on_crash. A guest may say it more than once; the end that another
// has begun goes on.
func panicked(s State) (State, []Effect) {
	if s.EndFor != "" || s.Dumping || s.Restarting || s.Phase == domain.Paused && s.Reason == domain.ReasonPanicked {
		return s, nil
	}
	crashed := Announce{event.Crashed, event.DetailPanicked}
	switch s.Policy.OnCrash {
	case "restart":
		s.Restarting = true
		return s, []Effect{crashed, ResetMachine{}}
	case "preserve":
		s.Phase, s.Reason = domain.Paused, domain.ReasonPanicked
		return s, []Effect{crashed}
	case "coredump-destroy", "coredump-restart":
		s.Phase, s.Reason, s.Dumping = domain.Paused, domain.ReasonPanicked, true
		return s, []Effect{crashed, DumpCore{}}
	}
	return endPanicked(s, crashed)
}

func endPanicked(s State, effects ...Effect) (State, []Effect) {
	s.Phase, s.Reason, s.EndFor = domain.ShuttingDown, domain.ReasonCrashed, domain.ReasonPanicked
	return s, append(effects, End{})
}

// dumped continues with a panicked guest, under its present policy.
func dumped(s State) (State, []Effect) {
	if !s.Dumping {
		return s, nil
	}
	s.Dumping = false
	switch {
	case s.EndFor != "":
		return s, nil
	case RestartsOnCrash(s.Policy.OnCrash):
		s.Restarting = true
		return s, []Effect{ResetMachine{}}
	case s.Policy.OnCrash == "preserve":
		return s, nil
	}
	return endPanicked(s)
}

func woke(s State) (State, []Effect) {
	if s.Phase != domain.PMSuspended {
		return s, nil
	}
	s.Phase, s.Reason = domain.Running, domain.ReasonWakeup
	return s, []Effect{Announce{event.Started, event.DetailWakeup}}
}

// ended settles a guest whose process has ended, with the reason that was
// announced, or else as crashed.
func ended(s State) (State, []Effect) {
	reason, byItself := s.EndFor, s.EndFor == ""
	s = State{Phase: domain.ShutOff, Persistent: s.Persistent, Policy: s.Policy}
	detail := event.DetailCrashed
	switch reason {
	case domain.ReasonShutdown:
		detail = event.DetailShutdown
	case domain.ReasonDestroyed:
		detail = event.DetailDestroyed
	case domain.ReasonSaved:
		detail = event.DetailSaved
	case domain.ReasonMigrated:
		detail = event.DetailMigrated
	case domain.ReasonFailed:
		detail = event.DetailFailed
	case domain.ReasonPanicked, domain.ReasonCrashed, "":
		reason = domain.ReasonCrashed
	}
	s.Reason = reason
	effects := []Effect{Announce{event.Stopped, detail}}
	switch {
	case !s.Persistent:
		effects = append(effects, Announce{event.Undefined, event.DetailRemoved}, Forget{})
	case byItself && RestartsOnCrash(s.Policy.OnCrash):
		effects = append(effects, RestartGuest{})
	}
	return s, effects
}

// RestartsOnCrash reports whether a policy for crashes has the guest started again when its
// process is gone.
func RestartsOnCrash(onCrash string) bool {
	return onCrash == "restart" || onCrash == "coredump-restart"
}
