package fleet_test

import (
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/lodge-kvm/lodge/internal/control/fleet"
	"github.com/lodge-kvm/lodge/internal/daemon"
)

func init() {
	fleet.OpenDaemon = func(t testing.TB, dir string, log *slog.Logger) (*fleet.Fleet, func()) {
		t.Helper()
		d, err := daemon.Open(t.Context(), daemon.Config{Data: filepath.Join(dir, "data"), Run: filepath.Join(dir, "run"), Log: log})
		if err != nil {
			t.Fatal(err)
		}
		return d.Fleet, d.Close
	}
}
