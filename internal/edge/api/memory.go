package api

import (
	"cmp"
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lodge-kvm/lodge/api/lodgev1"
	"github.com/lodge-kvm/lodge/internal/control/memory"
)

// Memory returns the last picture of the memory manager. It waits for no guest.
func (s *Server) Memory(ctx context.Context, r *lodgev1.MemoryRequest) (*lodgev1.MemoryResponse, error) {
	members, err := s.selectGuests(ctx, r.GetSelect())
	if err != nil {
		return nil, err
	}
	if s.MemoryPicture == nil {
		return &lodgev1.MemoryResponse{Mode: string(memory.Off)}, nil
	}
	p := s.MemoryPicture()
	answer := &lodgev1.MemoryResponse{Mode: string(p.Mode)}
	if p.At.IsZero() {
		return answer, nil
	}
	chosen := make(map[string]bool, len(members))
	for _, m := range members {
		chosen[m.View.UUID] = true
	}
	now := time.Now()
	answer.At = timestamppb.New(p.At)
	answer.Host = &lodgev1.HostMemory{Total: toBytes(p.Host.Memory), Others: toBytes(p.Host.Others), Shared: toBytes(p.Host.Shared), Budget: toBytes(p.Budget)}
	for i := range p.Guests {
		line := &p.Guests[i]
		if !chosen[line.UUID] && !s.canSeeUUID(ctx, line.UUID) {
			continue
		}
		answer.Host.Resident += toBytes(line.Resident)
		answer.Host.Targets += toBytes(line.Decision.Target)
		if chosen[line.UUID] {
			answer.Guests = append(answer.Guests, toMemoryDecision(line, now))
		}
	}
	slices.SortFunc(answer.GetGuests(), func(a, b *lodgev1.MemoryDecision) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return answer, nil
}

// toMemoryDecision translates a guest's line of the picture.
func toMemoryDecision(l *memory.Line, now time.Time) *lodgev1.MemoryDecision {
	d := &lodgev1.MemoryDecision{
		Name: validUTF8(l.Name), Uuid: l.UUID, Mode: string(l.Mode), Max: toBytes(l.Max), Asked: toBytes(l.Asked), Floor: toBytes(l.Floor), Has: toBytes(l.Has), Resident: toBytes(l.Resident),
		Target: toBytes(l.Decision.Target), Reason: string(l.Decision.Reason), Apart: l.Apart,
		Need: toBytes(l.Decision.Need), Margin: toBytes(l.Decision.Margin), Cache: toBytes(l.Decision.Cache), Spare: toBytes(l.Decision.Spare),
	}
	d.Sampled, d.SampleAge = timeAndAge(l.Sampled, now)
	d.Moved, d.MovedAge = timeAndAge(l.Moved, now)
	if l.Failure != nil {
		d.Failure = validUTF8(l.Failure.Error())
	}
	return d
}

// timeAndAge returns nil for a time that is zero.
func timeAndAge(at, now time.Time) (*timestamppb.Timestamp, *durationpb.Duration) {
	if at.IsZero() {
		return nil, nil
	}
	return timestamppb.New(at), durationpb.New(max(now.Sub(at), 0))
}

// toBytes translates MiB. The arbiter's budget is below zero where others hold more than the guests may.
func toBytes(mib float64) uint64 { return uint64(max(mib, 0) * (1 << 20)) }
