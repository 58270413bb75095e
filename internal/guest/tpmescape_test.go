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

// The escape attempt in the place of swtpm, which gets arbitrary input from the guest, too. It has another sandbox
// than its guest's QEMU, and shares a directory with it. There the two can pass descriptors to each other. A
// folder passed this way lies outside the receiver's root, so nothing prevents the receiver from walking up from
// it.

const (
	// swtpm is the name under which the test's own binary acts as that program; tpm is the name that it then
	// takes.
	swtpm, tpm = "swtpm", "/usr/bin/swtpm"
	// targetsFile and triedFile lie in the TPM's state directory, the only one that it can write.
	targetsFile, triedFile = "targets", "tried"
	// givesRoot is the argument with which it stays and passes its root to each client of rootSocket.
	givesRoot, rootSocket = "gives-root", "root.sock"
)

// placeTPM makes daemons run the test's own binary as the TPM emulator, and gives the guest one that tries to
// reach these targets.
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

// judgeTPM compares the report of the program in swtpm's place with its permissions, and ends its leftover
// processes.
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
	left, err := net.Dial("unix", filepath.Join(own, rootSocket)) //nolint:noctx // no caller waits
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

// giveRoot passes its root to each client, until one says that it was the last.
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

// fromGiven opens a path relative to the received folder.
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

// A compromised TPM emulator is as isolated as its QEMU. Neither gains anything from descriptors that the
// other passes on.
// Promise: I1, I20
func TestEscape_TPM(t *testing.T) {
	if _, err := os.Stat(tpm); err != nil {
		t.Skip("needs swtpm")
	}
	for _, isolated := range []bool{true, false} {
		t.Run(fmt.Sprintf("isolated=%v", isolated), func(t *testing.T) { testEscape(t, isolated, true) })
	}
}
