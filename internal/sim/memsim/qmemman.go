package memsim

import "math"

// qmemman is Qubes OS's memory manager on Xen (qubes-core-admin, qubes/qmemman/algo.py and systemstate.py). Each guest prefers 1.3 times its memory in use without cache. All memory is given out: the
// surplus by preference; when preferences do not fit, those that have more give to those that have less. It runs each
// second, and leaves guests that do not follow alone.
type qmemman struct {
	w      *World
	guests []qmemmanGuest
}

type qmemmanGuest struct {
	stuck int // seconds without following
	last  float64
	ok    bool
	// preferred and target sizes of this second, MiB
	preferred, target float64
}

// Constants of algo.py and systemstate.py, by their names there, and of the reference's model of them.
const (
	qmemmanMargin  = 1.3 // CACHE_FACTOR
	qmemmanReserve = 50  // MiB of the host at factor 1: XEN_FREE_MEM_LEFT
	// qmemmanLeast is the least that a redistribution moves, in MiB at factor 1. Qubes wants 150 MiB in all
	// (MIN_TOTAL_MEMORY_TRANSFER), or 15 MiB for a guest below its preference (MIN_MEM_CHANGE_WHEN_UNDER_PREF); the
	// reference takes 15 for both.
	qmemmanLeast    = 15
	qmemmanRounds   = 4  // of dividing the surplus, since sizes end at their maximum
	qmemmanFull     = .5 // MiB from the maximum
	qmemmanStuckMiB = 16
	qmemmanMoves    = 1  // MiB a second
	qmemmanPatience = 20 // s
)

func (q *qmemman) Begin(w *World) {
	q.w = w
	q.guests = make([]qmemmanGuest, len(w.Guests()))
	for i, v := range w.Guests() {
		q.guests[i].last = v.Balloon
	}
}

func (q *qmemman) Step(int) {
	host := q.w.Host()
	budget := host.RAM - host.Reserved - qmemmanReserve/q.w.Factor()
	held, preferred := 0.0, 0.0
	inert := 0.0
	for i := range q.guests {
		g, v := &q.guests[i], &q.w.Guests()[i]
		q.look(i)
		switch {
		case g.ok:
			held += v.Balloon
			preferred += g.preferred
		case v.Running:
			inert += v.Resident
		}
	}
	budget -= inert
	if preferred <= budget {
		q.divideSurplus(budget - preferred)
	} else {
		q.balance(budget-held, preferred)
	}
	q.set(budget - held)
}

// look decides whether a guest takes part, and finds its preferred size.
func (q *qmemman) look(i int) {
	g, v := &q.guests[i], &q.w.Guests()[i]
	g.stuck++
	if q.w.Target(i) >= v.Balloon-qmemmanStuckMiB || math.Abs(v.Balloon-g.last) >= qmemmanMoves {
		g.stuck = 0
	}
	g.last = v.Balloon
	g.ok = v.Valid && g.stuck < qmemmanPatience
	g.preferred = 0
	if g.ok {
		used := max(v.Actual-v.Free-v.Cache+v.GuestSwap, 0)
		g.preferred = min(max(qmemmanMargin*used, v.Floor), v.Max)
	}
	g.target = g.preferred
}

// divideSurplus gives out the memory that the preferences leave, by preference.
func (q *qmemman) divideSurplus(left float64) {
	for range qmemmanRounds {
		weight := 0.0
		for i := range q.guests {
			if q.takes(i) {
				weight += q.guests[i].preferred
			}
		}
		perWeight := max(left, 0) / max(weight, tiny)
		for i := range q.guests {
			if q.takes(i) {
				g := &q.guests[i]
				target := min(g.target+perWeight*g.preferred, q.w.Guests()[i].Max)
				left -= target - g.target
				g.target = target
			}
		}
	}
}

func (q *qmemman) takes(i int) bool {
	return q.guests[i].ok && q.guests[i].target < q.w.Guests()[i].Max-qmemmanFull
}

// balance is for preferences that do not fit: donors go down to theirs, and acceptors get a common share of the
// memory that is free then. Without enough even for that, all give by preference.
func (q *qmemman) balance(free, preferred float64) {
	given, asked := 0.0, 0.0
	for i := range q.guests {
		if g := &q.guests[i]; g.ok {
			given += max(q.w.Guests()[i].Balloon-g.preferred, 0)
			asked += max(g.preferred-q.w.Guests()[i].Balloon, 0)
		}
	}
	share := min(max((free+given)/max(asked, tiny), 0), 1)
	short := max(0, -(free + given))
	for i := range q.guests {
		g, v := &q.guests[i], &q.w.Guests()[i]
		g.target = g.preferred
		if v.Balloon <= g.preferred {
			g.target = v.Balloon + (g.preferred-v.Balloon)*share
		}
		g.target = max(g.target-short*g.preferred/max(preferred, 1), v.Floor)
	}
}

// set sets the targets if they move enough. Guests grow only into memory that is free.
func (q *qmemman) set(free float64) {
	growth := 0.0
	for i := range q.guests {
		if g := &q.guests[i]; g.ok {
			growth += max(g.target-q.w.Guests()[i].Balloon, 0)
		}
	}
	share := min(1, max(free, 0)/max(growth, tiny))
	moved := 0.0
	for i := range q.guests {
		g, balloon := &q.guests[i], q.w.Guests()[i].Balloon
		if g.target > balloon {
			g.target = balloon + (g.target-balloon)*share
		}
		if g.ok {
			moved += math.Abs(g.target - balloon)
		}
	}
	if moved <= qmemmanLeast/q.w.Factor() {
		return
	}
	for i := range q.guests {
		if g := &q.guests[i]; g.ok {
			q.w.SetTarget(i, g.target)
		}
	}
}
