package guest

import (
	"context"
	"slices"
	"time"

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

// contact is a monitor that answered, with QEMU's answers.
type contact struct {
	session *qmp.Session
	found   *inquiry
}

// reattach connects an adopted guest to its monitor and corrects the guest's state by QEMU's answers. It
// runs before the loop and waits only as long as the adoption does. A monitor that answers later is handed
// to the loop.
func (r *adopting) reattach(g *machine.Guest, run *machine.Instance) {
	reached := make(chan *contact, 1)
	def := run.Definition // the loop may change it before QEMU answers
	go func() { reached <- reach(r.Life, run, def) }()
	select {
	case c := <-reached:
		if c == nil {
			loseMonitor(g)
			return
		}
		run.Connect(c.session)
		meet(g, c.found, g.State.Phase)
		run.NeedsResync = run.Resuming || len(run.Ops.Operations()) > 0 // the loop finishes these later
		r.reached <- struct{}{}
	case <-r.patience.Done():
		g.Log.Warn("monitor not responding; guest adopted without it", "pid", run.PID)
		run.MonitorLost()
		g.Publish()
		go reattachLate(g, run, reached)
	}
}

// reach connects to QEMU and asks for missed changes, within lastRetry. It returns nil if either fails.
func reach(ctx context.Context, r *machine.Instance, def *domain.Definition) *contact {
	s := tryDial(ctx, r)
	if s == nil {
		return nil
	}
	ctx, stop := context.WithTimeout(ctx, lastRetry)
	defer stop()
	found, err := inquire(ctx, s, def)
	if err != nil {
		r.Log.Debug("QEMU does not answer queries about missed events", "error", err)
		s.Close()
		return nil
	}
	return &contact{s, found}
}

// reattachLate hands the loop a monitor that answered too late for the adoption.
func reattachLate(g *machine.Guest, r *machine.Instance, reached <-chan *contact) {
	if c := <-reached; c != nil {
		handOver(g, r, c.session)
		return
	}
	regain(g, r, firstRetry)
}

// endAgain repeats a stop that an earlier daemon began, whether the monitor answers or not. A guest with
// AutoDestroy is ended, because its client's connection ended with the earlier daemon.
func endAgain(g *machine.Guest) {
	if g.Instance.AutoDestroy && g.State.EndFor == "" {
		g.Advance(lifecycle.Ending{Reason: domain.ReasonDestroyed})
	}
	switch g.State.EndFor {
	case "":
	case domain.ReasonDestroyed, domain.ReasonSaved:
		g.Instance.End(machine.EndNow)
	default:
		g.Instance.End(machine.EndGracefully)
	}
}

// inquiry is QEMU's answer to a daemon that has missed events.
type inquiry struct {
	status   string
	channels map[string]bool // virtio-serial ports by id: open in the guest
	devices  map[string]bool // aliases of the devices that QEMU still has; nil: not asked
	balloon  uint64
	vcpus    uint                   // 0: not asked
	drives   []statistics.QEMUBlock // nil: not asked, because the guest has no drive with a tray
	// full lists the image paths of the disks that stopped the guest because their file system is full.
	full []string
}

// inquire asks QEMU what may have changed in a guest with definition def. It sends all queries at once:
// QEMU answers in order, and one turn of its main loop costs more than the answers.
func inquire(ctx context.Context, s *qmp.Session, def *domain.Definition) (*inquiry, error) {
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
	found := &inquiry{status: status.Status, channels: map[string]bool{}, devices: devices, drives: drives, balloon: balloon.Actual, vcpus: vcpus}
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

// meet corrects the guest's state by QEMU's answers. was is the guest's phase when QEMU was asked: a change
// by an event since then takes precedence. It runs in the loop, or before the loop starts.
func meet(g *machine.Guest, found *inquiry, was domain.State) {
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
		leaveMemory(d, found.balloon)
	})
	for _, alias := range missing(g.Instance, found.devices) {
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
		restartMachine(g) // the restart was begun and not finished
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

// missing returns the aliases of unpluggable devices that the guest released while no daemon ran. It
// considers only kinds of devices that a guest can release without being asked.
func missing(r *machine.Instance, present map[string]bool) (aliases []string) {
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

// Delays between attempts to reconnect: short at first, then doubled up to lastRetry.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 5 * time.Second
	// steady is how long a session must have lasted for the next delay to be short again. A QEMU that
	// closes session after session is reconnected less and less often.
	steady = time.Minute
)

// loseMonitor records that the monitor is lost while the process lives. It keeps reconnecting as long as
// the process lives, because a guest without a monitor still runs.
func loseMonitor(g *machine.Guest) {
	r := g.Instance
	if time.Since(r.ReachedAt) > steady {
		r.Patience = 0
	}
	r.Patience = min(max(2*r.Patience, firstRetry), lastRetry)
	r.MonitorLost()
	g.Publish()
	go regain(g, r, r.Patience)
}

// regain reconnects to the monitor and hands the session to the loop. It ends with the process or the
// guest.
func regain(g *machine.Guest, r *machine.Instance, wait time.Duration) {
	for ; ; wait = min(2*wait, lastRetry) {
		pause := time.NewTimer(wait)
		select {
		case <-pause.C:
		case <-r.Process.Exited():
			return
		case <-g.Ended:
			return
		}
		s := tryDial(g.Reg.Life, r)
		if s == nil {
			continue
		}
		handOver(g, r, s)
		return
	}
}

// handOver gives the loop a new session, or closes it if the process or the guest has ended.
func handOver(g *machine.Guest, r *machine.Instance, s *qmp.Session) {
	select {
	case r.NewSessions <- s:
	case <-r.Process.Exited():
		s.Close()
	case <-g.Ended:
		s.Close()
	}
}

// tryDial tries once, for at most lastRetry, to connect to the monitor.
func tryDial(ctx context.Context, r *machine.Instance) *qmp.Session {
	ctx, stop := context.WithTimeout(ctx, lastRetry)
	defer stop()
	s, err := qmp.Dial(ctx, r.MonitorPath(), r.Log)
	if err != nil {
		r.Log.Debug("cannot reach the monitor yet", "error", err)
		return nil
	}
	return s
}

// handleReconnect takes over a new session and asks QEMU for missed changes.
func handleReconnect(g *machine.Guest, s *qmp.Session) {
	g.Instance.Connect(s)
	g.Publish()
	g.Log.Info("monitor reconnected")
	resync(g)
}

// resync asks QEMU for the changes that missed events would have reported. It waits until no other job
// runs.
func resync(g *machine.Guest) {
	g.Instance.NeedsResync = true
	if g.CurrentJob == nil && !g.Instance.Ending() {
		continueAfter(g)
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
	rejoin := planRejoin(g, r, s)
	g.StartInternalJob(domain.JobQuery, machine.ModifyLimit, func(ctx context.Context, sc scope.Scope) (machine.Settle, error) {
		settled, err := rejoin(ctx, sc)
		if err != nil {
			g.Log.Warn("cannot query QEMU about missed events", "error", err)
			s.Close()
		}
		return settled, err
	})
}

// planRejoin plans the work after missed events: resume a restored guest, recover the operations, and
// correct the state by QEMU's answers.
func planRejoin(g *machine.Guest, r *machine.Instance, s *qmp.Session) machine.Work {
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
		found, err := inquire(ctx, s, def)
		if err != nil {
			return nil, err
		}
		return func() error {
			if resuming {
				r.Resuming = false
				g.WriteInstance()
			}
			meet(g, found, was)
			return nil
		}, nil
	}
}
