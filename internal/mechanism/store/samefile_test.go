package store

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// A file without a name still accepts writes. An acknowledged change must
// be in a file that the next daemon finds.
// Promise: S14
func TestPut_FileRemovedWhileOpen(t *testing.T) {
	dir := t.TempDir()
	s := reopen(t, dir)
	must(t, s.Put(guests, "before", guest{Name: "before"}))
	must(t, os.Remove(Path(dir)))
	must(t, s.Put(guests, "after", guest{Name: "after"}))
	must(t, s.Put(guests, "later", guest{Name: "later"}))
	must(t, s.Close())
	checkKept(t, dir, "before", "after", "later")
}

// Only the user knows which counts: a backup that was put in place of the file, or
// the daemon's own records.
// Promise: S14
func TestPut_FileReplacedWhileOpen(t *testing.T) {
	dir := t.TempDir()
	s := reopen(t, dir)
	must(t, s.Put(guests, "old", guest{Name: "old"}))
	backup, err := os.ReadFile(Path(dir))
	must(t, err)
	must(t, s.Put(guests, "before", guest{Name: "before"}))
	must(t, os.Rename(Path(dir), filepath.Join(dir, "away")))
	must(t, os.WriteFile(Path(dir), backup, 0o600))
	if err := s.Put(guests, "after", guest{}); !fault.Is(err, fault.Failed) || !strings.Contains(err.Error(), "restart the daemon") {
		t.Errorf("beside another file a change gave %v", err)
	}
	var g guest
	must(t, s.Get(guests, "before", &g))
	if now, err := os.ReadFile(Path(dir)); err != nil || string(now) != string(backup) {
		t.Errorf("the other file was written to (%v)", err)
	}
	must(t, os.Remove(Path(dir)))
	must(t, s.Put(guests, "after", guest{Name: "after"}))
	must(t, s.Close())
	checkKept(t, dir, "old", "before", "after")
}

// The file system of the directory is unmounted lazily, or the directory is moved away.
// Promise: S14
func TestPut_DirectoryGone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s := reopen(t, dir)
	must(t, s.Put(guests, "before", guest{Name: "before"}))
	must(t, os.Rename(dir, dir+".away"))
	for range 2 { // there is none, and there is another
		if err := s.Put(guests, "after", guest{}); !fault.Is(err, fault.Failed) || !strings.Contains(err.Error(), "bring it back") {
			t.Errorf("without its directory a change gave %v", err)
		}
		must(t, os.MkdirAll(dir, 0o700))
	}
	must(t, os.Remove(dir))
	must(t, os.Rename(dir+".away", dir))
	must(t, s.Put(guests, "after", guest{Name: "after"}))
	must(t, s.Close())
	checkKept(t, dir, "before", "after")
}

// A daemon may be killed before it has looked elsewhere for lost records. The next daemon finds
// a new file, and must not take it for complete.
// Promise: S9
func TestComplete_NewFile(t *testing.T) {
	dir := t.TempDir()
	s := reopen(t, dir)
	must(t, s.Put(guests, "before", guest{Name: "before"}))
	must(t, s.MarkComplete())
	must(t, s.Close())
	must(t, os.Remove(Path(dir)))
	for at, sound := range []bool{false, false, true} {
		s := reopen(t, dir)
		if s.Complete() != sound {
			t.Errorf("at opening %d the store is sound: %v", at+1, s.Complete())
		}
		if at == 1 {
			must(t, s.MarkComplete())
		}
		must(t, s.Close())
	}
}

// Only a directory that is not empty is reported to have lost its store.
// Promise: S9
func TestOpen_DirectoryNotEmpty(t *testing.T) {
	for name, told := range map[string]bool{"lost+found": false, "guest": true} {
		dir := t.TempDir()
		must(t, os.Mkdir(filepath.Join(dir, name), 0o700))
		var log strings.Builder
		s, err := OpenLogged(dir, slog.New(slog.NewTextHandler(&log, nil)))
		must(t, err)
		must(t, s.Close())
		if strings.Contains(log.String(), "without a store") != told {
			t.Errorf("beside %s it says %q", name, log.String())
		}
	}
}
