package rpc

import (
	"slices"
	"sync"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/word/event"
)

// family is a sort of object that events are about; event ids count from 0 in each.
type family int

// Families of events: domains, networks, storage pools, node devices and secrets.
const (
	// OfDomain is the family of events about domains.
	OfDomain family = iota
	// OfNetwork is the family of events about networks.
	OfNetwork
	// OfPool is the family of events about pools.
	OfPool
	// OfNodeDevice is the family of events about node devices.
	OfNodeDevice
	// OfSecret is the family of events about secrets.
	OfSecret
)

// EventIDs is the number of events in each family. Clients can subscribe to all of
// them, including events that Lodge has no reason to send.
var EventIDs = map[family]int32{OfDomain: 28, OfNetwork: 2, OfPool: 2, OfNodeDevice: 2, OfSecret: 2}

// maxSubscriptions bounds the subscriptions of one client. A client that watches each
// guest separately needs several for each.
const maxSubscriptions = 65536

// SubscriptionSize is about the daemon's memory for one subscription, in bytes.
const SubscriptionSize = 256

// Topic is a kind of event that a client subscribes to.
type Topic struct {
	Family family
	ID     int32
}

// Notice is an event as clients get it, without the number of their subscription.
type Notice struct {
	Topic   Topic
	object  string // UUID, or name of a node device
	name    string // of the object
	Proc    int32
	Message func(callback int32) xdr.Message
}

// subscription is one callback of a client.
type subscription struct {
	id     int32
	topic  Topic
	object string        // empty: all objects
	told   chan struct{} // closed when the client's reply is queued
}

// subscriptions are the event subscriptions of one client.
type subscriptions struct {
	mu      sync.Mutex
	last    int32
	all     []*subscription // oldest first
	pumping bool
}

// subscribe adds a callback. Events from now on will be sent, behind the reply: the
// caller runs told when the reply is queued.
func (s *Session) subscribe(log *event.Log, t Topic, object string) (id int32, told func(), err error) {
	if t.ID < 0 || t.ID >= EventIDs[t.Family] {
		return 0, nil, fault.New(fault.Invalid, fault.Call, "unknown event %d", t.ID)
	}
	s.subs.mu.Lock()
	defer s.subs.mu.Unlock()
	if len(s.subs.all) >= maxSubscriptions {
		return 0, nil, fault.New(fault.NoCapacity, fault.Call, "%d callbacks are registered on this connection", maxSubscriptions)
	}
	if !s.subs.pumping {
		s.subs.pumping = true
		reader := log.Reader()
		s.Client.work.Go(func() { s.pump(reader) })
	}
	s.subs.last++
	sub := &subscription{id: s.subs.last, topic: t, object: object, told: make(chan struct{})}
	s.subs.all = append(s.subs.all, sub)
	s.Client.Server.Memory.Take(s.Client, SubscriptionSize)
	return sub.id, func() { close(sub.told) }, nil
}

// unsubscribe drops a callback of the family.
func (s *Session) unsubscribe(f family, id int32) error {
	s.subs.mu.Lock()
	defer s.subs.mu.Unlock()
	before := len(s.subs.all)
	s.subs.all = slices.DeleteFunc(s.subs.all, func(sub *subscription) bool { return sub.id == id && sub.topic.Family == f })
	s.Client.Server.Memory.Give(s.Client, (before-len(s.subs.all))*SubscriptionSize)
	if len(s.subs.all) == before {
		return fault.New(fault.Invalid, fault.Call, "no callback %d is registered", id)
	}
	return nil
}

// unsubscribeAll drops every callback.
func (s *Session) unsubscribeAll() {
	s.subs.mu.Lock()
	defer s.subs.mu.Unlock()
	s.Client.Server.Memory.Give(s.Client, len(s.subs.all)*SubscriptionSize)
	s.subs.all = nil
}

// matching gives the callbacks that want a notice, oldest first.
func (s *Session) matching(n Notice) []*subscription {
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

// pump follows the log for one client. A client that reads slowly delays only
// itself: it falls behind, and then receives the events after the gap.
func (s *Session) pump(reader *event.Reader) {
	for {
		e, lost, err := reader.Next(s.Client.Reading)
		if err != nil {
			return
		}
		if lost > 0 {
			s.Client.log.Warn("a client reads its events too slowly", "lost", lost)
		}
		for _, n := range Notices(e) {
			if !s.SeesNotice(n) {
				continue
			}
			for _, sub := range s.matching(n) {
				if !s.notify(n, sub) {
					return
				}
			}
		}
	}
}

// notify sends one event, and reports whether the connection can take more.
func (s *Session) notify(n Notice, sub *subscription) bool {
	select {
	case <-sub.told:
	case <-s.Client.Reading.Done():
		return false
	}
	h := xdr.Header{Program: xdr.ProgramRemote, Version: xdr.Version, Proc: n.Proc, Type: xdr.TypeMessage}
	packet, err := xdr.AppendPacket(nil, h, n.Message(sub.id), 0)
	if err != nil {
		s.Client.log.Error("an event does not fit the protocol", "proc", n.Proc, "error", err)
		return true
	}
	return s.Client.send(&outgoing{packet: packet})
}
