package cli

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lodge-kvm/lodge/api/lodgev1"
)

// recorded is an answer with a guest for each kind of decision.
func recorded(mode string) *lodgev1.MemoryResponse {
	const mib = 1 << 20
	sampled, moved := timestamppb.New(noon.Add(-2*time.Second)), timestamppb.New(noon.Add(-90*time.Second))
	return &lodgev1.MemoryResponse{
		Mode: mode, At: timestamppb.New(noon),
		Host: &lodgev1.HostMemory{Total: 4096 * mib, Others: 1024 * mib, Shared: 100 * mib, Budget: 2949 * mib, Resident: 2200 * mib, Targets: 2500 * mib},
		Guests: []*lodgev1.MemoryDecision{
			{
				Name: "db-1", Uuid: "u-db-1", Mode: mode, Max: 1024 * mib, Asked: 512 * mib, Floor: 512 * mib, Has: 700 * mib, Resident: 650 * mib, Target: 712 * mib, Reason: "it needs more",
				Need: 520 * mib, Margin: 64 * mib, Cache: 100 * mib, Spare: 28 * mib, Sampled: sampled, SampleAge: durationpb.New(2 * time.Second),
				Moved: moved, MovedAge: durationpb.New(90 * time.Second),
			},
			{
				Name: "gpu", Uuid: "u-gpu", Mode: mode, Max: 512 * mib, Asked: 512 * mib, Floor: 512 * mib, Has: 512 * mib, Resident: 512 * mib, Target: 512 * mib,
				Reason: "left alone", Apart: "a device of the host is passed through to it",
			},
			{
				Name: "web-1", Uuid: "u-web-1", Mode: mode, Max: 1024 * mib, Asked: 256 * mib, Floor: 200 * mib, Has: 800 * mib, Resident: 790 * mib, Target: 600 * mib,
				Reason: "others need what it does not use", Need: 500 * mib, Margin: 100 * mib, Cache: 60 * mib,
				Sampled: sampled, SampleAge: durationpb.New(2 * time.Second), Failure: "QEMU did not answer",
			},
		},
	}
}

func TestMemoryView_Once(t *testing.T) {
	early := recorded("act")
	early.At, early.Guests = nil, nil
	idle := recorded("act")
	idle.Host.Shared, idle.Guests = 0, nil
	for name, c := range map[string]struct {
		answer *lodgev1.MemoryResponse
		form   string
		width  int
	}{
		"memory":        {recorded("act"), Narrow, 0},
		"memory-wide":   {recorded("advise"), Wide, 0},
		"memory-narrow": {recorded("act"), Wide, 80},
		"memory-json":   {recorded("act"), JSON, 0},
		"memory-off":    {&lodgev1.MemoryResponse{Mode: "off"}, Narrow, 0},
		"memory-early":  {early, Narrow, 0},
		"memory-idle":   {idle, Narrow, 0},
	} {
		var out bytes.Buffer
		v := &MemoryView{Client: (&daemon{memory: c.answer}).dial(t), Form: c.form, Out: &out}
		ok(t, v.Once(t.Context(), c.width))
		golden(t, name, out.String())
	}
}

func TestMemoryView_Refusals(t *testing.T) {
	c := (&daemon{memory: &lodgev1.MemoryResponse{Mode: "off"}}).dial(t)
	for _, v := range []struct {
		view MemoryView
		want string
	}{
		{MemoryView{Form: Narrow, Selectors: []string{"nosuch"}}, `"nosuch"`},
		{MemoryView{Form: JSON, Selectors: []string{"nosuch", "web-*"}}, `"nosuch" or the others`},
		{MemoryView{Form: "yaml"}, `"yaml"`},
	} {
		var out bytes.Buffer
		v.view.Client, v.view.Out = c, &out
		err := v.view.Once(t.Context(), 0)
		if ending, known := errors.AsType[*Ending](err); !known || ending.Status != Unusable || !strings.Contains(ending.Text, v.want) || out.Len() > 0 {
			t.Errorf("%q as %s: %v\n%s", v.view.Selectors, v.view.Form, err, &out)
		}
	}
}

func TestMemoryView_LiveUntilQ(t *testing.T) {
	var out bytes.Buffer
	v := &MemoryView{Client: (&daemon{memory: recorded("act")}).dial(t), Form: Narrow, Out: &out}
	pressed, painted := make(chan byte), make(chan struct{}, 9)
	ended := make(chan error, 1)
	go func() {
		ended <- v.Live(t.Context(), pressed, func() (int, int) {
			painted <- struct{}{}
			return 60, 10
		})
	}()
	<-painted
	pressed <- 'x'
	pressed <- 'q'
	ok(t, <-ended)
	if text := out.String(); !strings.Contains(text, "db-1") || !strings.Contains(text, "q quits") || !strings.HasSuffix(text, "\x1b[?1049l") {
		t.Errorf("shown: %q", text)
	}
	v.Form = JSON
	if err := v.Live(t.Context(), pressed, nil); err == nil {
		t.Error("JSON is shown live")
	}
}

// Of guests that run the memory is explained, too.
func TestWhy_Memory(t *testing.T) {
	guests := []*lodgev1.Guest{
		{Name: "db-1", Uuid: "u-db-1", Pid: 1, State: "running", Decisions: []string{"a virtio-rng: it had none; undo: virsh detach-device-alias"}},
		{Name: "gpu", Uuid: "u-gpu", Pid: 2, State: "running"},
		{Name: "off", Uuid: "u-off", State: "shut off"},
		{Name: "web-1", Uuid: "u-web-1", Pid: 3, State: "running"},
		{Name: "web-2", Uuid: "u-web-2", Pid: 4, State: "crashed"},
	}
	for name, c := range map[string]struct {
		guests []*lodgev1.Guest
		answer *lodgev1.MemoryResponse
	}{
		"why":        {guests, recorded("act")},
		"why-advise": {guests[3:4], recorded("advise")},
		"why-off":    {guests, &lodgev1.MemoryResponse{Mode: "off"}},
	} {
		var out bytes.Buffer
		ok(t, (&daemon{guests: c.guests, memory: c.answer}).dial(t).Why(t.Context(), nil, &out))
		golden(t, name, out.String())
	}
	c := (&daemon{guests: guests[2:3]}).dial(t) // asks for no memory
	var out bytes.Buffer
	ok(t, c.Why(t.Context(), []string{"off"}, &out))
	err := (&daemon{}).dial(t).Why(t.Context(), []string{"nosuch"}, &out)
	if ending, known := errors.AsType[*Ending](err); !known || ending.Status != Unusable || !strings.Contains(ending.Text, `"nosuch"`) || out.Len() > 0 {
		t.Errorf("an unknown guest: %v\n%s", err, &out)
	}
}
