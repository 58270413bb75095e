package guest_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// The escape attempt from the place of swtpm, which the guest sends what it likes as well. It has another chamber
// than its guest's QEMU, and shares a directory with it, in which they can hand each other what they have open: a
// folder, that is, which lies outside of the root of whoever gets it, so that nothing keeps him from going up.

const (
	// swtpm is the name by which the test's own binary is that program, and tpm the one that it becomes.
	swtpm, tpm = "swtpm", "/usr/bin/swtpm"
	// targetsFile and triedFile lie in the TPM's state, which is what it has.
	targetsFile, triedFile = "targets", "tried"
	// givesRoot is the word by which it stays and gives its root to whoever connects to rootSocket.
	givesRoot, rootSocket = "gives-root", "root.sock"
)

// placeTPM has daemons run the test's own binary as the emulators of TPMs, and gives the guest one that tries what is
// in these targets.
func (d *daemon) placeTPM(at targets, uuid string) (device string) {
	d.t.Helper()
	tools := filepath.Join(d.dir, "tools")
	ok(d.t, os.Mkdir(tools, 0o755))
	copyOfTest(d.t, tools, swtpm)
	d.t.Setenv("PATH", tools+":"+os.Getenv("PATH"))
	at.InTPM = true
	text, err := json.Marshal(at)
	ok(d.t, err)
	ok(d.t, os.MkdirAll(d.tpmState(uuid), 0o700))
	ok(d.t, os.WriteFile(filepath.Join(d.tpmState(uuid), targetsFile), text, 0o600))
	return "<tpm model='tpm-crb'><backend type='emulator' version='2.0'/></tpm>"
}

// judgeTPM compares what the program in swtpm's place says with what it may, and ends what it left.
func (d *daemon) judgeTPM(at targets, uuid string, isolated bool) {
	d.t.Helper()
	tried, err := os.ReadFile(filepath.Join(d.tpmState(uuid), triedFile))
	ok(d.t, err)
	at.InTPM = true
	if isolated { // else it has no capability, either
		d.judge(at, string(tried), isolated)
	}
	own := filepath.Join(d.dir, "run/guest", uuid)
	if isolated {
		own = filepath.Join(own, "own")
	}
	left, err := net.Dial("unix", filepath.Join(own, rootSocket)) //nolint:noctx // nobody waits
	ok(d.t, err)
	_, err = left.Write([]byte("!"))
	ok(d.t, errors.Join(err, left.Close()))
}

func (d *daemon) tpmState(uuid string) string { return filepath.Join(d.dir, "data/guest/tpm", uuid) }

// argument is the value of one of its arguments that begins so.
func argument(begin string) string {
	for _, word := range os.Args {
		if value, is := strings.CutPrefix(word, begin); is {
			value, _, _ = strings.Cut(value, ",")
			return value
		}
	}
	return ""
}

// escapeFromTPM tries it, and becomes swtpm.
func escapeFromTPM() {
	if err := tryFromTPM(argument("dir="), filepath.Dir(argument("file="))); err != nil {
		fmt.Fprintln(os.Stderr, "cannot try to escape:", err)
		os.Exit(1)
	}
	fmt.Fprintln(os.Stderr, syscall.Exec(tpm, append([]string{tpm}, os.Args[1:]...), os.Environ()))
	os.Exit(1)
}

func tryFromTPM(state, own string) error {
	text, err := os.ReadFile(filepath.Join(state, targetsFile))
	if err != nil {
		return err
	}
	var t targets
	if err := json.Unmarshal(text, &t); err != nil {
		return err
	}
	tried, err := os.Create(filepath.Join(state, triedFile))
	if err != nil {
		return err
	}
	t.tell(tried)
	if err := tried.Close(); err != nil {
		return err
	}
	c := exec.Command(os.Args[0], givesRoot) //nolint:noctx // ends with its user
	c.Dir = own
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	ready, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err == nil {
		_, err = io.Copy(io.Discard, ready)
	}
	return err
}

// giveRoot gives its root to whoever asks, until one says that he was the last.
func giveRoot() {
	root, err := os.Open("/")
	if err != nil {
		return
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: rootSocket, Net: "unix"})
	_ = os.Stdout.Close()
	if err != nil {
		return
	}
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return
		}
		_, _, _ = conn.WriteMsgUnix([]byte("!"), unix.UnixRights(int(root.Fd())), nil)
		n, _ := conn.Read(make([]byte, 1))
		_ = conn.Close()
		if n > 0 {
			return
		}
	}
}

// fromGiven opens what lies somewhere from the folder that is given.
func fromGiven(path string, how int) error {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: rootSocket, Net: "unix"})
	if err != nil {
		return fmt.Errorf("%w: %w", errNotGiven, err)
	}
	defer conn.Close()
	space := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.ReadMsgUnix(make([]byte, 1), space)
	if err != nil {
		return fmt.Errorf("%w: %w", errNotGiven, err)
	}
	messages, err := unix.ParseSocketControlMessage(space[:n])
	if err != nil || len(messages) != 1 {
		return fmt.Errorf("%w: %d messages, %w", errNotGiven, len(messages), err)
	}
	given, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(given) != 1 {
		return fmt.Errorf("%w: %v, %w", errNotGiven, given, err)
	}
	defer unix.Close(given[0]) //nolint:errcheck // nothing was written
	return closed(unix.Openat(given[0], path, how|unix.O_CLOEXEC, 0))
}

var errNotGiven = errors.New("nothing is given")

// TestATPMThatWasTakenOverReachesNothing: a guest's TPM emulator that the guest has taken over is as far from all else
// as its QEMU, and neither gets anywhere by what the other one hands it.
// Promise: I1, I20
func TestATPMThatWasTakenOverReachesNothing(t *testing.T) {
	if _, err := os.Stat(tpm); err != nil {
		t.Skip("needs swtpm")
	}
	for _, isolated := range []bool{true, false} {
		t.Run(fmt.Sprintf("isolated=%v", isolated), func(t *testing.T) { testEscape(t, isolated, true) })
	}
}
