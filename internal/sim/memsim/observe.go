package memsim

// sample is what a guest's balloon driver says of one second. MiB; faults and scans per second.
type sample struct {
	// Actual is the balloon's size at that second.
	Actual float64
	// Available is what programs could get without swapping, Free what nothing uses, Cache the page cache.
	Available, Free, Cache float64
	// GuestSwap is the used part of the guest's own swap.
	GuestSwap float64
	// MajorFaults are 4 KiB pages a second, SwapIn MiB/s, Scans MiB/s that allocations waited for; all smoothed over 2
	// or 3 s.
	MajorFaults, SwapIn, Scans float64
}

// A dishonest guest always says these.
const (
	liarFree   = .03 // share of its memory
	liarFaults = 100
	liarSwapIn = 1
	liarScans  = 1
)

// GuestView is what a manager sees of a guest.
type GuestView struct {
	// From the definition. Period is how often statistics are sampled, in seconds.
	Max, Floor, Shares float64
	Period             int

	// The host knows these now: whether QEMU runs, the second it booted at, the balloon's size, the memory of the host
	// that the guest holds, and its pages in host swap.
	Running               bool
	BootedAt              int
	Balloon               float64
	Resident, HostSwapped float64

	// The last sample, of second SampledAt. Without Valid there is none since the boot, and the numbers mean nothing.
	// A guest may lie. Scans are 0 in guests that do not count them.
	Valid     bool
	SampledAt int
	sample
}

// HostView is what a manager sees of the host, from the end of the last second.
type HostView struct {
	RAM, Reserved, KSMSaving float64 // MiB; KSM saves memory beyond RAM-Reserved
	// Used is the share of RAM in use, more than 1 when memory is missing. A host that swaps stays at 98.5 %, to the last
	// bit or one below: a threshold there decides by rounding.
	Used   float64
	SwapIO float64 // MiB/s, in and out together
	PSI    float64 // share of time that guests wait for memory, smoothed
}

// Guests shows the guests, by index. The slice belongs to the world, and changes at each second.
func (w *World) Guests() []GuestView { return w.views }

// Host shows the host.
func (w *World) Host() HostView {
	h := &w.host
	return HostView{
		RAM: h.ram, Reserved: h.reserved, KSMSaving: h.saved, Used: h.used,
		SwapIO: h.swapIn + h.swapOut, PSI: h.pressure,
	}
}

// Factor is the load factor of this run.
func (w *World) Factor() float64 { return w.factor }

// Target is the last target of guest i's balloon. A guest that deflates its balloon to avoid an OOM kill raises it.
func (w *World) Target(i int) float64 { return w.guests[i].target }

// SetTarget sets the target of guest i's balloon. The balloon moves within the same second, at its own speed. Nothing
// keeps a policy from going below the floor; that is counted.
func (w *World) SetTarget(i int, mib float64) { w.guests[i].target = mib }

// DisableReporting says that the host does not ask guests for free page reports. A policy calls it in Begin.
func (w *World) DisableReporting() { w.reporting = false }

// observe brings the views up to this second.
func (w *World) observe() {
	for i := range w.guests {
		g, v := &w.guests[i], &w.views[i]
		at := floorTo(w.second-1-g.spec.StatDelay, g.spec.StatPeriod)
		if at != v.SampledAt || w.second == 0 {
			v.SampledAt = at
			v.sample = g.reported(w.samples[(at%ringSize+ringSize)%ringSize][i])
		}
		v.Running, v.BootedAt, v.Balloon = g.running, g.booted, g.actual
		v.Resident, v.HostSwapped = g.resident(), g.cold+g.hot
		v.Valid = g.running && g.spec.Coop != driverless && at > g.booted
	}
}

// reported is what the guest says instead of the truth.
func (g *guest) reported(s sample) sample {
	if !g.spec.Honest {
		s.Available, s.Free, s.Cache = liarFree*s.Actual, liarFree*s.Actual, 0
		s.MajorFaults, s.SwapIn, s.Scans = liarFaults, liarSwapIn, liarScans
	}
	if !g.spec.Stalls {
		s.Scans = 0
	}
	return s
}

// floorTo rounds down to a multiple of period.
func floorTo(second, period int) int {
	rest := second % period
	if rest < 0 {
		rest += period
	}
	return second - rest
}
