package guest

import (
	"context"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
	"github.com/lodge-kvm/lodge/internal/guest/statistics"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// qemuState is QEMU's answer to a daemon that has missed events.
type qemuState struct {
	status   string
	channels map[string]bool // virtio-serial ports by id: open in the guest
	devices  map[string]bool // aliases of the devices that QEMU still has; nil: not asked
	balloon  uint64
	vcpus    uint                   // 0: not asked
	drives   []statistics.QEMUBlock // nil: not asked, because the guest has no drive with a tray
	// full lists the image paths of the disks that stopped the guest because their file system is full.
	full []string
}

// queryState asks QEMU what may have changed in a guest with definition def. It sends all queries at once:
// QEMU answers in order, and one turn of its main loop costs more than the answers.
func queryState(ctx context.Context, s *qmp.Session, def *domain.Definition) (*qemuState, error) {
	var status struct{ Status string }
	var chardevs []struct {
		Label        string
		FrontendOpen bool `json:"frontend-open"`
	}
	var balloon struct{ Actual uint64 }
	var drives []statistics.QEMUBlock
	var devices map[string]bool
	var asking errgroup.Group
	if hasTrays(&def.Devices) {
		asking.Go(func() error { return s.Execute(ctx, "query-block", nil, &drives) })
	}
	asking.Go(func() error { return s.Execute(ctx, "query-status", nil, &status) })
	if len(def.Devices.Channels) > 0 {
		asking.Go(func() error { return s.Execute(ctx, "query-chardev", nil, &chardevs) })
	}
	if hasUnpluggable(&def.Devices) {
		asking.Go(func() (err error) {
			devices, err = hotplug.QueryDevices(ctx, s)
			return err
		})
	}
	var vcpus uint
	if def.VCPUs.Max > 1 {
		asking.Go(func() error {
			if slots, err := hotplug.QueryVCPUSlots(ctx, s); err == nil { // some machine types have no slots
				vcpus = hotplug.CountVCPUs(slots)
			}
			return nil
		})
	}
	if _, err := provision.BalloonPath(def.Devices.Balloon); err == nil {
		asking.Go(func() error {
			_ = s.Execute(ctx, "query-balloon", nil, &balloon) // it may refuse; then nothing has changed
			return nil
		})
	}
	if err := asking.Wait(); err != nil {
		return nil, err
	}
	found := &qemuState{status: status.Status, channels: map[string]bool{}, devices: devices, drives: drives, balloon: balloon.Actual, vcpus: vcpus}
	if phase, reason := machine.ActivePhase(status.Status); phase == domain.Paused && reason == domain.ReasonIOError {
		full, err := fullDisks(ctx, s, &def.Devices)
		if err != nil {
			return nil, err
		}
		found.full = full
	}
	for _, c := range chardevs {
		found.channels[c.Label] = c.FrontendOpen
	}
	return found, nil
}

// fullDisks returns the image paths of the disks that failed for lack of space.
func fullDisks(ctx context.Context, s *qmp.Session, set *device.Set) (paths []string, err error) {
	var blocks []statistics.QEMUBlock
	if err := s.Execute(ctx, "query-block", nil, &blocks); err != nil {
		return nil, err
	}
	for _, d := range set.Disks {
		if slices.ContainsFunc(blocks, func(b statistics.QEMUBlock) bool {
			return b.IOStatus == "nospace" && statistics.BelongsTo(b.QDev, d.Alias)
		}) {
			paths = append(paths, d.Source.Path())
		}
	}
	return paths, nil
}

// correctState corrects the guest's state by QEMU's answers. was is the guest's phase when QEMU was asked: a change
// by an event since then takes precedence. It runs in the loop, or before the loop starts.
func correctState(g *machine.Guest, found *qemuState, was domain.State) {
	g.SetActive(func(d *domain.Definition) {
		for _, c := range d.Devices.Channels {
			if c.Name != "" {
				c.State = "disconnected"
				if found.channels["char"+c.Alias] {
					c.State = "connected"
				}
			}
		}
		for _, drive := range found.drives {
			setTray(&d.Devices, drive)
		}
		if found.vcpus > 0 && found.vcpus <= d.VCPUs.Max {
			d.VCPUs.Current = found.vcpus
		}
		setCurrentMemory(d, found.balloon)
	})
	for _, alias := range releasedDevices(g.Instance, found.devices) {
		hotplug.DeviceGone(g, alias)
	}
	for _, path := range found.full { // it was paused for lack of space, now or while no daemon ran
		provision.RecordDiskFull(g, path)
	}
	phase, reason := machine.ActivePhase(found.status)
	switch {
	case g.State.Dumping:
		savestate.DumpCore(g) // the dump was begun and not finished
	case g.State.Restarting && phase == domain.Running:
		g.Advance(lifecycle.Resumed{})
	case g.State.Restarting:
		resetMachine(g) // the restart was begun and not finished
	case phase == domain.ShuttingDown && g.State.Phase == domain.Paused && g.State.Reason == domain.ReasonShuttingDown:
		// the guest stays as it ended
	case phase == domain.ShuttingDown && g.State.Phase != domain.ShuttingDown:
		g.Advance(lifecycle.PoweredDown{}) // it shut down while no daemon ran
	case phase == domain.ShuttingDown:
		g.Instance.End(machine.EndGracefully)
	case reason == domain.ReasonPanicked && g.State.Phase == domain.Running:
		g.Advance(lifecycle.Panicked{})
	case g.Instance.Resuming && phase == domain.Paused && reason == domain.ReasonUnknown:
		// its vCPUs are resumed next
	case phase != g.State.Phase && g.State.Phase == was:
		g.Advance(lifecycle.Found{Phase: phase, Reason: reason})
	}
}

func hasTrays(s *device.Set) bool {
	return slices.ContainsFunc(s.Disks, func(d *device.Disk) bool { return d.Device == "cdrom" || d.Device == "floppy" })
}

// setTray records whether the tray of a drive is open. A daemon that was killed during a change of medium
// may have recorded an open tray and missed the event that it closed.
func setTray(s *device.Set, drive statistics.QEMUBlock) {
	for _, d := range s.Disks {
		if statistics.BelongsTo(drive.QDev, d.Alias) && (d.Tray == "open") != drive.TrayOpen {
			d.Tray = map[bool]string{true: "open", false: "closed"}[drive.TrayOpen]
		}
	}
}

// releasedDevices returns the aliases of unpluggable devices that the guest released while no daemon ran. It
// considers only kinds of devices that a guest can release without being asked.
func releasedDevices(r *machine.Instance, present map[string]bool) (aliases []string) {
	if present == nil {
		return nil
	}
	for _, dev := range r.Definition.Devices.All() {
		alias := dev.Common().Alias
		if unpluggable(dev) && alias != "" && !present[alias] {
			aliases = append(aliases, alias)
		}
	}
	return aliases
}

func hasUnpluggable(s *device.Set) bool { return slices.ContainsFunc(s.All(), unpluggable) }

// unpluggable reports whether a guest can release a device of that kind while it runs.
func unpluggable(dev device.Device) bool {
	switch dev.(type) {
	case *device.Disk, *device.NIC, *device.HostDevice, *device.Memory:
		return true
	}
	return false
}

// resync asks QEMU for the changes that missed events would have reported. It waits until no other job
// runs.
func resync(g *machine.Guest) {
	g.Instance.NeedsResync = true
	if g.CurrentJob == nil && !g.Instance.Ending() {
		startWaiting(g)
	}
}

// startResync asks QEMU beside the loop and finishes the operations that no client waits for. If QEMU does
// not answer, it closes the session and asks again on the next one.
func startResync(g *machine.Guest) {
	r, s := g.Instance, g.Instance.Session.Load()
	if s == nil || r.LostAt.Load() != nil {
		return // the next session repeats the query
	}
	r.NeedsResync = false
	rejoin := planResync(g, r, s)
	g.StartInternalJob(domain.JobQuery, machine.ModifyLimit, func(ctx context.Context, sc scope.Scope) (machine.Settle, error) {
		settled, err := rejoin(ctx, sc)
		if err != nil {
			g.Log.Warn("cannot query QEMU about missed events", "error", err)
			s.Close()
		}
		return settled, err
	})
}

// planResync plans the work after missed events: resume a restored guest, recover the operations, and
// correct the state by QEMU's answers.
func planResync(g *machine.Guest, r *machine.Instance, s *qmp.Session) machine.Work {
	def := r.Definition
	resuming, was := r.Resuming, g.State.Phase
	return func(ctx context.Context, sc scope.Scope) (machine.Settle, error) {
		if resuming { // the earlier daemon did not resume it, or did not record that it had
			if err := machine.ResumeOnce(ctx, s); err != nil {
				return nil, err
			}
		}
		if err := r.Ops.Recover(ctx); err != nil {
			return nil, err
		}
		if err := g.Change(ctx, sc, "", func() error { def = r.Definition; return nil }); err != nil {
			return nil, err
		}
		found, err := queryState(ctx, s, def)
		if err != nil {
			return nil, err
		}
		return func() error {
			if resuming {
				r.Resuming = false
				g.WriteInstance()
			}
			correctState(g, found, was)
			return nil
		}, nil
	}
}
