package libvirt

import (
	"os"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/domaincalls"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
)

func TestVirsh_Dump(t *testing.T) {
	s := &shell{withGuests(t), map[string]string{"DIR": t.TempDir(), "DOC": document(t, aGuest("web"))}}
	begins := func(file, magic string) {
		t.Helper()
		b, err := os.ReadFile(s.fill(file)[0])
		if err != nil || !strings.HasPrefix(string(b), magic) {
			t.Errorf("%s begins with %q, %v", file, b[:min(len(b), 8)], err)
		}
	}
	s.does("define DOC")
	s.fails("dump web DIR/none", "domain is not running")
	s.does("start web")
	s.does("dump web DIR/whole", "dumped to DIR/whole")
	begins("DIR/whole", "QEVM")
	s.does("domstate web --reason", "running \\(unpaused\\)")
	s.does("dump web DIR/elf --memory-only --live --bypass-cache --verbose", "Dump: \\[100(\\.00)? %\\]")
	begins("DIR/elf", "\x7fELF")
	s.does("dump web DIR/kdump --memory-only --format kdump-zlib --reset")
	begins("DIR/kdump", "makedumpfile") // flattened, as the format begins on what cannot be sought
	s.does("domjobinfo web --completed", "Operation: Dump")
	s.does("suspend web")
	s.does("dump web DIR/paused --memory-only")
	s.does("domstate web --reason", "paused \\(user\\)")
	s.does("resume web")
	s.fails("dump web /proc/none --memory-only", "cannot make the image file")
	s.does("domstate web --reason", "running \\(unpaused\\)")
	s.does("dump web DIR/last --memory-only --crash")
	s.does("domstate web --reason", "shut off \\(crashed\\)")
	files, err := os.ReadDir(s.words["DIR"])
	if err != nil || len(files) != 5 {
		t.Errorf("there are %v, %v", files, err)
	}
}

func TestDumpOptions_Flags(t *testing.T) {
	for _, c := range []struct {
		format, flags uint32
		want          savestate.DumpOptions
		refused       fault.Kind
	}{
		{want: savestate.DumpOptions{}},
		{flags: rpc.DumpLive | rpc.DumpBypassCache, want: savestate.DumpOptions{Live: true, BypassCache: true}},
		{flags: rpc.DumpMemoryOnly | rpc.DumpReset, want: savestate.DumpOptions{Memory: "elf", Reset: true}},
		{format: 4, flags: rpc.DumpMemoryOnly | rpc.DumpCrash, want: savestate.DumpOptions{Memory: "win-dmp", Crash: true}},
		{format: 1, refused: fault.WrongState},
		{format: 8, flags: rpc.DumpMemoryOnly, refused: fault.Invalid},
		{flags: rpc.DumpCrash | rpc.DumpLive, refused: fault.Invalid},
		{flags: rpc.DumpReset | rpc.DumpLive, refused: fault.Invalid},
		{flags: 32, refused: fault.Invalid},
	} {
		switch got, err := domaincalls.DumpOptions("DUMP", c.format, c.flags); {
		case c.refused != 0:
			if !fault.Is(err, c.refused) {
				t.Errorf("format %d, flags %d: %v", c.format, c.flags, err)
			}
		case err != nil || got != c.want:
			t.Errorf("format %d, flags %d: %+v, %v", c.format, c.flags, got, err)
		}
	}
}
