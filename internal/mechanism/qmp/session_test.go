package qmp_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp/qmptest"
)

type object = map[string]any

var quiet = slog.New(slog.DiscardHandler)

func open(t *testing.T, m *qmptest.Monitor) *qmp.Session {
	t.Helper()
	s, err := qmp.New(t.Context(), m.Conn(), quiet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func TestExecute_Answer(t *testing.T) {
	m := qmptest.New(t)
	m.Expect("query-status").Return(object{"running": true, "status": "running"})
	m.Expect("stop").With(nil)
	m.Expect("device_del").With(object{"id": "disk0"})
	s := open(t, m)

	if v := s.Greeting().Version; v.QEMU.Major != 7 || v.QEMU.Minor != 2 || v.Package != "qmptest" {
		t.Errorf("greeting says version %+v", v)
	}
	var status struct{ Status string }
	if err := s.Execute(t.Context(), "query-status", nil, &status); err != nil || status.Status != "running" {
		t.Fatalf("got %+v, %v", status, err)
	}
	if err := s.Execute(t.Context(), "stop", object(nil), nil); err != nil {
		t.Fatal(err)
	}
	if err := s.Execute(t.Context(), "device_del", object{"id": "disk0"}, nil); err != nil {
		t.Fatal(err)
	}
}

func TestExecute_Refused(t *testing.T) {
	for _, c := range []struct {
		class string
		kind  fault.Kind
		about fault.Subject
	}{
		{qmp.ClassGeneric, fault.Failed, fault.Monitor},
		{qmp.ClassCommandNotFound, fault.Unsupported, fault.Monitor},
		{qmp.ClassDeviceNotFound, fault.NotFound, fault.Device},
	} {
		m := qmptest.New(t)
		m.Expect("device_del").Refuse(c.class, "no such thing")
		err := open(t, m).Execute(t.Context(), "device_del", object{"id": "x"}, nil)
		if fault.Of(err) != c.kind || fault.About(err) != c.about || !qmp.IsClass(err, c.class) {
			t.Errorf("%s became %v about %v: %v", c.class, fault.Of(err), fault.About(err), err)
		}
		if !strings.Contains(err.Error(), "device_del") || !strings.Contains(err.Error(), "no such thing") {
			t.Errorf("the text %q does not say what and why", err)
		}
	}
}

// TestExecute_LongRefusal: QEMU chooses the text of a refusal, which goes to clients and to the log.
func TestExecute_LongRefusal(t *testing.T) {
	m := qmptest.New(t)
	m.Expect("query-status").Refuse(qmp.ClassGeneric, strings.Repeat("é", 1<<20))
	err := open(t, m).Execute(t.Context(), "query-status", nil, nil)
	if text := err.Error(); len(text) > 2048 || !utf8.ValidString(text) || !strings.Contains(text, "éé") {
		t.Errorf("a refusal has %d bytes", len(text))
	}
}

func TestExecute_AnswersOutOfOrder(t *testing.T) {
	client, server := net.Pipe()
	defer server.Close()
	// A peer that collects ten commands before it answers them backwards.
	go func() {
		d := json.NewDecoder(server)
		fmt.Fprintln(server, `{"QMP": {}}`)
		var q struct {
			ID        uint64
			Arguments json.RawMessage
		}
		_ = d.Decode(&q)
		fmt.Fprintf(server, `{"return": {}, "id": %d}`+"\n", q.ID)
		var replies []string
		for range 10 {
			if d.Decode(&q) != nil {
				return
			}
			replies = append(replies, fmt.Sprintf(`{"return": %s, "id": %d}`, q.Arguments, q.ID))
		}
		slices.Reverse(replies)
		fmt.Fprintln(server, strings.Join(replies, "\n"))
	}()
	s, err := qmp.New(t.Context(), client, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var all sync.WaitGroup
	for i := range 10 {
		all.Go(func() {
			var got int
			if err := s.Execute(t.Context(), "echo", i, &got); err != nil || got != i {
				t.Errorf("command %d got %d, %v", i, got, err)
			}
		})
	}
	all.Wait()
}

func TestExecute_NoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := qmptest.New(t)
		m.Expect("query-block").Silence()
		m.Expect("query-status").Return(object{"status": "paused"})
		s := open(t, m)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		err := s.Execute(ctx, "query-block", nil, nil)
		if !fault.Is(err, fault.Timeout) || !strings.Contains(err.Error(), "query-block within 5s") {
			t.Fatalf("got %v", err)
		}
		if command, since := s.LongestUnanswered(); command != "query-block" || time.Since(since) != 5*time.Second {
			t.Errorf("%s has waited since %v", command, since)
		}
		if err := s.Execute(t.Context(), "query-status", nil, nil); err != nil {
			t.Fatalf("one slow command ended the session: %v", err)
		}
		if command, since := s.LongestUnanswered(); command != "query-block" || !time.Now().Equal(since) {
			t.Errorf("%s has waited since %v although QEMU has just answered", command, since)
		}
	})
}

func TestExecute_DefaultDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := qmptest.New(t)
		m.Expect("query-block").Silence()
		s := open(t, m)
		if err := s.Execute(context.Background(), "query-block", nil, nil); !fault.Is(err, fault.Timeout) {
			t.Fatalf("got %v", err)
		}
	})
}

func TestExecute_Cancelled(t *testing.T) {
	m := qmptest.New(t)
	asked := m.Expect("query-block").Silence().Asked()
	s := open(t, m)
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() { <-asked; cancel(nil) }()
	if err := s.Execute(ctx, "query-block", nil, nil); !fault.Is(err, fault.Aborted) {
		t.Fatalf("got %v", err)
	}
}

func TestExecute_TooManyUnanswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		defer server.Close()
		go func() {
			fmt.Fprintln(server, `{"QMP": {}}`)
			d := json.NewDecoder(server)
			var q struct{ ID uint64 }
			_ = d.Decode(&q)
			fmt.Fprintf(server, `{"return": {}, "id": %d}`+"\n", q.ID)
			_, _ = io.Copy(io.Discard, server)
		}()
		s, err := qmp.New(t.Context(), client, quiet)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		for range 1000 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			err = s.Execute(ctx, "query-status", nil, nil)
			cancel()
			if fault.Is(err, fault.Busy) {
				return
			}
		}
		t.Fatalf("commands pile up without bound; the last one: %v", err)
	})
}

func TestExecute_SessionLost(t *testing.T) {
	m := qmptest.New(t)
	asked := m.Expect("query-block").Silence().Asked()
	s := open(t, m)
	go func() { <-asked; m.Hangup() }()
	err := s.Execute(t.Context(), "query-block", nil, nil)
	if !errors.Is(err, io.EOF) || !fault.Is(err, fault.Failed) || !strings.Contains(err.Error(), "query-block") {
		t.Fatalf("the waiting command got %v", err)
	}
	<-s.Done()
	if !errors.Is(s.Err(), io.EOF) {
		t.Errorf("the session ended by %v", s.Err())
	}
	if err := s.Execute(t.Context(), "query-status", nil, nil); !errors.Is(err, io.EOF) {
		t.Errorf("a later command got %v", err)
	}
}

// Promise: F4
func TestSession_InvalidMessage(t *testing.T) {
	for name, line := range map[string]string{
		"no JSON":                "hello\n",
		"no object":              "[]\n",
		"an object of no sort":   "{}\n",
		"binary":                 "\x00\xff\x00\n",
		"an error for no one":    `{"error": {"class": "GenericError", "desc": "JSON parse error"}}` + "\n",
		"an event of wrong sort": `{"event": 7}` + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			m := qmptest.New(t)
			s := open(t, m)
			go m.Raw(line)
			<-s.Done()
			if s.Err() == nil || errors.Is(s.Err(), qmp.ErrClosed) {
				t.Fatalf("ended by %v", s.Err())
			}
		})
	}
}

func TestSession_StrayAnswers(t *testing.T) {
	m := qmptest.New(t)
	m.Expect("query-status").Return(object{"status": "paused"})
	s := open(t, m)
	m.Raw(`{"return": {}, "id": 99}` + "\n" + `{"return": {}, "id": "x"}` + "\n" + `{"return": {}}` + "\n\r\n" + `{"QMP": {}}` + "\n")
	if err := s.Execute(t.Context(), "query-status", nil, nil); err != nil {
		t.Fatal(err)
	}
}

// Promise: F4
func TestExecute_LargeAnswers(t *testing.T) {
	m := qmptest.New(t)
	var cpus []object
	for i := range 4096 {
		cpus = append(cpus, object{"cpu-index": i, "qom-path": strings.Repeat("/machine/unattached", 30), "thread-id": i, "target": "x86_64"})
	}
	m.Expect("query-cpus-fast").Return(cpus)
	s := open(t, m)
	var got []struct {
		Index int `json:"cpu-index"`
	}
	if err := s.Execute(t.Context(), "query-cpus-fast", nil, &got); err != nil || len(got) != len(cpus) || got[4095].Index != 4095 {
		t.Fatalf("%d processors, %v", len(got), err)
	}
}

func TestEvents_OrderAndLoss(t *testing.T) {
	m := qmptest.New(t)
	m.Expect("system_reset").Before("STOP", nil).Then("RESET", object{"guest": false, "reason": "host-qmp-system-reset"})
	s := open(t, m)
	if err := s.Execute(t.Context(), "system_reset", nil, nil); err != nil {
		t.Fatal(err)
	}
	m.Emit("SHUTDOWN", object{"guest": true, "reason": "guest-shutdown"})
	m.Hangup()
	<-s.Done()
	var names []string
	for e := range s.Events() {
		names = append(names, e.Name)
		if e.Time.Unix() != 1700000000 {
			t.Errorf("%s at %v", e.Name, e.Time)
		}
	}
	if want := []string{"STOP", "RESET", "SHUTDOWN"}; !slices.Equal(names, want) {
		t.Fatalf("got %q, want %q", names, want)
	}
}

func TestEvents_IdleConsumer(t *testing.T) {
	m := qmptest.New(t)
	m.Answer("query-status", func(json.RawMessage) (any, error) { return object{"status": "running"}, nil })
	s := open(t, m)
	for range 5000 {
		m.Emit("STOP", nil)
	}
	if err := s.Execute(t.Context(), "query-status", nil, nil); err != nil {
		t.Fatal(err)
	}
}

// Messages of a QEMU that floods its monitor are read at a limited rate: the event log gets no more of its events than
// it can hold, the last one says that some are lost, and the session still
// works.
// Promise: F4
func TestEvents_Flood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		m := qmptest.New(t)
		m.Answer("query-status", func(json.RawMessage) (any, error) { return object{"status": "running"}, nil })
		s, err := qmp.New(t.Context(), m.Conn(), slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		began := time.Now()
		go m.Raw(strings.Repeat(`{"event":"STOP"}`+"\n"+`{"return":{},"id":99}`+"\n", 20_000) +
			strings.Repeat("\n", 400_000) + `{"event":"SHUTDOWN"}` + "\n")
		passed, lost := 0, false
		for e := range s.Events() {
			passed, lost = passed+1, lost || e.Resync
			if e.Name == "SHUTDOWN" {
				break
			}
		}
		took := time.Since(began)
		if passed > 10_000+1024*int(took.Seconds()) || !lost {
			t.Errorf("%d events were passed on in %v, marked as incomplete: %v", passed, took, lost)
		}
		if took < 10*time.Second || took > time.Minute {
			t.Errorf("440,000 lines took %v", took)
		}
		if err := s.Execute(t.Context(), "query-status", nil, nil); err != nil {
			t.Error(err)
		}
		if lines := strings.Count(log.String(), "\n"); lines != 1 {
			t.Errorf("%d lines are logged", lines)
		}
	})
}

func TestClose_StopsEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // fails if a goroutine stays behind
		m := qmptest.New(t)
		s := open(t, m)
		m.Emit("STOP", nil)
		m.Emit("RESUME", nil)
		s.Close()
		s.Close()
		if !errors.Is(s.Err(), qmp.ErrClosed) {
			t.Fatalf("ended by %v", s.Err())
		}
	})
}

func TestNew_NoGreeting(t *testing.T) {
	for name, say := range map[string]string{"silence": "", "something else": `{"event": "STOP"}` + "\n", "rubbish": "SSH-2.0\n"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, server := net.Pipe()
				defer server.Close()
				go func() { _, _ = io.WriteString(server, say) }()
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, err := qmp.New(ctx, client, quiet)
				if want := map[bool]fault.Kind{true: fault.Timeout, false: fault.Failed}[say == ""]; fault.Of(err) != want {
					t.Fatalf("got %v: %v", fault.Of(err), err)
				}
			})
		})
	}
}

func TestDial_NoListener(t *testing.T) {
	if _, err := qmp.Dial(t.Context(), filepath.Join(t.TempDir(), "none"), quiet); !fault.Is(err, fault.Failed) {
		t.Fatalf("got %v", err)
	}
}

func TestExecuteFD_NotASocket(t *testing.T) {
	s := open(t, qmptest.New(t))
	err := s.ExecuteFD(t.Context(), nil, "getfd", object{"fdname": "x"}, nil)
	if !fault.Is(err, fault.Unsupported) || s.Err() != nil {
		t.Fatalf("got %v; the session ended by %v", err, s.Err())
	}
}

// TestExecute_Noncharacter: QEMU's answer to it would have no id.
// Promise: F5
func TestExecute_Noncharacter(t *testing.T) {
	m := qmptest.New(t)
	s := open(t, m)
	for _, text := range []string{"\ufdd0", "a\ufdefb", "\ufffe", "\U0001ffff", "\U0010fffe"} {
		err := s.Execute(t.Context(), "set_password", object{"protocol": "vnc", "password": text}, nil)
		if !fault.Is(err, fault.Invalid) || !qmp.IsClass(err, qmp.ClassGeneric) {
			t.Errorf("%q: %v", text, err)
		}
	}
	m.Expect("set_password")
	if err := s.Execute(t.Context(), "set_password", object{"protocol": "vnc", "password": "\ufdcf\ufdf0\ufffd\U0010fffd"}, nil); err != nil {
		t.Error(err)
	}
}
