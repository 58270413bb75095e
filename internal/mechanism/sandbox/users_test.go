package sandbox

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// asleep runs a program as a user; only a signal ends it.
func asleep(t *testing.T, uid uint32) (ended chan struct{}) {
	t.Helper()
	c := exec.CommandContext(t.Context(), "sleep", "600")
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	if err := c.Start(); err != nil {
		t.Skipf("cannot run a program as user %d: %v", uid, err)
	}
	ended = make(chan struct{})
	go func() {
		defer close(ended)
		_ = c.Wait() // the test checks how it ended
	}()
	return ended
}

// Descriptors that the daemon inherited must not reach the programs that it starts.
// Promise: I1
func TestNewBuilder_InheritedFiles(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("making sandboxes needs root")
	}
	fd, err := unix.Open("/", unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd) //nolint:errcheck // opened only for this check
	house, err := NewBuilder("")
	if err != nil {
		t.Skip(err)
	}
	defer func() { _ = house.Close() }()
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("programs inherit the descriptor: flags %#x, %v", flags, err)
	}
}

// A freed number has no processes left, and processes of other users keep running.
func TestFree_KillsOnlyProcessesOfTheUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("running programs as other users needs root")
	}
	const first = 0x7fff0000
	users, err := NewUsers(first, first+3)
	if err != nil {
		t.Fatal(err)
	}
	one, err := users.Take("one")
	if err != nil {
		t.Fatal(err)
	}
	other, err := users.Take("other")
	if err != nil {
		t.Fatal(err)
	}
	left, others, foreign := asleep(t, one.UID), asleep(t, other.UID), asleep(t, first+9)
	if err := users.Free(one); err != nil {
		t.Fatal(err)
	}
	<-left
	if err := users.Free(User{first + 9, first + 9}); err != nil { // outside the range, as by a seclabel of a definition
		t.Fatal(err)
	}
	for what, ended := range map[string]chan struct{}{"another guest's": others, "a user's of the host": foreign} {
		select {
		case <-ended:
			t.Errorf("%s process was killed", what)
		default:
		}
	}
	seen := map[uint32]bool{other.UID: true}
	for range 2 { // of four numbers one is the daemon's own and one is in use
		u, err := users.Take("more")
		if err != nil || seen[u.UID] {
			t.Fatalf("got %v, %v", u, err)
		}
		seen[u.UID] = true
	}
	if u, err := users.Take("too many"); !fault.Is(err, fault.NoCapacity) {
		t.Errorf("got %v, %v", u, err)
	}
}

// A user in a record is reserved for that guest, even if no process runs as it.
func TestReserve_RecordedUser(t *testing.T) {
	const first = 0x7fff0040
	users, err := NewUsers(first, first+2) // the last one is the daemon's own
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // a guest and its interface may each ask
		if !users.Reserve(User{first, first}, "one") {
			t.Error("a guest cannot reserve the user in its record")
		}
	}
	if users.Reserve(User{first, first}, "other") {
		t.Error("two guests have one user")
	}
	if u, err := users.Take("other"); err != nil || u.UID != first+1 {
		t.Errorf("a second guest got %v, %v", u, err)
	}
	if u, err := users.Take("third"); !fault.Is(err, fault.NoCapacity) {
		t.Errorf("a third guest got %v, %v", u, err)
	}
}

// A number that ReserveInUse found goes to the guest with that number in its record.
func TestReserve_UserFoundInUse(t *testing.T) {
	uid := uint32(0x7fff0050)
	users, err := NewUsers(uid, uid+2)
	if err != nil {
		t.Fatal(err)
	}
	own := t.TempDir()
	if err := os.Chown(own, int(uid), int(uid)); err != nil {
		t.Skipf("cannot give a directory to user %d: %v", uid, err)
	}
	if err := users.ReserveInUse([]string{own}); err != nil {
		t.Fatal(err)
	}
	if !users.Reserve(User{uid, uid}, "one") || users.Reserve(User{uid, uid}, "other") {
		t.Error("the user is not reserved for the recorded guest alone")
	}
}

// While a program runs, its user can signal no thread of the daemon: a signal to one thread hits the whole
// daemon.
// Promise: I3
func TestRun_SignalToDaemon(t *testing.T) {
	house, err := NewBuilder("")
	if err != nil {
		t.Skipf("cannot make sandboxes here: %v", err)
	}
	defer func() { _ = house.Close() }()
	const id = 0x7fff0020
	c := &Spec{User: User{id, id}, Program: "/bin/sleep", Limits: Limits{Threads: 8, Open: 9}}
	program := exec.CommandContext(t.Context(), "sleep", "600")
	program.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: id, Gid: id}}
	stay := make(chan struct{})
	defer close(stay)
	if err := house.Run(c, func() (int, <-chan struct{}, error) {
		if err := program.Start(); err != nil {
			return 0, nil, err
		}
		return program.Process.Pid, stay, nil
	}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = program.Process.Kill()
		_ = program.Wait()
	}()
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", program.Process.Pid))
	if err != nil || !regexp.MustCompile(`(?s)Max processes +8 .*Max open files +9 +9 `).Match(limits) {
		t.Errorf("its limits are\n%s, %v", limits, err)
	}
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		status, err := os.ReadFile("/proc/self/task/" + thread.Name() + "/status")
		if err != nil {
			continue // it has ended
		}
		if usedBy(string(status), id) {
			t.Errorf("thread %s has the program's user:\n%s", thread.Name(), status)
		}
	}
}

// usedBy reports whether a thread has a number as its real or saved user.
func usedBy(status string, uid int) bool {
	for line := range strings.Lines(status) {
		var r, e, s int
		if n, _ := fmt.Sscanf(line, "Uid:\t%d\t%d\t%d", &r, &e, &s); n == 3 {
			return r == uid || s == uid
		}
	}
	return false
}
