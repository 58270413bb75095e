package qmp

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func event(name, data string) Event {
	if data == "" {
		return Event{Name: name}
	}
	return Event{Name: name, Data: json.RawMessage(data)}
}

func drain(q *eventQueue) (all []Event) {
	for {
		e, ok, _ := q.take()
		if !ok {
			return all
		}
		all = append(all, e)
	}
}

func TestEventQueue_TelemetryCoalesces(t *testing.T) {
	q := newEventQueue()
	q.put(event("VSERPORT_CHANGE", `{"id": "agent", "open": true}`))
	q.put(event("VSERPORT_CHANGE", `{"id": "spice", "open": true}`))
	q.put(event("BALLOON_CHANGE", `{"actual": 1}`))
	q.put(event("STOP", ""))
	q.put(event("BALLOON_CHANGE", `{"actual": 2}`))
	q.put(event("VSERPORT_CHANGE", `{"id": "agent", "open": false}`))
	q.put(event("STOP", ""))
	var got []string
	for _, e := range drain(q) {
		got = append(got, e.Name+string(e.Data))
		if e.Resync {
			t.Errorf("%s has a resync mark", e.Name)
		}
	}
	want := []string{
		`VSERPORT_CHANGE{"id": "spice", "open": true}`, "STOP", `BALLOON_CHANGE{"actual": 2}`,
		`VSERPORT_CHANGE{"id": "agent", "open": false}`, "STOP",
	}
	if !slices.Equal(got, want) {
		t.Fatalf("got  %q\nwant %q", got, want)
	}
}

func TestEventQueue_ShedsTelemetryFirst(t *testing.T) {
	q := newEventQueue()
	for i := range 2 * maxQueuedEvents {
		q.put(event("VSERPORT_CHANGE", fmt.Sprintf(`{"id": "%d"}`, i)))
	}
	for range maxQueuedEvents - 1 {
		q.put(event("STOP", ""))
	}
	q.put(event("SHUTDOWN", ""))
	all := drain(q)
	if len(all) != maxQueuedEvents || all[0].Name != "STOP" || all[len(all)-1].Name != "SHUTDOWN" {
		t.Fatalf("%d events, from %s to %s", len(all), all[0].Name, all[len(all)-1].Name)
	}
	if !all[0].Resync || slices.ContainsFunc(all[1:], func(e Event) bool { return e.Resync }) {
		t.Error("the loss is not marked once, on the event behind it")
	}
}

// Promise: F4
func TestEventQueue_Resync(t *testing.T) {
	q := newEventQueue()
	for range maxQueuedEvents {
		q.put(event("STOP", ""))
	}
	q.put(event("SHUTDOWN", ""))
	if all := drain(q); len(all) != 1 || all[0].Name != "SHUTDOWN" || !all[0].Resync {
		t.Fatalf("got %+v", all)
	}
}

// Promise: F4
func TestEventQueue_HugeEvents(t *testing.T) {
	q := newEventQueue()
	big := json.RawMessage(make([]byte, maxQueuedBytes/2))
	for range 5 {
		q.put(Event{Name: "STOP", Data: big})
		if q.bytes > maxQueuedBytes {
			t.Fatalf("%d bytes are queued", q.bytes)
		}
	}
	q.put(Event{Name: "STOP", Data: make([]byte, maxQueuedBytes+1)})
	q.put(event("RESUME", ""))
	all := drain(q)
	if last := all[len(all)-1]; last.Name != "RESUME" || !last.Resync || q.bytes != 0 {
		t.Fatalf("the last of %d is %s, resync %v, %d bytes left", len(all), last.Name, last.Resync, q.bytes)
	}
}

// Promise: F4
func TestEventQueue_DeliveryRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, out, stop := newEventQueue(), make(chan Event), make(chan struct{})
		go q.deliver(out, stop)
		began := time.Now()
		for range passBurst + 10*passRate {
			q.put(event("STOP", ""))
			<-out
		}
		if took := time.Since(began).Round(time.Second); took != 10*time.Second {
			t.Errorf("it took %v", took)
		}
		close(stop)
	})
}

// Promise: F4
func TestEventQueue_HugeNames(t *testing.T) {
	q := newEventQueue()
	huge := strings.Repeat("X", maxQueuedBytes/2)
	for range 5 {
		q.put(Event{Name: huge})
		if len(q.waiting)*len(huge) > maxQueuedBytes {
			t.Fatalf("%d names of %d bytes are queued", len(q.waiting), len(huge))
		}
	}
	if all := drain(q); !all[len(all)-1].Resync || q.bytes != 0 {
		t.Errorf("the loss is not marked, or %d bytes are left", q.bytes)
	}
}

// TestSent_CountsUndelivered: the number of the newest event is known
// as soon as it was read, and is that of the last event delivered.
func TestSent_CountsUndelivered(t *testing.T) {
	q := newEventQueue()
	for _, name := range []string{"STOP", "RTC_CHANGE", "RTC_CHANGE", "RESUME"} {
		q.put(event(name, ""))
	}
	if q.newest() != 4 {
		t.Fatalf("the newest is %d", q.newest())
	}
	var numbers []uint64
	for _, e := range drain(q) {
		numbers = append(numbers, e.Number)
	}
	if !slices.Equal(numbers, []uint64{1, 3, 4}) {
		t.Fatalf("delivered %d", numbers)
	}
}
