package api

import (
	"context"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lodge-kvm/lodge/api/lodgev1"
	"github.com/lodge-kvm/lodge/internal/control/fleet"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/word/event"
)

// Watch sends the event log from the client's cursor. It reads an event when the client has taken the one before.
// So a slow client falls behind, loses the oldest events, gets their number, and delays no other client.
func (s *Server) Watch(ctx context.Context, r *lodgev1.WatchRequest, stream *connect.ServerStream[lodgev1.WatchResponse]) error {
	chosen, err := parseSelectors(r.GetSelect())
	if err != nil {
		return err
	}
	reader, restarted := s.follow(r.GetAfter())
	begin := &lodgev1.WatchResponse{What: &lodgev1.WatchResponse_Begin{Begin: &lodgev1.Cursor{Life: s.life, Seq: reader.Position()}}}
	if err := stream.Send(begin); err != nil {
		return err
	}
	if restarted {
		if err := stream.Send(gapMessage(0)); err != nil {
			return err
		}
	}
	watched := watched{guests: s.Guests, fleet: s.Fleet, chosen: chosen, known: map[string]bool{}}
	for {
		e, lost, err := reader.Next(ctx)
		if err != nil {
			return err
		}
		if lost > 0 {
			if err := stream.Send(gapMessage(lost)); err != nil {
				return err
			}
		}
		if err := s.Authorizer.Admit(caller(ctx)); err != nil {
			return err // the rules have changed
		}
		if message := toEvent(e); watched.wants(message) && s.canSeeEvent(ctx, message) {
			if err := stream.Send(&lodgev1.WatchResponse{What: &lodgev1.WatchResponse_Event{Event: message}}); err != nil {
				return err
			}
		}
	}
}

// follow returns a reader that starts after the cursor. For a cursor of an earlier run of the daemon it starts
// with this run's first event; restarted: the client gets a mark for lost events.
func (s *Server) follow(after *lodgev1.Cursor) (r *event.Reader, restarted bool) {
	switch {
	case after == nil:
		return s.Events.Reader(), false
	case after.GetLife() != s.life:
		return s.Events.ReaderAfter(0), true
	}
	return s.Events.ReaderAfter(after.GetSeq()), false
}

func gapMessage(lost uint64) *lodgev1.WatchResponse {
	return &lodgev1.WatchResponse{What: &lodgev1.WatchResponse_Gap{Gap: &lodgev1.Gap{Lost: lost}}}
}

// watched decides which events a client wants, by its selectors.
type watched struct {
	guests *guest.Registry
	fleet  *fleet.Fleet
	chosen []fleet.Selector // none: everything
	known  map[string]bool  // selected guests that exist, by UUID
}

// wants matches the guest's current view. The event of its removal comes when it no longer has one: it is wanted
// if the guest's earlier events were.
func (w *watched) wants(e *lodgev1.Event) bool {
	if len(w.chosen) == 0 {
		return true
	}
	if e.GetObject() != objectGuest {
		return false
	}
	g, err := w.guests.ByUUID(e.GetUuid())
	if err != nil {
		wanted := w.known[e.GetUuid()] || w.fleet.Chooses(w.chosen, fleet.Member{View: &guest.View{Name: e.GetName(), UUID: e.GetUuid()}})
		delete(w.known, e.GetUuid())
		return wanted
	}
	if w.fleet.Chooses(w.chosen, w.fleet.Of(g)) {
		w.known[e.GetUuid()] = true
	}
	return w.known[e.GetUuid()]
}

// toEvent translates an event of the log.
func toEvent(e event.Event) *lodgev1.Event {
	m := describeEvent(e.Payload)
	m.Seq, m.Time, m.Name, m.Uuid = e.Seq, timestamppb.New(e.Time), validUTF8(e.Source.Name), e.Source.UUID
	return m
}
