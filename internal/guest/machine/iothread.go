package machine

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

// IOThread is one of a running guest's threads for its disks, with the host CPUs it may run on.
type IOThread struct {
	ID       uint
	Affinity topology.CPUSet
}

// IOThreadStats says how an iothread polls before it sleeps. PollMax is in nanoseconds. PollGrow and
// PollShrink are factors; 0 is QEMU's default.
type IOThreadStats struct {
	ID                            uint
	PollMax, PollGrow, PollShrink uint64
}

// QEMUIOThread is the part of QEMU's answer to query-iothreads that Lodge reads.
type QEMUIOThread struct {
	ID         string `json:"id"`
	Thread     int    `json:"thread-id"`
	PollMax    uint64 `json:"poll-max-ns"`
	PollGrow   uint64 `json:"poll-grow"`
	PollShrink uint64 `json:"poll-shrink"`
}

// number returns the iothread's ID in the definition. ok is false for an iothread that the definition does
// not have.
func (t QEMUIOThread) number() (id uint, ok bool) {
	n, err := strconv.ParseUint(strings.TrimPrefix(t.ID, "iothread"), 10, 32)
	return uint(n), err == nil
}

// QueryIOThreads maps the IDs of iothreads to their host threads. Only threads of the QEMU process are
// accepted.
func (r *Registry) QueryIOThreads(ctx context.Context, s *qmp.Session, pid int) (map[uint]int, error) {
	var answer []QEMUIOThread
	if err := s.Execute(ctx, "query-iothreads", nil, &answer); err != nil {
		return nil, err
	}
	threads := map[uint]int{}
	for _, t := range answer {
		if id, ok := t.number(); ok && len(threads) < domainxml.MaxIOThreads && r.Kernel.HasThread(pid, t.Thread) {
			threads[id] = t.Thread
		}
	}
	return threads, nil
}

// SampleIOThreads asks QEMU how its iothreads poll.
func SampleIOThreads(ctx context.Context, s *qmp.Session, def *domain.Definition) ([]IOThreadStats, error) {
	if def.IOThreads == 0 {
		return nil, nil
	}
	var answer []QEMUIOThread
	if err := s.Execute(ctx, "query-iothreads", nil, &answer); err != nil {
		return nil, err
	}
	var all []IOThreadStats
	for _, t := range answer {
		if id, ok := t.number(); ok {
			all = append(all, IOThreadStats{id, t.PollMax, t.PollGrow, t.PollShrink})
		}
	}
	slices.SortFunc(all, func(a, b IOThreadStats) int { return cmp.Compare(a.ID, b.ID) })
	return slices.Clone(all[:min(len(all), int(def.IOThreads))]), nil // QEMU may return any number
}

// IOThreads returns the iothreads of a running guest and the CPUs they may run on.
func (g *Guest) IOThreads(ctx context.Context) ([]IOThread, error) {
	r := g.Live.Load()
	s, err := r.Monitor()
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithTimeout(ctx, QueryLimit)
	defer stop()
	threads, err := g.Reg.QueryIOThreads(ctx, s, r.PID)
	if err != nil {
		return nil, err
	}
	var all []IOThread
	for id, tid := range threads {
		bound, err := kernel.Affinity(tid)
		if err != nil {
			return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot read where iothread %d may run", id)
		}
		all = append(all, IOThread{id, bound})
	}
	slices.SortFunc(all, func(a, b IOThread) int { return cmp.Compare(a.ID, b.ID) })
	return all, nil
}
