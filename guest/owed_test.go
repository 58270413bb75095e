package guest

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/kernel"
)

// The journal of a change that was cut off, of which QEMU has still to be asked, is not written over by the next
// change: nobody would know any more what its QEMU may have.
func TestAChangeThatWasCutOffIsNotForgottenForTheNext(t *testing.T) {
	for name, cutOff := range map[string]func(*run){
		pluggingFile: func(r *run) { r.plugging = &plugging{} },
		changingFile: func(r *run) { r.changing = &changing{} },
		amendingFile: func(r *run) { r.amending = &amending{} },
	} {
		r := newRun(runRecord{Name: "owing"}, t.TempDir(), kernel.Root{}, slog.New(slog.DiscardHandler))
		journal := filepath.Join(r.dir, name)
		if err := r.begin(name, "first"); err != nil {
			t.Fatal(err)
		}
		cutOff(r)
		if err := r.begin(name, "next"); !fault.Is(err, fault.Busy) {
			t.Errorf("%s: the next one is begun: %v", name, err)
		}
		if text, err := os.ReadFile(journal); err != nil || string(text) != "\"first\"\n" {
			t.Errorf("%s says %q, %v", name, text, err)
		}
	}
}
