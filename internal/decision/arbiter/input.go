package arbiter

import "time"

// Host is the memory of a host, in MiB.
type Host struct {
	// Memory is what the host has, or less if its administrator bounds the memory of guests.
	Memory float64
	// Others is what everything but the guests holds.
	Others float64
	// Shared is what page sharing saves at present.
	Shared float64
}

// Guest is a running guest. Sizes are in MiB.
type Guest struct {
	ID string
	// Started is when this run of the guest began. It tells a guest from an earlier one.
	Started time.Time
	// Max is the memory that the guest was started with, and Floor is the least that it may get.
	Max, Floor float64
	// Shares weigh guests against each other when their needs do not fit.
	Shares float64
	// Target is what its balloon was last asked for, and Actual is what the guest has. Actual is true: QEMU
	// counts it.
	Target, Actual float64
	// Resident is the guest's memory in the host's RAM, and Swapped its memory in the host's swap.
	Resident, Swapped float64
	// Sample is the newest one that was made in this run of the guest; nil if there is none yet.
	Sample *Sample
	// Apart is why its balloon must not be moved: huge pages, locked memory, devices passed through, a
	// migration. Empty: it may be moved.
	Apart string
}

// Sample is what a guest says about its memory, in MiB and rates for each second. None of it is trusted.
type Sample struct {
	At     time.Time
	Period time.Duration // until the next one
	Actual float64       // of the balloon, at that time
	// Available is what programs could still take without swap.
	Available float64
	Cache     float64
	// Swapped is what the guest holds in its own swap.
	Swapped     float64
	MajorFaults float64
	SwapIn      float64
	// Scans are direct scans: a program waited for memory. 0 if the guest does not count them.
	Scans float64
}

// Decision is a guest's new target, in MiB, with the parts of its claim. Spare is the part of the target beyond the
// granted claim.
type Decision struct {
	ID     string
	Target float64
	Reason Reason

	Need, Margin, Cache, Spare float64
}

// Reason explains a target.
type Reason string

// Reasons.
const (
	Apart     Reason = "left alone"
	Unsampled Reason = "it has reported no statistics yet"
	Stuck     Reason = "its balloon does not follow"
	Held      Reason = "near enough to what it should have"
	Grown     Reason = "it needs more"
	Distress  Reason = "it swaps or waits for memory"
	Shrunk    Reason = "others need what it does not use"
	Scarce    Reason = "the needs do not fit: shares decide"
)
