package lifecycle

import (
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// Verb is an action that a client may ask of a guest.
type Verb string

// Verbs that depend on the guest's state.
const (
	Start       Verb = "start"
	Restore     Verb = "restore"
	Suspend     Verb = "suspend"
	Resume      Verb = "resume"
	Shutdown    Verb = "shut down"
	Reboot      Verb = "reboot"
	Reset       Verb = "reset"
	Destroy     Verb = "destroy"
	Save        Verb = "save"
	Dump        Verb = "dump"
	Wake        Verb = "wake up"
	Change      Verb = "change" // any change of a running guest
	Rename      Verb = "rename"
	Autostart   Verb = "mark for autostart"
	Undefine    Verb = "undefine"
	ManagedSave Verb = "save under management"
)

// Admit refuses v for a guest in state s if the state does not allow it; the error is for
// the client.
func Admit(s State, v Verb) error {
	active := s.Phase.Active()
	switch v {
	case Start, Restore:
		if active {
			return wrongState("the domain is already running")
		}
	case Rename:
		if active {
			return wrongState("cannot rename a running domain; shut it down first")
		}
	case Undefine, Autostart:
		if !s.Persistent {
			return wrongState("cannot %s a transient domain", v)
		}
	case Suspend:
		return admitSuspend(s)
	case Resume:
		return admitResume(s)
	case ManagedSave:
		if !s.Persistent {
			return wrongState("cannot do managed save for a transient domain")
		}
		return admitUnlessEnding(s, v)
	case Save, Dump, Shutdown, Reboot, Reset, Change:
		return admitUnlessEnding(s, v)
	case Wake:
		if s.Phase != domain.PMSuspended {
			return wrongState("the domain is not suspended by its guest")
		}
	case Destroy:
		if !active {
			return wrongState("domain is not running")
		}
	}
	return nil
}

func admitSuspend(s State) error {
	switch {
	case !s.Phase.Active():
		return wrongState("domain is not running")
	case s.Phase == domain.PMSuspended:
		return wrongState("the guest has suspended itself; wake it first")
	}
	return nil
}

func admitResume(s State) error {
	switch {
	case !s.Phase.Active():
		return wrongState("domain is not running")
	case s.Phase == domain.Running || s.Phase == domain.Blocked:
		return wrongState("domain is already running")
	case s.Phase == domain.PMSuspended:
		return wrongState("the guest has suspended itself; wake it instead")
	case s.Phase == domain.Paused && s.Reason == domain.ReasonPanicked:
		return wrongState("the guest has panicked; reset or destroy it")
	case s.IsPreserved():
		return wrongState("the guest has turned itself off or reset, and is preserved in that state: it cannot be resumed; reset it to boot it again, or destroy it")
	}
	return nil
}

// IsPreserved reports whether the guest ended on its own and is preserved for
// inspection.
func (s State) IsPreserved() bool {
	return s.Phase == domain.Paused && (s.Reason == domain.ReasonShuttingDown || s.Reason == domain.ReasonPanicked)
}

// admitUnlessEnding refuses actions that need a running process after it was told to end.
func admitUnlessEnding(s State, v Verb) error {
	switch {
	case !s.Phase.Active():
		return wrongState("domain is not running")
	case s.EndFor != "":
		return wrongState("cannot %s: the domain is being stopped", v)
	}
	return nil
}

func wrongState(format string, args ...any) error {
	return fault.New(fault.WrongState, fault.Domain, format, args...)
}
