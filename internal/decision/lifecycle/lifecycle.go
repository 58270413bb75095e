// Package lifecycle decides what a guest may be asked and what follows from
// what happened to it. It is pure: no clock, process, disk or lock.
//
//	           Admit(Start)                    Resumed
//	shut off ───────────────▶ paused ◀───────────────────────▶ running
//	   ▲  ▲     Started{Paused}        Stopped (user, save, I/O error, ...)
//	   │  │                                                      │
//	   │  └────────────── Ended ◀── in shutdown ◀── PoweredDown ─┤
//	   └───────────────── Ended ◀── crashed? ◀───── Panicked ────┘
//
// The guest's loop asks Admit before it acts on a request, and feeds Step every
// fact in the order in which it happened. Step answers with the next State and
// the Effects that the loop must then carry out, in order. What belongs here:
// rules about states. What does not: how an effect is done.
package lifecycle

import (
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/event"
)

// State is what the rules need to know of a guest.
type State struct {
	Phase  domain.State
	Reason domain.Reason
	// Persistent guests stay defined when they end.
	Persistent bool
	// Policy is what the definition says about the guest's own doings.
	Policy Policy

	// PauseFor explains the next Stopped; empty: nobody announced it.
	PauseFor domain.Reason
	// ResumeFor explains the next Resumed; empty: unpaused.
	ResumeFor domain.Reason
	// EndFor explains the next Ended; empty: the process died by itself.
	EndFor domain.Reason
	// Rebooting turns the guest's next power-off into a reset.
	Rebooting bool
	// Dumping is from a panic until the memory has been dumped for whoever looks into it.
	Dumping bool
	// Restarting is from the moment that the machine is to be reset until it runs
	// again; its stop and resume in between are not the user's business.
	Restarting bool
}

// Policy is what happens when the guest acts by itself: destroy, restart or preserve.
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

// End ends the process, letting QEMU write out what it holds.
type End struct{}

// DumpCore dumps the memory of a guest that has panicked, and reports it by Dumped.
type DumpCore struct{}

// Restart resets the machine and lets it run.
type Restart struct{}

// StartAgain starts a guest whose process ended by itself.
type StartAgain struct{}

// Forget removes the guest from the registry: it was transient and has ended.
type Forget struct{}

func (Announce) effect()       {}
func (AnnounceReboot) effect() {}
func (End) effect()            {}
func (DumpCore) effect()       {}
func (Restart) effect()        {}
func (StartAgain) effect()     {}
func (Forget) effect()         {}
