package api

import (
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lodge-kvm/lodge/api/lodgev1"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/control/fleet"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/guest/statistics"
	"github.com/lodge-kvm/lodge/internal/host/resources"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// Bounds of one request. Each guest is matched with every selector, so their sizes bound the work.
const (
	maxSelectors     = 4096
	maxSelectorBytes = 128 << 10
)

// parseSelectors parses the selectors of a request.
func parseSelectors(texts []string) ([]fleet.Selector, error) {
	if len(texts) > maxSelectors {
		return nil, fault.New(fault.Invalid, fault.Call, "%d selectors are too many; the maximum is %d", len(texts), maxSelectors)
	}
	parsed, size := make([]fleet.Selector, 0, len(texts)), 0
	for _, text := range texts {
		if size += len(text); size > maxSelectorBytes {
			return nil, fault.New(fault.Invalid, fault.Call, "selectors of more than %d bytes are too long; select by glob, label or tile", maxSelectorBytes)
		}
		s, err := fleet.ParseSelector(text)
		if err != nil {
			return nil, err
		}
		parsed = append(parsed, s)
	}
	return parsed, nil
}

// selectGuests returns the guests of a request that only reads: all, unless it has selectors.
func (s *Server) selectGuests(ctx context.Context, texts []string) ([]fleet.Member, error) {
	if len(texts) == 0 {
		texts = []string{"all"}
	}
	chosen, err := parseSelectors(texts)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(s.Fleet.Select(chosen), func(m fleet.Member) bool { return !s.canSee(ctx, m) }), nil
}

// ListGuests returns the current views of guests. It waits for no guest.
func (s *Server) ListGuests(ctx context.Context, r *lodgev1.ListGuestsRequest) (*lodgev1.ListGuestsResponse, error) {
	members, err := s.selectGuests(ctx, r.GetSelect())
	if err != nil {
		return nil, err
	}
	statistics.Refresh(s.Guests)
	now := time.Now()
	queue := map[string]resources.WaitingStart{}
	for _, w := range s.Starts.Queue() {
		queue[w.Guest] = w
	}
	answer := &lodgev1.ListGuestsResponse{Guests: make([]*lodgev1.Guest, 0, len(members))}
	for _, m := range members {
		g := toGuest(m)
		for _, clash := range s.Guests.Clashes(m.View, func(other *guest.Guest) bool { return s.canSee(ctx, s.Fleet.MemberOf(other)) }) {
			g.Messages = append(g.Messages, validUTF8(clash))
		}
		sample := statistics.Sample(m.Guest)
		g.Sample = toSample(sample, now, false)
		g.Wait = waitReason(m, sample, queue[m.View.UUID])
		answer.Guests = append(answer.Guests, g)
	}
	return answer, nil
}

// toGuest translates a guest's current view.
func toGuest(m fleet.Member) *lodgev1.Guest {
	v := m.View
	g := &lodgev1.Guest{
		Name: v.Name, Uuid: v.UUID, Id: int32(max(v.ID, 0)), State: v.State.String(), Reason: string(v.Reason), Since: timestamppb.New(v.Since),
		Persistent: v.Persistent, Autostart: v.Autostart, ManagedSave: v.ManagedSave, Pid: int32(v.PID),
		Labels: m.Labels, Tile: m.Labels[tileLabel], Template: v.Template,
	}
	g.Isolation = v.Isolation
	if m.Problem != "" {
		g.Messages = append(g.Messages, validUTF8(m.Problem))
	}
	for _, message := range v.Messages {
		g.Messages = append(g.Messages, validUTF8(message))
	}
	for _, d := range provision.Decisions(v) {
		g.Decisions = append(g.Decisions, validUTF8(d.String()))
	}
	if d := v.Current(); d != nil {
		g.Memory, g.MemoryMax, g.Vcpus = memoryOf(d), d.Memory, uint32(vcpus(d))
	}
	return g
}

// tileLabel is the label that makes a guest part of a tile.
const tileLabel = "tile"

// memoryOf returns the guest's current memory, in bytes.
func memoryOf(d *domain.Definition) uint64 {
	if d.CurrentMemory != 0 {
		return d.CurrentMemory
	}
	return d.Memory
}

func vcpus(d *domain.Definition) uint {
	if d.VCPUs.Current != 0 {
		return d.VCPUs.Current
	}
	return d.VCPUs.Max
}

// waitReason returns why a guest waits, the most basic reason first; nil: it does not wait.
func waitReason(m fleet.Member, sample *machine.Stats, queued resources.WaitingStart) *lodgev1.Wait {
	job := m.Guest.Job()
	switch {
	case queued.Guest != "":
		return newWait("its start: "+queued.Reason, queued.Since)
	case !m.View.StuckSince.IsZero():
		return newWait(m.View.StuckOn, m.View.StuckSince)
	case sample != nil && sample.Stale != nil:
		return newWait("QEMU: "+sample.Stale.Error(), sample.StaleSince)
	case job.Kind != domain.JobNone:
		return newWait("the end of its "+string(job.Kind)+" job", job.Started)
	}
	return nil
}

func newWait(what string, since time.Time) *lodgev1.Wait {
	return &lodgev1.Wait{What: validUTF8(what), Since: timestamppb.New(since)}
}
