package guest_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Of a change of limits that is refused in part nothing stays in force.
func TestTune_PartlyRefused(t *testing.T) {
	d := newDaemon(t)
	g := d.define(small("weighed"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{Paused: true}))
	dir := d.groups.Guest(g.UUID).Path(kernel.CPUController)
	if dir == "" {
		t.Skip("this host has no control groups for processors")
	}
	weight := func() string {
		for _, knob := range []string{"cpu.shares", "cpu.weight"} {
			if text, err := os.ReadFile(filepath.Join(dir, knob)); err == nil {
				return string(text)
			}
		}
		t.Fatal("the guest's group has no weight")
		return ""
	}
	before := weight()
	err := hotplug.Tune(d.ctx(), g, scope.Daemon("a test"), machine.Affect{Live: true}, func(def *domain.Definition) error {
		def.Tune.Shares, def.Tune.GlobalPeriod, def.Tune.GlobalQuota = 333, 1, 1 // which is too short for the kernel
		return nil
	})
	if err == nil || g.View().Active.Tune.Shares != 0 {
		t.Errorf("%v, and it is said to weigh %d", err, g.View().Active.Tune.Shares)
	}
	if now := weight(); now != before {
		t.Errorf("it weighs %s, and weighed %s", now, before)
	}
}
