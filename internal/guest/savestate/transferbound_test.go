package savestate

import (
	"encoding/json"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp/qmptest"
)

// What a QEMU that was taken over writes as its guest's state ends somewhere, and is an error then.
// Promise: S13
func TestTransfer_StateBounded(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const most = 3 << 20
	into, qemus, err := startTransfer(f, most, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer qemus.Close()
	for piece := make([]byte, 1<<20); err == nil; {
		_, err = qemus.Write(piece)
	}
	if err := into.wait(t.Context(), nil); !fault.Is(err, fault.Failed) {
		t.Errorf("a state of more than %d bytes: %v", most, err)
	}
	if st, err := f.Stat(); err != nil || st.Size() > most {
		t.Errorf("%d bytes were written, %v", st.Size(), err)
	}
}

// handed is QEMU's end of a monitor, which is handed files.
type handed struct {
	*net.UnixConn
	file chan *os.File
}

func (h handed) Read(b []byte) (int, error) {
	control := make([]byte, unix.CmsgSpace(4))
	n, got, _, _, err := h.ReadMsgUnix(b, control)
	if got > 0 {
		messages, err := unix.ParseSocketControlMessage(control[:got])
		if err != nil {
			return n, err
		}
		fds, err := unix.ParseUnixRights(&messages[0])
		if err != nil {
			return n, err
		}
		h.file <- os.NewFile(uintptr(fds[0]), "handed")
	}
	return n, err
}

// Nor does it as its guest's memory, which is dumped to the data directory when it says that the guest has
// panicked.
// Promise: S13
func TestDumpMemory_Bounded(t *testing.T) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]net.Conn
	for i, end := range ends {
		f := os.NewFile(uintptr(end), "monitor")
		if conns[i], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
	}
	given := make(chan *os.File, 1)
	m := qmptest.Serve(t, conns[0], handed{conns[1].(*net.UnixConn), given})
	s, err := qmp.New(t.Context(), m.Conn(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	f, err := os.Create(filepath.Join(t.TempDir(), "core"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const most = 3 << 20
	nothing := func(json.RawMessage) (any, error) { return struct{}{}, nil }
	m.Answer("getfd", nothing)
	m.Answer("dump-guest-memory", nothing)
	m.Answer("query-dump", func(json.RawMessage) (any, error) {
		to := <-given
		defer to.Close()
		for range 16 { // and so on
			if _, err := to.Write(make([]byte, 1<<20)); err != nil {
				break
			}
		}
		return map[string]any{"status": "completed"}, nil
	})
	if err := dumpMemory(t.Context(), s, f, most, "elf", &machine.Progress{}, nil); !fault.Is(err, fault.Failed) {
		t.Errorf("a dump of more than %d bytes: %v", most, err)
	}
	if st, err := f.Stat(); err != nil || st.Size() > most {
		t.Errorf("%d bytes were written, %v", st.Size(), err)
	}
}
