package guest

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/guest/filelabel"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Of two saves to the same path one is refused, and changes nothing of the other. A partial image of a killed
// daemon does not prevent a save.
func TestSave_SamePathTwice(t *testing.T) {
	path := filepath.Join(t.TempDir(), "image")
	write := func(text string, meanwhile func() error) error {
		return savestate.WriteImage(t.Context(), scope.Daemon("a test"), path, func(f *os.File) error {
			_, err := f.WriteString(text)
			return errors.Join(err, meanwhile())
		}, (*os.File).Sync)
	}
	if err := os.WriteFile(savestate.PartialPath(path), []byte("what is longer and was left"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := write("first", func() error {
		if err := write("second", func() error { return nil }); !fault.Is(err, fault.Busy) {
			t.Errorf("the second: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	is := func(want string) {
		t.Helper()
		if text, err := os.ReadFile(path); err != nil || string(text) != want {
			t.Errorf("the image is %q: %v", text, err)
		}
	}
	is("first")
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := os.WriteFile(savestate.PartialPath(path), []byte("of another yet"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := savestate.TruncateLocked(f, savestate.PartialPath(path)); !fault.Is(err, fault.Busy) { // opened just before it was completed
		t.Errorf("the image that was completed in between: %v", err)
	}
	if err := errors.Join(f.Close(), write("next", func() error { is("first"); return nil })); err != nil {
		t.Fatal(err)
	}
	is("next")
	if _, err := os.Lstat(savestate.PartialPath(path)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the partial image: %v", err)
	}
}

// Paths are absolute and valid UTF-8. The next daemon finds incomplete images by paths in JSON, which cannot hold
// other bytes.
// Promise: F29
func TestSave_PathForNextDaemon(t *testing.T) {
	for _, path := range []string{"relative", "/srv/a\xff", "/srv/\xc3/a"} {
		if err := savestate.Save(t.Context(), new(machine.Guest), scope.Daemon("a test"), path, savestate.SaveOptions{}); !fault.Is(err, fault.Invalid) {
			t.Errorf("a save to %q: %v", path, err)
		}
		if err := savestate.Dump(t.Context(), new(machine.Guest), scope.Daemon("a test"), path, savestate.DumpOptions{}); !fault.Is(err, fault.Invalid) {
			t.Errorf("a dump to %q: %v", path, err)
		}
	}
}

// No image takes the place of a device of the host's, in memory.
func TestSave_PathIsDevice(t *testing.T) {
	g := guestOf(t, bareRegistry(t), claimedUUID, "")
	for _, path := range []string{"/dev/null", "//dev/vg/lv", "/tmp/../dev/vda", "/dev/./nothing"} {
		for verb, err := range map[string]error{"save": savestate.Save(t.Context(), g, scope.Daemon("a test"), path, savestate.SaveOptions{}), "dump": savestate.Dump(t.Context(), g, scope.Daemon("a test"), path, savestate.DumpOptions{})} {
			if !fault.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), "cannot "+verb+" to") {
				t.Errorf("%s to %s: %v", verb, path, err)
			}
		}
	}
	if err := savestate.Save(t.Context(), g, scope.Daemon("a test"), "/dev/shm/image", savestate.SaveOptions{}); !fault.Is(err, fault.WrongState) {
		t.Errorf("a file in memory that is meant so: %v", err)
	}
}

// A journal of labels that is longer than the next daemon reads is none.
// Promise: I8
func TestLabels_JournalBounded(t *testing.T) {
	l := &filelabel.Labels{Path: filepath.Join(t.TempDir(), "journal")}
	l.Files = []filelabel.LeasedFile{{Path: strings.Repeat("x", filelabel.MaxJournal)}}
	if err := l.WriteJournal(); !fault.Is(err, fault.NoCapacity) {
		t.Errorf("a journal that is too long to be read is kept: %v", err)
	}
}

// An image is written of no guest that could not be restored from it: the guest is told so while it runs.
// Promise: F31
func TestSave_NotRestorable(t *testing.T) {
	whole := title("first")
	for name, doc := range map[string]string{
		"two orders to boot in": strings.NewReplacer("</os>", "<boot dev='hd'/></os>",
			"</domain>", "<devices><interface type='user'><boot order='1'/></interface></devices></domain>").Replace(whole),
		"two devices of one name": strings.Replace(whole, "</domain>", "<devices>"+
			strings.Repeat("<interface type='user'><alias name='ua-x'/></interface>", 2)+"</devices></domain>", 1),
	} {
		def, err := domainxml.Parse(doc, domainxml.Options{Active: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := savestate.NewSaveHeader(def, "/run", savestate.SaveOptions{}, domain.Running); err == nil || !strings.Contains(err.Error(), "could not be restored") {
			t.Errorf("%s: %v", name, err)
		}
	}
	def, err := domainxml.Parse(whole, domainxml.Options{Active: true})
	if err == nil {
		_, err = savestate.NewSaveHeader(def, "/run", savestate.SaveOptions{}, domain.Running)
	}
	if err != nil {
		t.Error(err)
	}
}
