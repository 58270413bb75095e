package host

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/kernel"
)

// nearlyFull is a host with the kernel's default for native I/O, 63 guests on it.
func nearlyFull(t *testing.T) *Inventory {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{
		"proc/loadavg": "0 0 0 1/1000 1", "proc/sys/fs/aio-max-nr": "65536", "proc/sys/fs/aio-nr": "64512",
		"proc/sys/kernel/threads-max": "100000", "proc/sys/kernel/pid_max": "32768",
		"proc/sys/kernel/pty/max": "4096", "proc/sys/kernel/pty/nr": "10",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return &Inventory{root: kernel.At(dir)}
}

func TestTheGuestThatWouldHitACeilingIsRefusedWithTheRemedy(t *testing.T) {
	inv := nearlyFull(t)
	if err := inv.CheckCeilings(Need{Threads: 8, PTYs: 1, AIO: AIOContext}); err != nil {
		t.Fatalf("the 64th guest is refused: %v", err)
	}
	err := inv.CheckCeilings(Need{AIO: 2 * AIOContext})
	if !fault.Is(err, fault.NoCapacity) {
		t.Fatalf("got %v, want no capacity", err)
	}
	for _, says := range []string{"fs.aio-max-nr", "65536", "64512", "2048", "sysctl -w fs.aio-max-nr="} {
		if !strings.Contains(err.Error(), says) {
			t.Errorf("%q does not say %q", err, says)
		}
	}
}

func TestCeilingsThatWillBiteAreToldBefore(t *testing.T) {
	warnings, err := nearlyFull(t).Warnings(1000)
	if err != nil {
		t.Fatal(err)
	}
	if len(warnings) != 1 || !strings.Contains(warnings[0], "fs.aio-max-nr is 65536 (64512 in use): it stops this host after about 1 more guests") {
		t.Fatalf("warnings %q, want one, about native I/O", warnings)
	}
}
