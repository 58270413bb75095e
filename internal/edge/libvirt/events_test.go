package libvirt

import (
	"testing"

	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/word/event"
)

const (
	webUUID = "11111111-2222-3333-4444-555555555555"
	dbUUID  = "aaaaaaaa-2222-3333-4444-555555555555"
)

var (
	web = event.Source{Name: "web", UUID: webUUID, ID: 7}
	db  = event.Source{Name: "db", UUID: dbUUID, ID: -1}
)

func mustUUID(t *testing.T, text string) xdr.UUID {
	t.Helper()
	id, err := rpc.ParseUUID(text)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// watch registers a callback for an event of domains.
func (w *rawClient) watch(id int32, d *xdr.Domain) int32 {
	w.t.Helper()
	ret := new(xdr.WithCallbackID)
	w.must(xdr.ProcConnectDomainEventCallbackRegisterAny, &xdr.ConnectDomainEventCallbackRegisterAnyArgs{EventID: id, Domain: d}, ret)
	return ret.CallbackID
}

// event receives one message and decodes it.
func (w *rawClient) event(proc int32, msg xdr.Message) {
	w.t.Helper()
	p := w.next()
	if p.Type != xdr.TypeMessage || p.Serial != 0 || p.Proc != proc {
		w.t.Fatalf("got %+v, want event %d", p.Header, proc)
	}
	r := xdr.NewReader(p.payload)
	if err := msg.Decode(r); err != nil {
		w.t.Fatal(err)
	}
	if err := r.End(); err != nil {
		w.t.Fatal(err)
	}
}

func TestEvents_OnlySubscribers(t *testing.T) {
	h := serve(t)
	w := h.open("")
	all := w.watch(rpc.EventLifecycle, nil)
	one := w.watch(rpc.EventLifecycle, &xdr.Domain{Name: "web", UUID: mustUUID(t, webUUID)})
	h.events.Append(db, event.DomainChange{Change: event.Stopped, Detail: event.DetailDestroyed})
	h.events.Append(web, event.DomainReboot{}) // no client has subscribed to this event
	h.events.Append(web, event.DomainChange{Change: event.Started, Detail: event.DetailBooted})
	for _, want := range []xdr.DomainEventCallbackLifecycleMsg{
		{CallbackID: all, Msg: xdr.DomainEventLifecycleMsg{Domain: xdr.Domain{Name: "db", UUID: mustUUID(t, dbUUID), ID: -1}, Event: 5, Detail: 1}},
		{CallbackID: all, Msg: xdr.DomainEventLifecycleMsg{Domain: xdr.Domain{Name: "web", UUID: mustUUID(t, webUUID), ID: 7}, Event: 2}},
		{CallbackID: one, Msg: xdr.DomainEventLifecycleMsg{Domain: xdr.Domain{Name: "web", UUID: mustUUID(t, webUUID), ID: 7}, Event: 2}},
	} {
		var got xdr.DomainEventCallbackLifecycleMsg
		w.event(xdr.ProcDomainEventCallbackLifecycle, &got)
		if got != want {
			t.Fatalf("got %+v, want %+v", got, want)
		}
	}
	w.must(xdr.ProcConnectDomainEventCallbackDeregisterAny, &xdr.WithCallbackID{CallbackID: all}, nil)
	w.refused(xdr.ProcConnectDomainEventCallbackDeregisterAny, &xdr.WithCallbackID{CallbackID: all}, rpc.CodeInvalidArg)
	w.refused(xdr.ProcConnectNetworkEventDeregisterAny, &xdr.WithCallbackID{CallbackID: one}, rpc.CodeInvalidArg)
	h.events.Append(web, event.DomainChange{Change: event.Crashed, Detail: event.DetailPanicked})
	var last xdr.DomainEventCallbackLifecycleMsg
	w.event(xdr.ProcDomainEventCallbackLifecycle, &last)
	if last.CallbackID != one || last.Msg.Event != 8 {
		t.Fatalf("got %+v", last)
	}
}

func TestEvents_RegisterEachID(t *testing.T) {
	h := serve(t)
	w := h.open("-ro")
	for id := range rpc.EventIDs[rpc.DomainEvents] {
		w.watch(id, nil)
	}
	w.refused(xdr.ProcConnectDomainEventCallbackRegisterAny, &xdr.ConnectDomainEventCallbackRegisterAnyArgs{EventID: 28}, rpc.CodeInvalidArg)
	w.refused(xdr.ProcConnectDomainEventCallbackRegisterAny, &xdr.ConnectDomainEventCallbackRegisterAnyArgs{EventID: -1}, rpc.CodeInvalidArg)
	for id := range int32(2) {
		w.must(xdr.ProcConnectNetworkEventRegisterAny, &xdr.ConnectNetworkEventRegisterAnyArgs{EventID: id}, new(xdr.WithCallbackID))
		w.must(xdr.ProcConnectStoragePoolEventRegisterAny, &xdr.ConnectStoragePoolEventRegisterAnyArgs{EventID: id}, new(xdr.WithCallbackID))
		w.must(xdr.ProcConnectNodeDeviceEventRegisterAny, &xdr.ConnectNodeDeviceEventRegisterAnyArgs{EventID: id}, new(xdr.WithCallbackID))
		w.must(xdr.ProcConnectSecretEventRegisterAny, &xdr.ConnectSecretEventRegisterAnyArgs{EventID: id}, new(xdr.WithCallbackID))
	}
	w.must(xdr.ProcConnectRegisterCloseCallback, nil, nil)
	w.refused(xdr.ProcConnectRegisterCloseCallback, nil, rpc.CodeInternal)
	w.must(xdr.ProcConnectUnregisterCloseCallback, nil, nil)
}

// TestNotices_EveryPayload: each payload has the topics and messages that libvirt's
// clients expect, and can be encoded.
func TestNotices_EveryPayload(t *testing.T) {
	const domain, network, pool, node = rpc.DomainEvents, rpc.NetworkEvents, rpc.PoolEvents, rpc.NodeDeviceEvents
	type want struct {
		topic rpc.Topic
		proc  int32
	}
	for _, c := range []struct {
		payload event.Payload
		want    []want
	}{
		{event.DomainChange{Change: event.Shutdown, Detail: event.DetailFinished}, []want{{rpc.Topic{Family: domain, ID: 0}, 318}}},
		{event.DomainReboot{}, []want{{rpc.Topic{Family: domain, ID: 1}, 319}}},
		{event.DomainRTC{Offset: -5}, []want{{rpc.Topic{Family: domain, ID: 2}, 320}}},
		{event.DomainWatchdog{Action: "reset"}, []want{{rpc.Topic{Family: domain, ID: 3}, 321}}},
		{event.DomainIOError{Action: "pause", Reason: "enospc"}, []want{{rpc.Topic{Family: domain, ID: 4}, 322}, {rpc.Topic{Family: domain, ID: 6}, 324}}},
		{event.DomainGraphics{Phase: "connect", SASLUser: "me"}, []want{{rpc.Topic{Family: domain, ID: 5}, 323}}},
		{event.DomainBlockJob{Kind: "copy", Status: "ready"}, []want{{rpc.Topic{Family: domain, ID: 8}, 326}, {rpc.Topic{Family: domain, ID: 16}, 339}}},
		{event.DomainMediaChange{OldPath: "/a.iso", Reason: "missing on start"}, []want{{rpc.Topic{Family: domain, ID: 9}, 327}}},
		{event.DomainTray{Open: true}, []want{{rpc.Topic{Family: domain, ID: 10}, 328}}},
		{event.DomainPMWakeup{}, []want{{rpc.Topic{Family: domain, ID: 11}, 329}}},
		{event.DomainPMSuspend{To: "memory"}, []want{{rpc.Topic{Family: domain, ID: 12}, 330}}},
		{event.DomainBalloon{Actual: 1 << 30}, []want{{rpc.Topic{Family: domain, ID: 13}, 331}}},
		{event.DomainPMSuspend{To: "disk"}, []want{{rpc.Topic{Family: domain, ID: 14}, 332}}},
		{event.DomainDeviceRemoved{Alias: "net0"}, []want{{rpc.Topic{Family: domain, ID: 15}, 333}}},
		{event.DomainTunable{Settings: []event.Setting{{Name: "a", Value: uint64(1)}, {Name: "b", Value: "x"}}}, []want{{rpc.Topic{Family: domain, ID: 17}, 346}}},
		{event.DomainAgent{Connected: true, Reason: "channel"}, []want{{rpc.Topic{Family: domain, ID: 18}, 348}}},
		{event.DomainDeviceAdded{Alias: "net0"}, []want{{rpc.Topic{Family: domain, ID: 19}, 354}}},
		{event.DomainJob{Kind: "save", Success: true}, []want{{rpc.Topic{Family: domain, ID: 21}, 363}}},
		{event.DomainDeviceRemovalFailed{Alias: "net0"}, []want{{rpc.Topic{Family: domain, ID: 22}, 367}}},
		{event.DomainMetadata{Kind: "element", URI: "urn:x"}, []want{{rpc.Topic{Family: domain, ID: 23}, 379}}},
		{event.DomainBlockThreshold{Device: "vda"}, []want{{rpc.Topic{Family: domain, ID: 24}, 385}}},
		{event.DomainMemoryFailure{Recipient: "guest"}, []want{{rpc.Topic{Family: domain, ID: 25}, 423}}},
		{event.NetworkChange{Change: event.Started}, []want{{rpc.Topic{Family: network, ID: 0}, 315}}},
		{event.NetworkMetadata{Kind: "title"}, []want{{rpc.Topic{Family: network, ID: 1}, 446}}},
		{event.PoolChange{Change: event.Created}, []want{{rpc.Topic{Family: pool, ID: 0}, 370}}},
		{event.PoolRefresh{}, []want{{rpc.Topic{Family: pool, ID: 1}, 373}}},
		{event.NodeDeviceChange{Change: event.Deleted}, []want{{rpc.Topic{Family: node, ID: 0}, 376}}},
		{event.SecretChange{Change: event.Undefined, Usage: "volume", For: "/a"}, []want{{rpc.Topic{Family: rpc.SecretEvents, ID: 0}, 382}}},
		{event.SecretValue{Usage: "tls", For: "a"}, []want{{rpc.Topic{Family: rpc.SecretEvents, ID: 1}, 383}}},
	} {
		got := rpc.Notices(event.Event{Source: web, Payload: c.payload})
		if len(got) != len(c.want) {
			t.Errorf("%T: %d notices, want %d", c.payload, len(got), len(c.want))
			continue
		}
		for i, n := range got {
			if n.Topic != c.want[i].topic || n.Proc != c.want[i].proc {
				t.Errorf("%T: topic %v proc %d, want %v", c.payload, n.Topic, n.Proc, c.want[i])
			}
			checkMessage(t, n)
		}
	}
}

// checkMessage encodes a notice, and decodes it by the procedure table.
func checkMessage(t *testing.T, n rpc.Notice) {
	t.Helper()
	b, err := n.Message(5).Append(nil)
	if err != nil {
		t.Errorf("event %d: %v", n.Proc, err)
		return
	}
	r := xdr.NewReader(b)
	if err := xdr.Lookup(xdr.ProgramRemote, n.Proc).NewArgs().Decode(r); err != nil {
		t.Errorf("event %d: %v", n.Proc, err)
	} else if err := r.End(); err != nil {
		t.Errorf("event %d: %v", n.Proc, err)
	}
}

// TestEvents_ChangeNumbers: each change has a number, and each detail of it a number of its own.
func TestEvents_ChangeNumbers(t *testing.T) {
	for change, details := range rpc.DomainDetails {
		if _, ok := rpc.DomainChanges[change]; !ok {
			t.Errorf("change %q has no number", change)
		}
		seen := map[int32]string{}
		for word, number := range details {
			if other, twice := seen[number]; twice {
				t.Errorf("%s: %q and %q are both %d", change, word, other, number)
			}
			seen[number] = word
		}
	}
	if len(rpc.DomainDetails) != len(rpc.DomainChanges) {
		t.Error("a change has no details")
	}
}

// A client that reads events too slowly loses the oldest ones and gets the later ones. The writer never waits.
func TestEvents_SlowReader(t *testing.T) {
	h := serve(t)
	w := h.open("")
	w.watch(rpc.EventRTC, nil)
	const storm = 8 * event.Capacity
	for i := range storm {
		h.events.Append(web, event.DomainRTC{Offset: int64(i)})
	}
	last := int64(-1)
	for last != storm-1 {
		var got xdr.DomainEventCallbackRTCChangeMsg
		w.event(xdr.ProcDomainEventCallbackRTCChange, &got)
		if got.Msg.Offset <= last {
			t.Fatalf("event %d after %d", got.Msg.Offset, last)
		}
		last = got.Msg.Offset
	}
	w.works()
}
