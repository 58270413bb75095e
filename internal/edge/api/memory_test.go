package api

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lodge-kvm/lodge/api/lodgev1"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/control/memory"
	"github.com/lodge-kvm/lodge/internal/decision/arbiter"
)

// pictureOf returns a picture with a line for each of the first guests, the last one first.
func pictureOf(guests int, at time.Time) memory.Picture {
	p := memory.Picture{Mode: memory.Act, At: at, Host: arbiter.Host{Memory: 4096, Others: 1024}, Budget: 2949.5}
	for i := guests - 1; i >= 0; i-- {
		name, uuid, _ := document(i)
		p.Guests = append(p.Guests, memory.Line{
			Name: name, UUID: uuid, Mode: memory.Advise, Max: 1024, Asked: 512, Floor: 256, Has: 700, Resident: 650.5, Sampled: at.Add(-time.Second),
			Decision: arbiter.Decision{ID: uuid, Target: 712, Reason: arbiter.Grown, Need: 520, Margin: 64, Cache: 100, Spare: 28},
			Failure:  errors.New("QEMU did not answer"),
		})
	}
	return p
}

func TestMemory_Picture(t *testing.T) {
	h := serve(t, 3)
	at := time.Now().Add(-time.Second)
	h.server.MemoryPicture = func() memory.Picture { return pictureOf(2, at) } // no client calls yet
	answer, err := h.client().Memory(h.context(), &lodgev1.MemoryRequest{Select: []string{"web-1", "web-2"}})
	ok(t, err)
	for _, g := range answer.GetGuests() {
		if age := g.GetSampleAge().AsDuration(); age < 2*time.Second || age > patience {
			t.Errorf("the sample is %v old", age)
		}
		g.SampleAge = nil
	}
	_, uuid, _ := document(1)
	want := &lodgev1.MemoryResponse{
		Mode: "act", At: timestamppb.New(at),
		Host: &lodgev1.HostMemory{Total: 4096 << 20, Others: 1024 << 20, Budget: 29495 << 20 / 10, Resident: 1301 << 20, Targets: 1424 << 20},
		Guests: []*lodgev1.MemoryDecision{{
			Name: "web-1", Uuid: uuid, Mode: "advise", Max: 1024 << 20, Asked: 512 << 20, Floor: 256 << 20, Has: 700 << 20, Resident: 6505 << 20 / 10, Target: 712 << 20,
			Reason: "it needs more", Need: 520 << 20, Margin: 64 << 20, Cache: 100 << 20, Spare: 28 << 20,
			Sampled: timestamppb.New(at.Add(-time.Second)), Failure: "QEMU did not answer",
		}},
	}
	if diff := cmp.Diff(want, answer, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	all, err := h.client().Memory(h.context(), &lodgev1.MemoryRequest{})
	ok(t, err)
	if n := len(all.GetGuests()); n != 2 || all.GetGuests()[0].GetName() != "web-0" {
		t.Errorf("%d guests, not two by name", n)
	}
}

// Without a manager, with mode off, and before its first look there is only the mode.
func TestMemory_NoPicture(t *testing.T) {
	h := serve(t, 1)
	for _, p := range []func() memory.Picture{nil, func() memory.Picture { return memory.Picture{Mode: memory.Off} }} {
		h.server.MemoryPicture = p
		answer, err := h.server.Memory(h.context(), &lodgev1.MemoryRequest{})
		ok(t, err)
		if diff := cmp.Diff(&lodgev1.MemoryResponse{Mode: "off"}, answer, protocmp.Transform()); diff != "" {
			t.Error(diff)
		}
	}
	if _, err := h.server.Memory(h.context(), &lodgev1.MemoryRequest{Select: []string{"colour=red"}}); !fault.Is(err, fault.Invalid) {
		t.Errorf("an unknown term gives %v", err)
	}
}

// TestRights_MemoryOfInvisibleGuests: a client that may see one guest gets no figure of the others, also not in a sum.
// Promise: A1
func TestRights_MemoryOfInvisibleGuests(t *testing.T) {
	h := serve(t, 3)
	h.server.MemoryPicture = func() memory.Picture { return pictureOf(3, time.Now()) }
	ctx := h.held("may: read, guests: web-0")
	for _, selectors := range [][]string{nil, {"web-*"}, {"web-1", "web-0"}} {
		answer, err := h.server.Memory(ctx, &lodgev1.MemoryRequest{Select: selectors})
		ok(t, err)
		if n := len(answer.GetGuests()); n != 1 || answer.GetGuests()[0].GetName() != "web-0" || answer.GetHost().GetTargets() != 712<<20 {
			t.Errorf("%q shows %d guests, with targets of %d bytes", selectors, n, answer.GetHost().GetTargets())
		}
	}
	answer, err := h.server.Memory(ctx, &lodgev1.MemoryRequest{Select: []string{"web-1"}})
	ok(t, err)
	if len(answer.GetGuests()) != 0 {
		t.Error("the client sees web-1")
	}
	if err := h.server.checkRights(caller(h.held("may: start, guests: web-0")), lodgev1.LodgeMemoryProcedure); !fault.Is(err, fault.Denied) {
		t.Errorf("a client that may not read: %v", err)
	}
}
