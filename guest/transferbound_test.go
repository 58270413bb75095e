package guest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/lodge-kvm/lodge/fault"
)

// What a QEMU that was taken over writes as its guest's state ends somewhere, and is an error then.
func TestNoStateIsWithoutAnEnd(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const most = 3 << 20
	into, qemus, err := transferTo(f, most, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer qemus.Close()
	for piece := make([]byte, 1<<20); err == nil; {
		_, err = qemus.Write(piece)
	}
	if err := into.end(t.Context(), nil); !fault.Is(err, fault.Failed) {
		t.Errorf("a state of more than %d bytes: %v", most, err)
	}
	if st, err := f.Stat(); err != nil || st.Size() > most {
		t.Errorf("%d bytes were written, %v", st.Size(), err)
	}
}
