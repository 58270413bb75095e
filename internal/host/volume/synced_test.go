package volume

import (
	"bytes"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// unsynced returns how many pages of a file a host would lose with a power failure.
func unsynced(t *testing.T, path string) uint64 {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	var of unix.Cachestat_t
	if err := unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{}, &of, 0); err != nil {
		t.Skipf("this kernel does not tell what is not written out: %v", err)
	}
	return of.Dirty + of.Writeback
}

// When a copy is reported as done, it is on disk: its source may be deleted then.
// Promise: F33
func TestClone_IsSyncedToDisk(t *testing.T) {
	needQemuImg(t)
	d := newDaemon(t)
	p := d.dirPool("p")
	content := bytes.Repeat([]byte("0123456789abcdef"), 4*mib/16)
	probe := t.TempDir() + "/probe"
	must(t, os.WriteFile(probe, content, 0o600))
	if unsynced(t, probe) == 0 {
		t.Skip("files are in memory here, or written out at once")
	}
	d.volume(p, volXML("source", "raw", 4*mib, ""))
	upload(t, p, "source", 0, content)
	for name, doc := range map[string]string{"bytes": volXML("bytes", "raw", 4*mib, ""), "converted": volXML("converted", "qcow2", 4*mib, "")} {
		v, err := p.CloneVolume(t.Context(), scope.Daemon("a test"), doc, p, "source", CreateOptions{})
		must(t, err)
		if n := unsynced(t, v.Path); n > 0 {
			t.Errorf("%s: %d pages are in memory only", name, n)
		}
	}
	v, err := p.FillVolume(t.Context(), scope.Daemon("a test"), "filled", content)
	must(t, err)
	if n := unsynced(t, v.Path); n > 0 {
		t.Errorf("filled: %d pages are in memory only", n)
	}
}
