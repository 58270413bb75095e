package provision

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Only a missing object is absent. An object that exists, or may exist, is not left out of a guest.
func TestAbsent_IsWhatIsMissing(t *testing.T) {
	dir := t.TempDir()
	plain, damaged := filepath.Join(dir, "plain"), filepath.Join(dir, "damaged")
	for path, text := range map[string][]byte{plain: make([]byte, 4096), damaged: append([]byte("QFI\xfb"), make([]byte, 4096)...)} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	open := func(path string, format image.Format) error {
		chain, err := image.OpenChain(t.Context(), scope.Daemon("a test"), path, format)
		chain.Close()
		return err
	}
	failed := func(cause error) error {
		return fault.Wrap(cause, fault.Failed, fault.Volume, "cannot open image")
	}
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"missing file":      {open(filepath.Join(dir, "nosuch"), image.Raw), true},
		"no directory":      {open(plain+"/nosuch", image.Raw), true},
		"missing layer":     {fault.Wrap(failed(os.ErrNotExist), fault.NotFound, fault.Volume, "cannot open layer 1"), true},
		"missing volume":    {fault.New(fault.NotFound, fault.Volume, "no volume"), true},
		"inactive pool":     {fault.New(fault.WrongState, fault.Pool, "not active"), true},
		"damaged image":     {open(damaged, image.Qcow2), false},
		"relative path":     {open("nosuch", image.Raw), false},
		"directory":         {open(dir, image.Raw), false},
		"I/O error":         {failed(unix.EIO), false},
		"too many files":    {failed(unix.EMFILE), false},
		"denied":            {fault.New(fault.Denied, fault.Volume, "elsewhere"), false},
		"no answer in time": {fault.New(fault.Timeout, fault.Volume, "hangs"), false},
	} {
		if c.err == nil {
			t.Fatalf("%s: no error", name)
		}
		missing := (*Absence)(nil)
		if got := errors.As(asAbsence(fmt.Errorf("cannot use the source: %w", c.err)), &missing); got != c.want {
			t.Errorf("%s: absent is %v: %v", name, got, c.err)
		}
	}
}
