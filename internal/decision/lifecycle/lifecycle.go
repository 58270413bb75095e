// Package lifecycle decides which requests a guest's state allows, and how facts about
// the guest change that state. It is pure: no clock, process, disk or lock.
//
//	           Admit(Start)                    Resumed
//	shut off ───────────────▶ paused ◀───────────────────────▶ running
//	   ▲  ▲     Started{Paused}        Stopped (user, save, I/O error, ...)
//	   │  │                                                      │
//	   │  └────────────── Ended ◀── in shutdown ◀── PoweredDown ─┤
//	   └───────────────── Ended ◀── crashed? ◀───── Panicked ────┘
//
// The guest's loop calls Admit before it acts on a request, and passes every
// fact to Step in the order in which it happened. Step returns the next State and
// the Effects that the loop must then carry out, in order. This package holds
// the rules about states. It does not know how an effect is carried out.
package lifecycle

import (
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/event"
)

// State is the part of a guest's state that the rules need.
type State struct {
	Phase  domain.State
	Reason domain.Reason
	// Persistent guests stay defined when they end.
	Persistent bool
	// Policy is the definition's reaction to events in the guest.
	Policy Policy

	// PauseFor explains the next Stopped; empty: the daemon did not ask for it.
	PauseFor domain.Reason
	// ResumeFor explains the next Resumed; empty: unpaused.
	ResumeFor domain.Reason
	// EndFor explains the next Ended; empty: the process died without a request.
	EndFor domain.Reason
	// Rebooting turns the guest's next power-off into a reset.
	Rebooting bool
	// Dumping is true from a panic until the memory has been dumped for inspection.
	Dumping bool
	// Restarting is from the moment that the machine is to be reset until it runs
	// again; its stop and resume in between are not the user's business.
	Restarting bool
}

// Policy is the reaction to an event in the guest: destroy, restart or preserve.
type Policy struct{ OnPoweroff, OnReboot, OnCrash string }

// Effect is something that the loop must do after a Step.
type Effect interface{ effect() }

// Announce appends an event.
type Announce struct {
	Change event.Change
	Detail string
}

// AnnounceReboot appends the guest's reboot event.
type AnnounceReboot struct{}

// End ends the process after QEMU has flushed its caches.
type End struct{}

// DumpCore dumps the memory of a guest that has panicked, and reports it by Dumped.
type DumpCore struct{}

// ResetMachine resets the machine and lets it run.
type ResetMachine struct{}

// RestartGuest starts a guest whose process ended without a request.
type RestartGuest struct{}

// Forget removes the guest from the registry: it was transient and has ended.
type Forget struct{}

func (Announce) effect()       {}
func (AnnounceReboot) effect() {}
func (End) effect()            {}
func (DumpCore) effect()       {}
func (ResetMachine) effect()   {}
func (RestartGuest) effect()   {}
func (Forget) effect()         {}
