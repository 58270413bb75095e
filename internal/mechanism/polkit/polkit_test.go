package polkit

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"go.uber.org/goleak"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds how long a test waits.
const patience = 20 * time.Second

// busConfig allows every user everything, unlike a system bus.
const busConfig = `<busconfig><type>system</type><listen>unix:path=@PATH@</listen><auth>EXTERNAL</auth>
<policy context="default"><allow user="*"/><allow own="*"/><allow send_destination="*"/><allow receive_sender="*"/></policy></busconfig>`

// bus runs a bus for the length of a test, and returns its address.
func bus(t *testing.T) string {
	t.Helper()
	daemon, err := exec.LookPath("dbus-daemon")
	if err != nil {
		t.Skip("there is no dbus-daemon")
	}
	dir, err := os.MkdirTemp("", "bus") //nolint:usetesting // t.TempDir is too long for the path of a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path, config := filepath.Join(dir, "bus"), filepath.Join(dir, "conf")
	if err := os.WriteFile(config, []byte(strings.ReplaceAll(busConfig, "@PATH@", path)), 0o600); err != nil {
		t.Fatal(err)
	}
	said, say, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = said.Close() }()
	c := exec.CommandContext(context.WithoutCancel(t.Context()), daemon, "--nofork", "--nopidfile", "--config-file="+config, "--print-address=3")
	c.ExtraFiles = []*os.File{say}
	err = c.Start()
	_ = say.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	if err := said.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := said.Read(make([]byte, 256)); err != nil {
		t.Fatalf("the bus does not begin: %v", err)
	}
	return "unix:path=" + path
}

// asked is a question that came to polkit.
type asked struct {
	Subject     subject
	Action      string
	Interactive bool
}

// policy is a polkit of the test's own.
type policy struct {
	answer    verdict
	hold      chan struct{} // not nil: no answer before it is closed
	questions chan asked
	takenBack chan string
}

// serve puts the policy on a bus for the length of a test.
func (p *policy) serve(t *testing.T, address string) *policy {
	t.Helper()
	p.questions, p.takenBack = make(chan asked, 64), make(chan string, 64)
	conn, err := dbus.Connect(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // at once, for the next one
		_, _ = conn.ReleaseName(polkitName)
		_ = conn.Close()
	})
	if err := conn.Export(p, polkitPath, strings.TrimSuffix(authority, ".")); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.RequestName(polkitName, dbus.NameFlagDoNotQueue); err != nil {
		t.Fatal(err)
	}
	return p
}

// CheckAuthorization is polkit's D-Bus method.
func (p *policy) CheckAuthorization(s subject, action string, _ map[string]string, flags uint32, _ string) (verdict, *dbus.Error) {
	p.questions <- asked{s, action, flags&mayInteract != 0}
	if p.hold != nil {
		<-p.hold
	}
	return p.answer, nil
}

// CancelCheckAuthorization is polkit's D-Bus method.
func (p *policy) CancelCheckAuthorization(id string) *dbus.Error {
	p.takenBack <- id
	return nil
}

func at(address string, patience time.Duration) *Authority {
	return &Authority{bus: address, patience: patience, pending: map[uint32]int{}}
}

func self(t *testing.T) Process {
	t.Helper()
	p, err := Find(int32(os.Getpid()), 4242)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Promise: A7
func TestCheck_Policy(t *testing.T) {
	address, p := bus(t), self(t)
	for _, c := range []struct {
		what   string
		answer verdict
		may    bool
		reason error
		says   string
	}{
		{what: "yes", answer: verdict{Authorized: true}, may: true},
		{what: "no", says: "does not give user 4242 org.libvirt.unix.manage: its policy refuses", reason: ErrRefused},
		{what: "who is it", answer: verdict{Challenge: true}, reason: ErrNoAgent},
		{what: "dismissed", answer: verdict{Challenge: true, Details: map[string]string{"polkit.dismissed": "true"}}, reason: ErrDismissed},
	} {
		t.Run(c.what, func(t *testing.T) {
			answers := (&policy{answer: c.answer}).serve(t, address)
			err := at(address, patience).Check(t.Context(), p, Manage)
			if (err == nil) != c.may || !c.may && !fault.Is(err, fault.Denied) {
				t.Errorf("got %v", err)
			}
			if c.reason != nil && !errors.Is(err, c.reason) || c.says != "" && !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v does not say why", err)
			}
			q := <-answers.questions
			want := map[string]any{"pid": uint32(os.Getpid()), "start-time": p.Started, "uid": int32(4242)}
			for name, value := range want {
				if got := q.Subject.Details[name].Value(); got != value {
					t.Errorf("%s is %v, want %v", name, got, value)
				}
			}
			if q.Action != Manage || q.Subject.Kind != "unix-process" || !q.Interactive {
				t.Errorf("polkit was asked %+v", q)
			}
		})
	}
}

// TestCheck_NoAnswer: a missing bus, a silent bus, a bus
// without polkit, and a polkit that hangs.
// Promise: A7
func TestCheck_NoAnswer(t *testing.T) {
	p := self(t)
	silent, err := new(net.ListenConfig).Listen(t.Context(), "unix", filepath.Join(t.TempDir(), "bus"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	real := bus(t)
	t.Run("no polkit", func(t *testing.T) {
		for what, address := range map[string]string{
			"no bus": "unix:path=" + filepath.Join(t.TempDir(), "none"), "a silent bus": "unix:path=" + silent.Addr().String(), "a bus alone": real,
		} {
			began := time.Now()
			if err := at(address, 200*time.Millisecond).Check(t.Context(), p, Manage); !fault.Is(err, fault.Denied) || !strings.Contains(err.Error(), "cannot ask polkit") {
				t.Errorf("%s: %v", what, err)
			}
			if took := time.Since(began); took > patience {
				t.Errorf("%s: it takes %v", what, took)
			}
		}
	})
	t.Run("a polkit that hangs", func(t *testing.T) {
		hangs := &policy{hold: make(chan struct{})}
		hangs.serve(t, real)
		defer close(hangs.hold)
		a := at(real, 3*time.Second) // long enough to reach polkit
		if err := a.Check(t.Context(), p, Manage); !fault.Is(err, fault.Denied) || !strings.Contains(err.Error(), "no answer within") {
			t.Errorf("got %v", err)
		}
		select {
		case <-hangs.takenBack:
		case <-time.After(patience):
			t.Error("the question is not taken back")
		}
		if a.all != 0 || len(a.pending) != 0 {
			t.Errorf("%d questions stay", a.all)
		}
	})
}

// TestCheck_BoundPerUser: one user holds as many questions as it may.
// Promise: A7
func TestCheck_BoundPerUser(t *testing.T) {
	address, p := bus(t), self(t)
	slow := &policy{answer: verdict{Authorized: true}, hold: make(chan struct{})}
	slow.serve(t, address)
	a := at(address, patience)
	answers := make(chan error, maxPerUser+1)
	for range maxPerUser {
		go func() { answers <- a.Check(t.Context(), p, Manage) }()
	}
	for range maxPerUser {
		<-slow.questions
	}
	if err := a.Check(t.Context(), p, Manage); !fault.Is(err, fault.Denied) || !strings.Contains(err.Error(), "has not answered") {
		t.Errorf("a question too many: %v", err)
	}
	other := p
	other.UID++
	go func() { answers <- a.Check(t.Context(), other, Monitor) }()
	if q := <-slow.questions; q.Action != Monitor {
		t.Errorf("polkit was asked %+v", q)
	}
	close(slow.hold)
	for range maxPerUser + 1 {
		if err := <-answers; err != nil {
			t.Errorf("after the wait: %v", err)
		}
	}
}

func TestFind_NoSuchProcess(t *testing.T) {
	for _, pid := range []int32{0, -1, 1 << 30} {
		if _, err := Find(pid, 1); !fault.Is(err, fault.Denied) {
			t.Errorf("process %d: %v", pid, err)
		}
	}
}

// catalogue is a polkit that lists the actions of its policies, as the real one
// does.
type catalogue struct {
	policy

	actions []string
}

// EnumerateActions is polkit's D-Bus method.
func (c *catalogue) EnumerateActions(string) ([]description, *dbus.Error) {
	var all []description
	for _, action := range c.actions {
		all = append(all, description{Action: action})
	}
	return all, nil
}

// serveActions puts a polkit with policies for some actions on a bus.
func serveActions(t *testing.T, address string, actions ...string) {
	t.Helper()
	conn, err := dbus.Connect(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = conn.ReleaseName(polkitName)
		_ = conn.Close()
	})
	if err := conn.Export(&catalogue{actions: actions}, polkitPath, strings.TrimSuffix(authority, ".")); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.RequestName(polkitName, dbus.NameFlagDoNotQueue); err != nil {
		t.Fatal(err)
	}
}

func TestAnswers_WithPolicy(t *testing.T) {
	address := bus(t)
	for _, c := range []struct {
		name  string
		serve func(*testing.T)
		says  string // empty: polkit can decide
	}{
		{"no polkit", func(*testing.T) {}, "cannot ask polkit"},
		{"no policy for them", func(t *testing.T) { serveActions(t, address, "org.example.other") }, "no policy for org.libvirt.unix.manage"},
		{"a policy of one", func(t *testing.T) { serveActions(t, address, Manage) }, "no policy for org.libvirt.unix.monitor"},
		{"policies", func(t *testing.T) { serveActions(t, address, "org.example.other", Manage, Monitor) }, ""},
		{"a polkit that does not tell", func(t *testing.T) { new(policy).serve(t, address) }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.serve(t)
			err := at(address, patience).Answers(t.Context())
			if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("polkit's answer is %v, want %q", err, c.says)
			}
		})
	}
	if err := at("unix:path="+t.TempDir()+"/none", patience).Answers(t.Context()); err == nil {
		t.Error("polkit answers without a bus")
	}
}
