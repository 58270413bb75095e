package qmp_test

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp/qmptest"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp/schema"
)

// startQEMU runs a real QEMU without a machine, listening on a socket that is
// passed to it, and returns a session with it.
func startQEMU(t *testing.T) *qmp.Session {
	t.Helper()
	binary, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		t.Skip("needs qemu-system-x86_64")
	}
	path := filepath.Join(t.TempDir(), "qmp")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	file, err := listener.File()
	if err != nil {
		t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false)
	_ = listener.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, binary, "-M", "none", "-nodefaults", "-S", "-display", "none",
		"-chardev", "socket,id=m,fd=3,server=on,wait=off", "-mon", "chardev=m,mode=control")
	cmd.ExtraFiles = []*os.File{file}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = file.Close()
	t.Cleanup(func() { cancel(); _ = cmd.Wait() })
	s, err := qmp.Dial(ctx, path, quiet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func TestSession_RealQEMU(t *testing.T) {
	s := startQEMU(t)
	if s.Greeting().Version.QEMU.Major < 7 {
		t.Errorf("greeting %+v", s.Greeting())
	}
	var status struct{ Status string }
	if err := s.Execute(t.Context(), "query-status", nil, &status); err != nil || status.Status != "prelaunch" {
		t.Fatalf("status %+v, %v", status, err)
	}
	if err := s.Execute(t.Context(), "no-such-command", nil, nil); !fault.Is(err, fault.Unsupported) {
		t.Errorf("an unknown command: %v", err)
	}
	if err := s.Execute(t.Context(), "quit", nil, nil); err != nil {
		t.Fatal(err)
	}
	var last string
	for e := range s.Events() {
		last = e.Name
	}
	if last != "SHUTDOWN" {
		t.Errorf("the last event before the end is %q", last)
	}
}

func TestRealQEMU_Files(t *testing.T) {
	s := startQEMU(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	var added struct {
		FD    int `json:"fd"`
		SetID int `json:"fdset-id"`
	}
	// A stopped QEMU keeps the files of its sets, so this one is not the pipe's.
	if err := s.ExecuteFD(t.Context(), null, "add-fd", object{"fdset-id": 7, "opaque": "x"}, &added); err != nil || added.SetID != 7 {
		t.Fatalf("add-fd gave %+v, %v", added, err)
	}
	if err := s.ExecuteFD(t.Context(), w, "getfd", object{"fdname": "tap0"}, nil); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	if err := s.Execute(t.Context(), "closefd", object{"fdname": "tap0"}, nil); err != nil {
		t.Fatal(err)
	}
	// QEMU held the only other end, so giving it up ends the pipe.
	_ = r.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := r.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("QEMU did not take, or did not give up, the file: %v", err)
	}
	if err := s.Execute(t.Context(), "closefd", object{"fdname": "tap0"}, nil); !qmp.IsClass(err, qmp.ClassGeneric) {
		t.Errorf("a closed file closes again: %v", err)
	}
}

func TestRealQEMU_RecordedSchema(t *testing.T) {
	s := startQEMU(t)
	v := s.Greeting().Version.QEMU
	if v.Major != 7 || v.Minor != 2 {
		t.Skipf("the recorded schema is that of 7.2; this is QEMU %d.%d", v.Major, v.Minor)
	}
	var answer rawJSON
	if err := s.Execute(t.Context(), "query-qmp-schema", nil, &answer); err != nil {
		t.Fatal(err)
	}
	live, err := schema.Parse(answer)
	if err != nil {
		t.Fatal(err)
	}
	recorded := qmptest.Schema(t)
	for _, c := range recorded.Commands() {
		if !live.Has(c) {
			t.Errorf("the real QEMU has no command %s", c)
		}
	}
}

type rawJSON []byte

func (r *rawJSON) UnmarshalJSON(b []byte) error { *r = append((*r)[:0], b...); return nil }
