package session_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/remote/pair"
	"github.com/lodge-kvm/lodge/lab/agent"
	"github.com/lodge-kvm/lodge/lab/session"
	"github.com/lodge-kvm/lodge/lab/wire"
)

// patience bounds each wait on a busy machine.
const patience = time.Minute

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// line gives two ends of one connection, as a port and its host have.
func line(t *testing.T) (host, guest net.Conn) {
	t.Helper()
	host, guest, err := pair.Both()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { host.Close(); guest.Close() })
	return host, guest
}

// serve lets a real agent answer until the test is over.
func serve(t *testing.T, guest io.ReadWriteCloser, a *agent.Agent) {
	t.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = a.Serve(context.WithoutCancel(t.Context()), guest)
	}()
	t.Cleanup(func() {
		guest.Close()
		<-ended
	})
}

func open(t *testing.T, host io.ReadWriteCloser) *session.Session {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s, err := session.Open(ctx, host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func begin(t *testing.T) *session.Session {
	t.Helper()
	host, guest := line(t)
	serve(t, guest, &agent.Agent{})
	return open(t, host)
}

// await polls what cannot be waited for.
func await(t *testing.T, what string, come func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !come(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: still not after %v", what, patience)
		}
	}
}

// gone tells whether a process has ended, reaped or not.
func gone(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

func TestAProgramRunsAsAsked(t *testing.T) {
	s := begin(t)
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Exec(t.Context(), session.Command{
		Argv:  []string{"sh", "-c", `cat; echo "$WORD in $PWD" >&2; exit 3`},
		Env:   []string{"WORD=here"},
		Dir:   dir,
		Stdin: strings.NewReader("what came in"),
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.Status != 3 || string(r.Stdout) != "what came in" || string(r.Stderr) != "here in "+dir+"\n" {
		t.Errorf("got %d, %q, %q", r.Status, r.Stdout, r.Stderr)
	}
	if r, err := s.Exec(t.Context(), session.Command{Argv: []string{"sh", "-c", "kill -TERM $$"}}); err != nil || r.Status != 128+15 {
		t.Errorf("a program ended by a signal: %d, %v", r.Status, err)
	}
	if _, err := s.Exec(t.Context(), session.Command{Argv: []string{"/no/such/program"}}); !fault.Is(err, fault.Failed) || !strings.Contains(err.Error(), "/no/such/program") {
		t.Errorf("no program: %v", err)
	}
	if _, err := s.Run(t.Context(), "sh", "-c", "echo the reason >&2; false"); err == nil || !strings.Contains(err.Error(), "the reason") {
		t.Errorf("a program that fails: %v", err)
	}
}

func TestLongOutputArrivesWhole(t *testing.T) {
	s := begin(t)
	out, err := s.Run(t.Context(), "sh", "-c", "head -c 5000000 /dev/zero; echo end")
	if err != nil || len(out) != 5000004 || !strings.HasSuffix(out, "\x00end\n") {
		t.Errorf("%d bytes, %v", len(out), err)
	}
	r, err := s.Exec(t.Context(), session.Command{Argv: []string{"head", "-c", strconv.Itoa(session.MaxOutput + 1), "/dev/zero"}})
	if err != nil || len(r.Stdout) != session.MaxOutput || !r.Dropped {
		t.Errorf("beyond the bound: %d bytes, dropped %v, %v", len(r.Stdout), r.Dropped, err)
	}
}

func TestADaemonLeftBehindHoldsNobodyUp(t *testing.T) {
	s := begin(t)
	out, err := s.Run(t.Context(), "sh", "-c", "sleep 1000 & echo $!")
	if err != nil {
		t.Fatal(err)
	}
	pid, _ := strconv.Atoi(strings.TrimSpace(out))
	if gone(pid) {
		t.Error("it is gone with its parent")
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Error(err)
	}
}

func TestAProgramThatNobodyWaitsForIsKilledWithItsChildren(t *testing.T) {
	s := begin(t)
	mark := filepath.Join(t.TempDir(), "pids")
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := s.Exec(ctx, session.Command{Argv: []string{"sh", "-c", "sleep 1000 & echo $$ $! >" + mark + ".part; mv " + mark + ".part " + mark + "; wait"}})
		ended <- err
	}()
	var text []byte
	await(t, "the program's start", func() bool { text, _ = os.ReadFile(mark); return len(text) > 0 })
	cancel(nil)
	if err := <-ended; !fault.Is(err, fault.Aborted) {
		t.Errorf("ended with %v", err)
	}
	for word := range strings.FieldsSeq(string(text)) {
		pid, _ := strconv.Atoi(word)
		await(t, "the end of process "+word, func() bool { return gone(pid) })
	}
	if _, err := s.Run(t.Context(), "true"); err != nil {
		t.Errorf("the session does not go on: %v", err)
	}
}

func TestFilesGoBothWays(t *testing.T) {
	s := begin(t)
	path := filepath.Join(t.TempDir(), "a/b/file")
	content := bytes.Repeat([]byte("0123456789abcdef"), 200_000)
	if err := s.Put(t.Context(), path, 0o640, iotest.HalfReader(bytes.NewReader(content))); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("%v, %v", info, err)
	}
	var back bytes.Buffer
	if err := s.Get(t.Context(), path, &back); err != nil || !bytes.Equal(back.Bytes(), content) {
		t.Errorf("%d bytes came back, %v", back.Len(), err)
	}
	if err := s.Get(t.Context(), path+".not", io.Discard); !fault.Is(err, fault.NotFound) {
		t.Errorf("no such file: %v", err)
	}
	if err := s.Put(t.Context(), path, 0o600, strings.NewReader("")); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(path); err != nil || info.Size() != 0 {
		t.Errorf("an empty file: %v, %v", info, err)
	}
}

func TestHalfAFileIsNone(t *testing.T) {
	s := begin(t)
	dir := t.TempDir()
	broken := errors.New("the source is broken")
	err := s.Put(t.Context(), dir+"/file", 0o600, io.MultiReader(bytes.NewReader(make([]byte, 100_000)), iotest.ErrReader(broken)))
	if !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	await(t, "an empty folder", func() bool { left, _ := os.ReadDir(dir); return len(left) == 0 })
	if err := s.Get(t.Context(), "/dev/zero", &failingWriter{after: 1 << 20, err: broken}); !errors.Is(err, broken) {
		t.Errorf("a writer that fails: %v", err)
	}
}

type failingWriter struct {
	after int
	err   error
}

func (w *failingWriter) Write(p []byte) (int, error) {
	if w.after -= len(p); w.after < 0 {
		return 0, w.err
	}
	return len(p), nil
}

func TestManyCallsAtOnce(t *testing.T) {
	s := begin(t)
	var all sync.WaitGroup
	for i := range 2 * wire.MaxCalls {
		all.Go(func() {
			want := strconv.Itoa(i)
			if i%16 != 0 { // programs are dear
				if _, err := s.Clock(t.Context()); err != nil {
					t.Error(err)
				}
				return
			}
			if got, err := s.Run(t.Context(), "echo", want); err != nil || strings.TrimSpace(got) != want {
				t.Errorf("call %d gets %q, %v", i, got, err)
			}
		})
	}
	all.Wait()
}

// gate is a writer that waits.
type gate struct{ open chan struct{} }

func (g gate) Write(p []byte) (int, error) {
	<-g.open
	return len(p), nil
}

func TestASlowReaderHoldsUpOnlyItself(t *testing.T) {
	s := begin(t)
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, make([]byte, 8*wire.Window), 0o600); err != nil {
		t.Fatal(err)
	}
	g := gate{make(chan struct{})}
	got := make(chan error, 1)
	go func() { got <- s.Get(t.Context(), path, g) }()
	for range 20 {
		if out, err := s.Run(t.Context(), "echo", "still here"); err != nil || out != "still here\n" {
			t.Fatalf("%q, %v", out, err)
		}
	}
	close(g.open)
	if err := <-got; err != nil {
		t.Error(err)
	}
}

// A port is one stream for all the guest's life: the next host gets a whole
// session, and what the one before it had called is ended.
// Promise: L9
func TestANewHostMayComeInTheMiddleOfAFrame(t *testing.T) {
	host, guest := line(t)
	serve(t, guest, &agent.Agent{})
	first := open(t, leaveOpen{host})
	mark := filepath.Join(t.TempDir(), "pid")
	go func() {
		_, _ = first.Exec(context.WithoutCancel(t.Context()), session.Command{Argv: []string{"sh", "-c", "echo $$ >" + mark + ".part; mv " + mark + ".part " + mark + "; cat /dev/zero"}})
	}()
	var text []byte
	await(t, "the first host's program", func() bool { text, _ = os.ReadFile(mark); return len(text) > 0 })
	_ = first.Close()
	half := wire.Frame{Kind: wire.Data, Epoch: 1, ID: 1, Payload: make([]byte, 1000)}.Encode()
	if _, err := host.Write(half[:500]); err != nil {
		t.Fatal(err)
	}
	if err := host.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	second := open(t, host)
	if out, err := second.Run(t.Context(), "echo", "welcome"); err != nil || out != "welcome\n" {
		t.Errorf("%q, %v", out, err)
	}
	pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	await(t, "the end of the first host's program", func() bool { return gone(pid) })
}

// leaveOpen is a host's connection to a port: closing it ends what is under way
// and leaves the port.
type leaveOpen struct{ net.Conn }

func (l leaveOpen) Close() error { return l.SetReadDeadline(time.Now()) }

func TestTheEndOfTheConnectionEndsAllCalls(t *testing.T) {
	host, guest := line(t)
	serve(t, guest, &agent.Agent{})
	s := open(t, host)
	mark := filepath.Join(t.TempDir(), "pid")
	ended := make(chan error, 1)
	go func() {
		_, err := s.Exec(t.Context(), session.Command{Argv: []string{"sh", "-c", "echo $$ >" + mark + ".part; mv " + mark + ".part " + mark + "; sleep 1000"}})
		ended <- err
	}()
	var text []byte
	await(t, "the program's start", func() bool { text, _ = os.ReadFile(mark); return len(text) > 0 })
	guest.Close()
	if err := <-ended; err == nil {
		t.Error("the call succeeds")
	}
	<-s.Done()
	if _, err := s.Sample(t.Context()); err == nil || s.Err() == nil {
		t.Error("a session without a connection goes on")
	}
	pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	await(t, "the program's end", func() bool { return gone(pid) })
}

func TestLostBytesEndTheSessionAndHangNobody(t *testing.T) {
	host, guest := line(t)
	serve(t, guest, &agent.Agent{})
	s := open(t, host)
	ended := make(chan error, 1)
	go func() {
		_, err := s.Exec(t.Context(), session.Command{Argv: []string{"sleep", "1000"}})
		ended <- err
	}()
	// Noise, and behind it a frame of the session.
	await(t, "an answer", func() bool { _, err := s.Sample(t.Context()); return err == nil })
	if _, err := host.Write(bytes.Repeat([]byte("noise"), 100)); err != nil {
		t.Fatal(err)
	}
	_, _ = s.Sample(t.Context())
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "lost") {
		t.Errorf("ended with %v", err)
	}
}

func TestOpenGivesUpOnASilentGuest(t *testing.T) {
	host, guest := line(t)
	defer guest.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := session.Open(ctx, host); !fault.Is(err, fault.Timeout) {
		t.Errorf("got %v", err)
	}
}

func TestClocksOfOneMachineAgree(t *testing.T) {
	s := begin(t)
	c, err := s.Clock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if c.Offset.Abs() > c.RTT || c.RTT <= 0 || c.Up <= 0 {
		t.Errorf("the clocks stand like %+v", c)
	}
}

func TestACallBeyondTheFrameIsRefused(t *testing.T) {
	s := begin(t)
	_, err := s.Exec(t.Context(), session.Command{Argv: []string{"true", strings.Repeat("x", wire.MaxPayload)}})
	if !fault.Is(err, fault.NoCapacity) {
		t.Errorf("got %v", err)
	}
	if err := s.Power(t.Context()); !fault.Is(err, fault.Unsupported) {
		t.Errorf("power without a machine: %v", err)
	}
}
