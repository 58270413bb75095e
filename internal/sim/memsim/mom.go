package memsim

// mom is oVirt's Memory Overcommitment Manager with the policy that VDSM ships (mom, doc/balloon.rules; VDSM,
// 02-balloon.policy): a tick every 10 s, averages of ten samples, steps of 5 %, and only free memory (no cache) counts
// as free.
type mom struct {
	w        *World
	hostFree window
	guests   []momGuest
}

// Constants of balloon.rules, by its names.
const (
	momTick               = 10    // s
	momPressure           = .20   // pressure_threshold: share of host memory that is free
	momCritical           = .05   // pressure_critical
	momGuestFree          = .201  // min_guest_free_percent, as mom's collectors default it
	momMaxChange          = .05   // max_balloon_change_percent
	momMinChange          = .0025 // min_balloon_change_percent
	momSamples            = 10    // sample-history-length
	momCriticalGuestShare = -.05  // min_guest_free_percent under critical pressure, before the free share is added
)

type momGuest struct{ size, free window }

// window is the last values of a series.
type window struct {
	values [momSamples]float64
	n      int
}

// add takes a value in, and gives the mean.
func (w *window) add(v float64) float64 {
	if w.n < len(w.values) {
		w.n++
	} else {
		copy(w.values[:], w.values[1:])
	}
	w.values[w.n-1] = v
	return sum(w.values[:w.n]) / float64(w.n)
}

func (m *mom) Begin(w *World) {
	m.w = w
	m.guests = make([]momGuest, len(w.Guests()))
}

func (m *mom) Step(second int) {
	if second%momTick != 0 {
		return
	}
	hostFree := m.hostFree.add(1 - m.w.Host().Used)
	guestFree := momGuestFree
	if hostFree <= momCritical {
		guestFree = momCriticalGuestShare + hostFree
	}
	for i := range m.guests {
		g, v := &m.guests[i], &m.w.Guests()[i]
		size := g.size.add(v.Balloon)
		least := size - g.free.add(v.Free) + guestFree*size
		if !v.Valid {
			continue
		}
		if hostFree < momPressure {
			if target := max(size*(1-momMaxChange), least, v.Floor); target <= size*(1-momMinChange) {
				m.w.SetTarget(i, target)
			}
			continue
		}
		target := min(max(size*(1+momMaxChange), least), v.Max)
		if size < v.Max && target >= size*(1+momMinChange) {
			m.w.SetTarget(i, target)
		}
	}
}
