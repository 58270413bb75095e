package guest

import "github.com/lodge-kvm/lodge/internal/guest/machine"

// The types of package machine that users of guests name.
type (
	// Config is what a registry works with.
	Config = machine.Config
	// Guest is one guest.
	Guest = machine.Guest
	// Registry finds guests.
	Registry = machine.Registry
	// View is the state of a guest at one moment.
	View = machine.View
)
