package agent

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// request is a command that a fake agent received.
type request struct {
	Execute   string
	Arguments struct{ ID int64 }
	raw       string
}

// guest is the guest's end of a channel, with or without an agent.
type guest struct {
	conn net.Conn
	in   *bufio.Reader
}

// next reads a request; bytes that reset the parser are gone through.
func (g *guest) next() (r request, ok bool) {
	line, err := g.in.ReadBytes('\n')
	if err != nil {
		return r, false
	}
	r.raw = string(bytes.Trim(line, "\xff\n"))
	return r, json.Unmarshal([]byte(r.raw), &r) == nil
}

func (g *guest) say(text string) { _, _ = io.WriteString(g.conn, text) }

// echo answers a synchronisation as the real agent does.
func (g *guest) echo(r request) { g.say(fmt.Sprintf("\xff{\"return\": %d}\n", r.Arguments.ID)) }

// inGuest returns a session with a guest that runs run.
func inGuest(t *testing.T, run func(*guest)) *Session {
	t.Helper()
	ours, theirs := net.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer theirs.Close()
		run(&guest{conn: theirs, in: bufio.NewReader(theirs)})
	}()
	s := New(ours)
	t.Cleanup(func() { s.Close(); <-ended })
	return s
}

// wellBehaved is an agent that answers each command by reply.
func wellBehaved(reply func(request) string) func(*guest) {
	return func(g *guest) {
		for {
			r, ok := g.next()
			switch {
			case !ok:
				return
			case r.Execute == "guest-sync-delimited":
				g.echo(r)
			default:
				g.say(reply(r))
			}
		}
	}
}

func TestExecute_Answers(t *testing.T) {
	s := inGuest(t, wellBehaved(func(r request) string { return fmt.Sprintf(`{"return": %q}`, r.raw) + "\n" }))
	for args, want := range map[any]string{
		nil:                       `{"execute":"guest-info"}`,
		struct{ Verbose bool }{}:  `{"execute":"guest-info","arguments":{"Verbose":false}}`,
		(*struct{ X int })(nil):   `{"execute":"guest-info"}`,
		struct{ S string }{"ÿ\n"}: `{"execute":"guest-info","arguments":{"S":"ÿ\n"}}`,
	} {
		var got string
		if err := s.Execute(t.Context(), "guest-info", args, &got); err != nil || got != want {
			t.Errorf("asked %q, %v; want %q", got, err, want)
		}
	}
}

func TestExecute_Refusals(t *testing.T) {
	for class, kind := range map[string]fault.Kind{"GenericError": fault.Failed, "CommandNotFound": fault.Unsupported} {
		s := inGuest(t, wellBehaved(func(request) string {
			return fmt.Sprintf(`{"error": {"class": %q, "desc": "because"}}`, class) + "\n"
		}))
		for _, do := range []func() error{
			func() error { return s.Execute(t.Context(), "guest-shutdown", nil, nil) },
			func() error { return s.Order(t.Context(), "guest-shutdown", nil) },
		} {
			err := do()
			var refusal *Error
			if fault.Of(err) != kind || fault.About(err) != fault.Agent || !errors.As(err, &refusal) || refusal.Desc != "because" {
				t.Errorf("%s became %v: %v", class, fault.Of(err), err)
			}
		}
	}
}

func TestExecute_NoAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		s := inGuest(t, func(g *guest) { _, _ = io.Copy(io.Discard, g.conn) })
		err := s.Execute(t.Context(), "guest-fsfreeze-freeze", nil, nil)
		if !fault.Is(err, fault.Unresponsive) || fault.About(err) != fault.Agent || !strings.Contains(err.Error(), "guest-fsfreeze-freeze was not sent") {
			t.Errorf("got %v", err)
		}
		if waited := time.Since(began); waited != syncPatience {
			t.Errorf("it took %s to find out", waited)
		}
	})
}

func TestExecute_NoReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		s := inGuest(t, func(*guest) { <-stop })
		t.Cleanup(func() { close(stop) })
		if err := s.Execute(t.Context(), "guest-ping", nil, nil); !fault.Is(err, fault.Unresponsive) {
			t.Errorf("got %v", err)
		}
	})
}

func TestExecute_LateAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := make(chan struct{})
		s := inGuest(t, func(g *guest) {
			sync1, _ := g.next()
			g.echo(sync1)
			g.next()
			<-asked // the caller has given up
			sync2, _ := g.next()
			g.say(`{"return": "late"}` + "\n")
			g.echo(sync1) // an old one too
			g.echo(sync2)
			g.next()
			g.say(`{"return": "on time"}` + "\n")
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := s.Execute(ctx, "guest-exec", nil, nil)
		if !fault.Is(err, fault.Unresponsive) || !strings.Contains(err.Error(), "guest-exec within 1s; it may still") {
			t.Errorf("got %v", err)
		}
		close(asked)
		var got string
		if err := s.Execute(t.Context(), "guest-get-time", nil, &got); err != nil || got != "on time" {
			t.Errorf("got %q, %v", got, err)
		}
	})
}

func TestExecute_CommandWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, then := range map[string]func(*guest){
			"silence":     func(g *guest) { g.next() },
			"lost":        func(*guest) {},
			"an answer":   func(g *guest) { g.say("{\"return\": {}}\n") },
			"half a line": func(g *guest) { g.say("{\"ret") },
		} {
			s := inGuest(t, func(g *guest) {
				r, _ := g.next()
				g.echo(r)
				if r, _ := g.next(); r.Execute != "guest-shutdown" {
					t.Errorf("%s: asked %q", name, r.Execute)
				}
				then(g)
			})
			if err := s.Order(t.Context(), "guest-shutdown", nil); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

func TestExecute_Concurrent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := inGuest(t, wellBehaved(func(r request) string {
			if r.Execute == "guest-slow" {
				return ""
			}
			return "{\"return\": {}}\n"
		}))
		slow, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		go func() { _ = s.Execute(slow, "guest-slow", nil, nil) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.Execute(ctx, "guest-ping", nil, nil); !fault.Is(err, fault.Busy) {
			t.Errorf("got %v", err)
		}
		patient, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		if err := s.Execute(patient, "guest-ping", nil, nil); err != nil {
			t.Error(err)
		}
	})
}

// TestExecuteIf_RefusedInTurn: a command that waited for another is not sent if its client has lost the right
// meanwhile. The session serves the next command.
//
// Promise: A1
func TestExecuteIf_RefusedInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked []string
		s := inGuest(t, wellBehaved(func(r request) string {
			if asked = append(asked, r.Execute); r.Execute == "guest-slow" {
				<-time.After(10 * time.Second)
			}
			return "{\"return\": {}}\n"
		}))
		may := atomic.Bool{}
		may.Store(true)
		allowed := func() error {
			if may.Load() {
				return nil
			}
			return fault.New(fault.Denied, fault.Call, "the rules have changed")
		}
		go func() { _ = s.Execute(t.Context(), "guest-slow", nil, nil) }()
		synctest.Wait()
		waited := make(chan error, 1)
		go func() { waited <- s.ExecuteIf(t.Context(), allowed, "guest-exec", nil, nil) }()
		synctest.Wait()
		may.Store(false)
		if err := <-waited; !fault.Is(err, fault.Denied) {
			t.Errorf("the command that waited: %v", err)
		}
		may.Store(true)
		if err := s.ExecuteIf(t.Context(), allowed, "guest-ping", nil, nil); err != nil {
			t.Errorf("the next command: %v", err)
		}
		if want := []string{"guest-slow", "guest-ping"}; !slices.Equal(asked, want) {
			t.Errorf("the agent was asked %q, want %q", asked, want)
		}
	})
}

func TestExecute_Cancelled(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	s := inGuest(t, func(g *guest) {
		r, _ := g.next()
		g.echo(r)
		g.next()
		cancel(errors.New("the client has gone"))
		g.next()
	})
	err := s.Execute(ctx, "guest-exec", nil, nil)
	if !fault.Is(err, fault.Aborted) || !strings.Contains(err.Error(), "the client has gone") {
		t.Errorf("got %v", err)
	}
}

// Promise: X6
func TestExecute_HostileGuest(t *testing.T) {
	forever := func(text string) func(*guest) {
		return func(g *guest) {
			go func() { _, _ = io.Copy(io.Discard, g.conn) }()
			for {
				if _, err := io.WriteString(g.conn, text); err != nil {
					return
				}
			}
		}
	}
	answering := func(text string, times int) func(*guest) {
		return func(g *guest) {
			r, _ := g.next()
			g.echo(r)
			g.next()
			for range times {
				g.say(text)
			}
		}
	}
	for name, c := range map[string]struct {
		run  func(*guest)
		says string
	}{
		"zeros":              {forever(strings.Repeat("\x00", 1<<16)), "without end"},
		"delimiters":         {forever(strings.Repeat("\xff", 1<<16)), "without end"},
		"lines":              {forever(strings.Repeat("{}\n", 1<<14)), "without end"},
		"wrong numbers":      {forever(strings.Repeat("\xff{\"return\": 7}\n", 1<<12)), "without end"},
		"strange numbers":    {forever(strings.Repeat("\xff{\"return\": \"7\"}\n\xff{\"return\": 1e99}\n", 1<<12)), "without end"},
		"gone":               {func(*guest) {}, ""},
		"an endless answer":  {answering(strings.Repeat("[", 1<<16), 1<<9), "longer than"},
		"a cut answer":       {answering(`{"return"`, 1), ""},
		"no JSON":            {answering("hello\n", 1), ""},
		"neither":            {answering("{}\n", 1), ""},
		"deep":               {answering(strings.Repeat("[", 1<<20)+"\n", 1), ""},
		"another shape":      {answering(`{"return": [1]}`+"\n", 1), ""},
		"only empty lines":   {answering("\n", 1<<10), ""},
		"delimiter in front": {answering("\xff{\"return\": {}}\n", 1), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := inGuest(t, c.run)
			var into struct{}
			if err := s.Execute(t.Context(), "guest-info", nil, &into); fault.Of(err) != fault.Failed || fault.About(err) != fault.Agent || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v: %.200v", fault.Of(err), err)
			}
		})
	}
}

func TestSession_RealAgent(t *testing.T) {
	binary, err := exec.LookPath("qemu-ga")
	if err != nil {
		t.Skip("needs qemu-ga, of package qemu-guest-agent")
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "agent")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "-m", "unix-listen", "-p", path, "-t", dir, "-b", "guest-set-time")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cancel(); _ = cmd.Wait() }()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	for err != nil && ctx.Err() == nil { // until it listens
		conn, err = new(net.Dialer).DialContext(ctx, "unix", path)
	}
	if err != nil {
		t.Fatal(err)
	}
	s := New(conn)
	defer s.Close()
	var info struct{ Version string }
	if err := s.Execute(ctx, "guest-info", nil, &info); err != nil || info.Version == "" {
		t.Errorf("version %q, %v", info.Version, err)
	}
	// Half a command, as a daemon that died leaves it.
	if _, err := io.WriteString(s.conn, `{"execute": "guest-inf`); err != nil {
		t.Fatal(err)
	}
	if err := s.Execute(ctx, "guest-ping", nil, nil); err != nil {
		t.Error(err)
	}
	if err := s.Execute(ctx, "guest-set-time", nil, nil); !fault.Is(err, fault.Unsupported) {
		t.Errorf("a forbidden command: %v", err)
	}
	if err := s.Execute(ctx, "guest-exec-status", map[string]int{"pid": 1}, nil); !fault.Is(err, fault.Failed) {
		t.Errorf("a wrong argument: %v", err)
	}
}

// Promise: X6
func FuzzReader(f *testing.F) {
	f.Add([]byte("rubbish\xff{\"return\": 7}\n{\"return\": {}}\n"))
	f.Add([]byte("\xff\xff\n\n\xff{"))
	f.Fuzz(func(t *testing.T, in []byte) {
		r := newReader(bytes.NewReader(in))
		if err := r.skipTo([]byte(`{"return":7}`)); err != nil {
			return
		}
		squeezed := strings.NewReplacer(" ", "", "\r", "").Replace(string(in))
		if !strings.Contains(squeezed, "\xff"+`{"return":7}`+"\n") {
			t.Fatalf("found an echo in %q", in)
		}
		for {
			line, err := r.line(64)
			if err != nil {
				return
			}
			if len(line) == 0 || len(line) > 64 {
				t.Fatalf("line %q", line)
			}
		}
	})
}

// attendant is a channel with an agent that gives every command the same answer.
type attendant struct {
	net.Conn // nothing else of it is used
	answer   []byte
	said     bytes.Buffer
}

func (a *attendant) Write(line []byte) (int, error) {
	var r request
	if json.Unmarshal(bytes.Trim(line, "\xff\n"), &r) == nil && r.Execute == "guest-sync-delimited" {
		fmt.Fprintf(&a.said, "\xff{\"return\": %d}\n", r.Arguments.ID)
		return len(line), nil
	}
	a.said.Write(a.answer)
	return len(line), nil
}

func (a *attendant) Read(into []byte) (int, error) { return a.said.Read(into) }
func (*attendant) SetDeadline(time.Time) error     { return nil }
func (*attendant) Close() error                    { return nil }

// FuzzAnswers has an agent answer whatever: it is an answer word for word, a refusal or
// a failure of the call, and nothing of it answers the next one.
// Promise: X6
func FuzzAnswers(f *testing.F) {
	for _, answer := range []string{
		`{"return": {"a": [1, null]}}`, `{"error": {"class": "CommandNotFound", "desc": "no"}}`, `{"error": {}, "return": 1}`, "{}", `{"return": null}`, "\n \r\n{\"return\": 1}\n{\"return\": 2}",
		"\xff{\"return\": 7}\n{\"return\": 8}", "{\"return\": \"",
	} {
		f.Add([]byte(answer + "\n"))
	}
	f.Fuzz(func(t *testing.T, answer []byte) {
		guest := &attendant{answer: answer}
		s := New(guest)
		var got json.RawMessage
		err := s.Execute(t.Context(), "guest-info", nil, &got)
		var refusal *Error
		switch {
		case err == nil:
			if !json.Valid(got) || !bytes.Contains(answer, got) {
				t.Fatalf("%q is the answer in %q", got, answer)
			}
		case errors.As(err, &refusal):
			if fault.Is(err, fault.Unsupported) != (refusal.Class == "CommandNotFound") {
				t.Fatalf("%v is %v", err, fault.Of(err))
			}
		case !fault.Is(err, fault.Failed):
			t.Fatalf("%v is %v", err, fault.Of(err))
		}
		guest.answer = []byte("{\"return\": \"mine\"}\n")
		if err := s.Execute(t.Context(), "guest-ping", nil, &got); err == nil && string(got) != `"mine"` {
			t.Fatalf("%q answers the command after it: %s", answer, got)
		}
	})
}
