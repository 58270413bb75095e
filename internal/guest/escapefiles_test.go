package guest_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// The squatter: what the escapist leaves behind when it becomes QEMU, and so what a QEMU
// is that its guest takes over while it runs. It waits until the test says that the
// guest runs, and then tries to make something wherever it can see.

// lingers is the argument with which the escapist acts as the squatter.
const lingers = "linger"

// Names in QEMU's own directory: the pipes between the test and the squatter, and the files that the squatter
// creates there in time.
const (
	beginPipe, toldPipe = "begin", "told"
	foundFile, heldDir  = "found", "held"
)

// leaveBehind starts the squatter, and waits until its first steps are done.
func leaveBehind() error {
	for _, pipe := range []string{beginPipe, toldPipe} {
		if err := unix.Mkfifo(pipe, 0o600); err != nil {
			return err
		}
	}
	c := exec.Command(os.Args[0], lingers) //nolint:noctx // ends with its user
	c.Stderr = os.Stderr
	ready, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err == nil {
		_, err = io.Copy(io.Discard, ready)
	}
	return err
}

func linger() {
	var can []string
	for _, dir := range visible() {
		can = append(can, squat("early", dir)...)
	}
	_ = os.WriteFile(foundFile, nil, 0o666) // what could not be made is not found later
	_ = os.MkdirAll(filepath.Join(heldDir, heldDir), 0o777)
	held, _ := os.Open(heldDir)
	_ = os.Stdout.Close()
	if begin, err := os.Open(beginPipe); err == nil {
		_, _ = begin.Read(make([]byte, 1))
	}
	for _, dir := range visible() {
		can = append(can, squat("late", dir)...)
	}
	own, _ := os.Getwd()
	_, terminal := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	for what, err := range map[string]error{
		"take a terminal":       terminal,
		"change the mode":       os.Chmod(".", 0o777),
		"become the owner":      os.Chown(".", os.Getuid(), os.Getgid()),
		"grow a file":           os.WriteFile(foundFile, make([]byte, 1), 0o666),
		"grow a file anew":      os.Chmod(foundFile, 0o666),
		"use what it held open": unix.Mkdirat(int(held.Fd()), "late", 0o777),
		"remove":                os.Remove(foundFile),
		"rename":                os.Rename(foundFile, "lost"),
	} {
		if err == nil {
			can = append(can, fmt.Sprintf("late %s in %s", what, own))
		}
	}
	told, err := os.OpenFile(toldPipe, os.O_WRONLY, 0)
	if err != nil {
		fmt.Fprintln(os.Stderr, "cannot tell:", err)
		return
	}
	_ = json.NewEncoder(told).Encode(can)
}

// visible are the directories that it can see, but for those of the host's programs.
func visible() []string {
	var all []string
	_ = filepath.WalkDir("/", func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			all = append(all, path)
			if path == "/usr" {
				return fs.SkipDir
			}
		}
		return nil
	})
	return all
}

// squat tries to make something of every kind in a directory.
func squat(when, dir string) (can []string) {
	at := filepath.Join(dir, when)
	for what, try := range map[string]func() error{
		"make a file":      func() error { return os.WriteFile(at+".file", nil, 0o600) },
		"make a directory": func() error { return os.Mkdir(at+".dir", 0o700) },
		"make a link":      func() error { return os.Symlink("/", at+".link") },
		"make a pipe":      func() error { return unix.Mkfifo(at+".pipe", 0o600) },
		"make a socket":    func() error { return bindsTo(at) },
	} {
		if try() == nil {
			can = append(can, fmt.Sprintf("%s %s in %s", when, what, dir))
		}
	}
	return can
}

// bindsTo creates a socket. It uses a short name, because addresses are short.
func bindsTo(at string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	return unix.Bind(fd, &unix.SockaddrUnix{Name: at})
}

// When the guest runs, QEMU can create nothing on the host: neither in its own directory nor in directories
// that it made before and holds open. Before that it could.
// Promise: I11
func TestEscape_FileSystemReadOnly(t *testing.T) {
	d := newDaemonOf(t, true)
	const uuid = "4b1d6a2e-9f0c-4c57-8c1a-1e5ca9e00003"
	own := filepath.Join(d.dir, "run/guest", uuid, "own")
	screen := filepath.Join(d.dir, "screens")
	ok(t, os.Mkdir(screen, 0o755))
	text, err := json.Marshal(targets{Linger: true, Scratch: own})
	ok(t, err)
	taken := d.define(strings.NewReplacer("<domain type='qemu'>", "<domain type='qemu' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'><uuid>"+uuid+"</uuid>",
		"</domain>", "<qemu:commandline><qemu:env name='"+targetsVariable+"' value='"+string(text)+"'/></qemu:commandline></domain>",
		"<devices>", "<devices><emulator>"+copyOfTest(t, d.dir, escapist)+"</emulator>").Replace(small("taken",
		"<graphics type='vnc'><listen type='socket' socket='"+screen+"/vnc.sock'/></graphics>")))
	ok(t, launch.Start(d.ctx(), taken, scope.Daemon("a test"), launch.StartOptions{}))

	told, err := os.OpenFile(filepath.Join(own, toldPipe), os.O_RDWR|unix.O_NONBLOCK, 0)
	ok(t, err)
	defer told.Close()
	begin, err := os.OpenFile(filepath.Join(own, beginPipe), os.O_RDWR, 0)
	ok(t, err)
	defer begin.Close()
	_, err = begin.Write([]byte("!"))
	ok(t, err)
	ok(t, told.SetReadDeadline(time.Now().Add(time.Minute)))
	line, err := bufio.NewReader(told).ReadBytes('\n')
	ok(t, err)
	var can []string
	ok(t, json.Unmarshal(line, &can))
	early := map[string]int{}
	for _, one := range can {
		if rest, is := strings.CutPrefix(one, "early "); is {
			_, dir, _ := strings.Cut(rest, " in ")
			early[dir]++
		} else {
			t.Errorf("it can %s", one)
		}
	}
	for _, dir := range []string{own, screen} {
		if early[dir] == 0 {
			t.Errorf("it could make nothing in %s before the guest ran, and so the test says nothing: %v", dir, can)
		}
	}
	if conn, err := net.Dial("unix", filepath.Join(screen, "vnc.sock")); err != nil { //nolint:noctx // it listens or does not
		t.Errorf("what QEMU made in time is not there: %v", err)
	} else {
		_ = conn.Close()
	}
}
