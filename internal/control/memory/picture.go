package memory

import (
	"time"

	"github.com/lodge-kvm/lodge/internal/decision/arbiter"
)

// Picture is what the manager last saw and decided. It is immutable.
type Picture struct {
	Mode Mode
	At   time.Time // zero: it has not looked yet
	Host arbiter.Host
	// Budget is what all guests together may be promised, in MiB; untouched memory counts a tenth of it.
	Budget float64
	Guests []Line
}

// Line is one guest's part of a picture. Sizes are in MiB.
type Line struct {
	Name, UUID string
	// Mode is that of the host, or advise where the guest's settings say so.
	Mode Mode
	// Max is what the guest was started with, Asked what its user last asked for, Floor the least that it gets, and Has
	// what its balloon leaves it. The floor is Asked, unless the guest's settings have one.
	Max, Asked, Floor, Has float64
	// Resident is what the host holds for it.
	Resident float64
	Decision arbiter.Decision
	// Apart is why its balloon must not be moved; empty: it may be.
	Apart string
	// Sampled is when the guest last said something about its memory; zero: it has not.
	Sampled time.Time
	// Moved is when its target last changed, and Failure why the last move did not succeed.
	Moved   time.Time
	Failure error
}
