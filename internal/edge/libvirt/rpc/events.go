package rpc

import (
	"slices"
	"sync"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/word/event"
)

// eventFamily is a type of object that events are about. Each has its own event ids, from 0.
type eventFamily int

// Families of events.
const (
	// DomainEvents is the family of events about domains.
	DomainEvents eventFamily = iota
	// NetworkEvents is the family of events about networks.
	NetworkEvents
	// PoolEvents is the family of events about pools.
	PoolEvents
	// NodeDeviceEvents is the family of events about node devices.
	NodeDeviceEvents
	// SecretEvents is the family of events about secrets.
	SecretEvents
)

// EventIDs is the number of events in each family. Clients can subscribe to all of
// them, including events that Lodge has no reason to send.
var EventIDs = map[eventFamily]int32{DomainEvents: 28, NetworkEvents: 2, PoolEvents: 2, NodeDeviceEvents: 2, SecretEvents: 2}

// maxSubscriptions bounds the subscriptions of one client. A client that watches each
// guest separately needs several for each.
const maxSubscriptions = 65536

// SubscriptionSize is about the daemon's memory for one subscription, in bytes.
const SubscriptionSize = 256

// Topic is a kind of event that a client subscribes to.
type Topic struct {
	Family eventFamily
	ID     int32
}

// Notice is an event as clients get it, except the id of their callback.
type Notice struct {
	Topic   Topic
	object  string // UUID, or name of a node device
	name    string // of the object, for the rules
	Proc    int32
	Message func(callback int32) xdr.Message
}

// subscription is one callback of a client.
type subscription struct {
	id          int32
	topic       Topic
	object      string        // empty: all objects
	replyQueued chan struct{} // closed when the reply with the callback's id is queued
}

// subscriptions are the event subscriptions of one client.
type subscriptions struct {
	mu      sync.Mutex
	last    int32
	all     []*subscription // oldest first
	sending bool
}

// subscribe adds a callback. It gets the events from now on, but after the reply: the
// caller runs replyQueued when the reply is queued.
func (s *Session) subscribe(log *event.Log, t Topic, object string) (id int32, replyQueued func(), err error) {
	if t.ID < 0 || t.ID >= EventIDs[t.Family] {
		return 0, nil, fault.New(fault.Invalid, fault.Call, "unknown event %d", t.ID)
	}
	s.subs.mu.Lock()
	defer s.subs.mu.Unlock()
	if len(s.subs.all) >= maxSubscriptions {
		return 0, nil, fault.New(fault.NoCapacity, fault.Call, "%d callbacks are registered on this connection", maxSubscriptions)
	}
	if !s.subs.sending {
		s.subs.sending = true
		reader := log.Reader()
		s.Client.work.Go(func() { s.sendEvents(reader) })
	}
	s.subs.last++
	sub := &subscription{id: s.subs.last, topic: t, object: object, replyQueued: make(chan struct{})}
	s.subs.all = append(s.subs.all, sub)
	s.Client.Server.Memory.Charge(s.Client, SubscriptionSize)
	return sub.id, func() { close(sub.replyQueued) }, nil
}

// unsubscribe removes a callback of a family.
func (s *Session) unsubscribe(f eventFamily, id int32) error {
	s.subs.mu.Lock()
	defer s.subs.mu.Unlock()
	before := len(s.subs.all)
	s.subs.all = slices.DeleteFunc(s.subs.all, func(sub *subscription) bool { return sub.id == id && sub.topic.Family == f })
	s.Client.Server.Memory.Release(s.Client, (before-len(s.subs.all))*SubscriptionSize)
	if len(s.subs.all) == before {
		return fault.New(fault.Invalid, fault.Call, "no callback %d is registered", id)
	}
	return nil
}

// unsubscribeAll removes every callback.
func (s *Session) unsubscribeAll() {
	s.subs.mu.Lock()
	defer s.subs.mu.Unlock()
	s.Client.Server.Memory.Release(s.Client, len(s.subs.all)*SubscriptionSize)
	s.subs.all = nil
}

// matchingSubscriptions returns the callbacks for a notice, oldest first.
func (s *Session) matchingSubscriptions(n Notice) []*subscription {
	s.subs.mu.Lock()
	defer s.subs.mu.Unlock()
	var found []*subscription
	for _, sub := range s.subs.all {
		if sub.topic == n.Topic && (sub.object == "" || sub.object == n.object) {
			found = append(found, sub)
		}
	}
	return found
}

// sendEvents follows the event log for one client. A client that reads slowly delays no
// other: it falls behind, loses the oldest events, and receives those after the gap.
func (s *Session) sendEvents(reader *event.Reader) {
	for {
		e, lost, err := reader.Next(s.Client.ReadCtx)
		if err != nil {
			return
		}
		if lost > 0 {
			s.Client.log.Warn("client reads events too slowly; events lost", "lost", lost)
		}
		for _, n := range Notices(e) {
			if !s.CanSeeNotice(n) {
				continue
			}
			for _, sub := range s.matchingSubscriptions(n) {
				if !s.sendEvent(n, sub) {
					return
				}
			}
		}
	}
}

// sendEvent sends one event, and reports whether the connection is still open.
func (s *Session) sendEvent(n Notice, sub *subscription) bool {
	select {
	case <-sub.replyQueued:
	case <-s.Client.ReadCtx.Done():
		return false
	}
	h := xdr.Header{Program: xdr.ProgramRemote, Version: xdr.Version, Proc: n.Proc, Type: xdr.TypeMessage}
	packet, err := xdr.AppendPacket(nil, h, n.Message(sub.id), 0)
	if err != nil {
		s.Client.log.Error("event cannot be encoded; not sent", "proc", n.Proc, "error", err)
		return true
	}
	return s.Client.send(&outgoing{packet: packet})
}
