package campaign

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/scenario"
	"github.com/lodge-kvm/lodge/lab/storm"
)

// StormValues is the file in its directory that has the values of a storm, which have
// a form of their own.
const StormValues = "storm.ndjson.gz"

// weather runs a storm, and puts the scenario beside its values.
func weather(ctx context.Context, o Options, s *scenario.Scenario, w *scenario.Storm) error {
	plan, err := storm.Plan(w.Scenarios, w.Guests, w.Disks)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot make the run's directory")
	}
	path := filepath.Join(o.Dir, StormValues)
	if _, err := os.Stat(path); err == nil {
		return fault.New(fault.Exists, fault.Host, "%s holds a run already: name another directory", o.Dir)
	}
	run, err := storm.Do(ctx, storm.Options{
		Targets: o.Targets, Plan: plan, Repeats: w.Repeats, Clients: w.Clients, Patience: w.Patience, Window: w.Window,
		Seed: o.Seed, Directory: o.Files, Command: o.Command, Version: o.Version, Log: slog.New(slog.DiscardHandler),
	})
	if run == nil {
		return err
	}
	return errors.Join(err, os.WriteFile(filepath.Join(o.Dir, "scenario.yaml"), []byte(s.Text), 0o644), run.Save(path))
}
