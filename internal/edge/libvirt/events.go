package libvirt

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
	ofDomain family = iota
	ofNetwork
	ofPool
	ofNodeDevice
	ofSecret
)

// eventIDs is the number of events in each family. Clients can subscribe to all of
// them, including events that Lodge has no reason to send.
var eventIDs = map[family]int32{ofDomain: 28, ofNetwork: 2, ofPool: 2, ofNodeDevice: 2, ofSecret: 2}

// maxSubscriptions bounds the subscriptions of one client. A client that watches each
// guest separately needs several for each.
const maxSubscriptions = 65536

// subscriptionSize is about the daemon's memory for one subscription, in bytes.
const subscriptionSize = 256

// topic is a kind of event that a client subscribes to.
type topic struct {
	family family
	id     int32
}

// notice is an event as clients get it, without the number of their subscription.
type notice struct {
	topic   topic
	object  string // UUID, or name of a node device
	name    string // of the object
	proc    int32
	message func(callback int32) xdr.Message
}

// subscription is one callback of a client.
type subscription struct {
	id     int32
	topic  topic
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
func (s *session) subscribe(log *event.Log, t topic, object string) (id int32, told func(), err error) {
	if t.id < 0 || t.id >= eventIDs[t.family] {
		return 0, nil, fault.New(fault.Invalid, fault.Call, "unknown event %d", t.id)
	}
	s.subs.mu.Lock()
	defer s.subs.mu.Unlock()
	if len(s.subs.all) >= maxSubscriptions {
		return 0, nil, fault.New(fault.NoCapacity, fault.Call, "%d callbacks are registered on this connection", maxSubscriptions)
	}
	if !s.subs.pumping {
		s.subs.pumping = true
		reader := log.Reader()
		s.client.work.Go(func() { s.pump(reader) })
	}
	s.subs.last++
	sub := &subscription{id: s.subs.last, topic: t, object: object, told: make(chan struct{})}
	s.subs.all = append(s.subs.all, sub)
	s.client.server.memory.take(s.client, subscriptionSize)
	return sub.id, func() { close(sub.told) }, nil
}

// unsubscribe drops a callback of the family.
func (s *session) unsubscribe(f family, id int32) error {
	s.subs.mu.Lock()
	defer s.subs.mu.Unlock()
	before := len(s.subs.all)
	s.subs.all = slices.DeleteFunc(s.subs.all, func(sub *subscription) bool { return sub.id == id && sub.topic.family == f })
	s.client.server.memory.give(s.client, (before-len(s.subs.all))*subscriptionSize)
	if len(s.subs.all) == before {
		return fault.New(fault.Invalid, fault.Call, "no callback %d is registered", id)
	}
	return nil
}

// unsubscribeAll drops every callback.
func (s *session) unsubscribeAll() {
	s.subs.mu.Lock()
	defer s.subs.mu.Unlock()
	s.client.server.memory.give(s.client, len(s.subs.all)*subscriptionSize)
	s.subs.all = nil
}

// matching gives the callbacks that want a notice, oldest first.
func (s *session) matching(n notice) []*subscription {
	s.subs.mu.Lock()
	defer s.subs.mu.Unlock()
	var found []*subscription
	for _, sub := range s.subs.all {
		if sub.topic == n.topic && (sub.object == "" || sub.object == n.object) {
			found = append(found, sub)
		}
	}
	return found
}

// pump follows the log for one client. A client that reads slowly delays only
// itself: it falls behind, and then receives the events after the gap.
func (s *session) pump(reader *event.Reader) {
	for {
		e, lost, err := reader.Next(s.client.reading)
		if err != nil {
			return
		}
		if lost > 0 {
			s.client.log.Warn("a client reads its events too slowly", "lost", lost)
		}
		for _, n := range notices(e) {
			if !s.seesNotice(n) {
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
func (s *session) notify(n notice, sub *subscription) bool {
	select {
	case <-sub.told:
	case <-s.client.reading.Done():
		return false
	}
	h := xdr.Header{Program: xdr.ProgramRemote, Version: xdr.Version, Proc: n.proc, Type: xdr.TypeMessage}
	packet, err := xdr.AppendPacket(nil, h, n.message(sub.id), 0)
	if err != nil {
		s.client.log.Error("an event does not fit the protocol", "proc", n.proc, "error", err)
		return true
	}
	return s.client.send(&outgoing{packet: packet})
}
