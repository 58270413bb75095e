package systemd

import (
	"os"
	"path/filepath"
	"testing"
)

func TestGranted_WithoutBus(t *testing.T) {
	tree, groups := t.TempDir(), &Groups{}
	if group := groups.Granted("lodge-a1", tree); group != "" {
		t.Errorf("%q is given, which is not there", group)
	}
	const unit = "/machine.slice/lodge-a1-guests.service"
	if err := os.MkdirAll(filepath.Join(tree, unit), 0o755); err != nil {
		t.Fatal(err)
	}
	if group := groups.Granted("lodge-a1", tree); group != unit {
		t.Errorf("%q is given, not %q", group, unit)
	}
}
