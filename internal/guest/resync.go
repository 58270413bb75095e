package guest

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// contact is a monitor that was reached, and what QEMU said on it.
type contact struct {
	session *qmp.Session
	found   *inquiry
}

// reattach connects an adopted guest to its monitor and corrects its state by
// what QEMU says. It runs before the loop does, and not longer than the daemon
// waits for monitors; one that is reached later is handed to the loop.
func (r *adopting) reattach(g *Guest, run *run) {
	reached := make(chan *contact, 1)
	def := run.def // the loop may change it before QEMU answers
	go func() { reached <- run.reach(r.life, def) }()
	select {
	case c := <-reached:
		if c == nil {
			g.loseMonitor()
			return
		}
		run.connect(c.session)
		g.meet(c.found, g.state.Phase)
		run.behind = run.Resuming || len(run.ops.Operations()) > 0 // to be ended beside the loop
		r.reached <- struct{}{}
	case <-r.patience.Done():
		g.log.Warn("the monitor of an adopted guest does not answer yet", "pid", run.PID)
		run.lose()
		g.publish()
		go g.reattachLate(run, reached)
	}
}

// reach greets QEMU and asks what was missed; nil when that cannot be done.
func (r *run) reach(ctx context.Context, def *domain.Definition) *contact {
	s := r.tryDial(ctx)
	if s == nil {
		return nil
	}
	ctx, stop := context.WithTimeout(ctx, lastRetry)
	defer stop()
	found, err := inquire(ctx, s, def)
	if err != nil {
		r.log.Debug("QEMU does not say what was missed", "error", err)
		s.Close()
		return nil
	}
	return &contact{s, found}
}

// reattachLate hands over what an adoption did not wait for.
func (g *Guest) reattachLate(r *run, reached <-chan *contact) {
	if c := <-reached; c != nil {
		g.handOver(r, c.session)
		return
	}
	g.regain(r, firstRetry)
}

// endAgain sees to it that an end which an earlier daemon began comes, whether
// the monitor answers or not. A guest that was to end with a client ends with
// that client's daemon.
func (g *Guest) endAgain() {
	if g.run.AutoDestroy && g.state.EndFor == "" {
		g.advance(lifecycle.Ending{Reason: domain.ReasonDestroyed})
	}
	switch g.state.EndFor {
	case "":
	case domain.ReasonDestroyed, domain.ReasonSaved:
		g.run.end(endNow)
	default:
		g.run.end(endGracefully)
	}
}

// inquiry is what a daemon asks QEMU when it has missed events.
type inquiry struct {
	status   string
	channels map[string]bool // virtio-serial ports by id: open in the guest
	devices  map[string]bool // aliases that QEMU still has; nil: was not asked
	balloon  uint64
	vcpus    uint        // 0: was not asked
	drives   []blockInfo // nil: was not asked, for the guest has no drive with a tray
	// full are the images of disks whose guest is stopped because they lie where there
	// is no room.
	full []string
}

// inquire asks QEMU what may have changed of a guest with that definition. It asks all at once, because QEMU answers in
// order and one turn of its main loop costs more than the answers do.
func inquire(ctx context.Context, s *qmp.Session, def *domain.Definition) (*inquiry, error) {
	var status struct{ Status string }
	var chardevs []struct {
		Label        string
		FrontendOpen bool `json:"frontend-open"`
	}
	var balloon struct{ Actual uint64 }
	var drives []blockInfo
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
			devices, err = devicesOf(ctx, s)
			return err
		})
	}
	var vcpus uint
	if def.VCPUs.Max > 1 {
		asking.Go(func() error {
			if slots, err := querySlots(ctx, s); err == nil { // a machine may have none
				vcpus = filled(slots)
			}
			return nil
		})
	}
	if _, err := balloonPath(def.Devices.Balloon); err == nil {
		asking.Go(func() error {
			_ = s.Execute(ctx, "query-balloon", nil, &balloon) // it may refuse, and then nothing has changed
			return nil
		})
	}
	if err := asking.Wait(); err != nil {
		return nil, err
	}
	found := &inquiry{status: status.Status, channels: map[string]bool{}, devices: devices, drives: drives, balloon: balloon.Actual, vcpus: vcpus}
	if phase, reason := activePhase(status.Status); phase == domain.Paused && reason == domain.ReasonIOError {
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

// fullDisks gives the images of the disks that have failed for want of room.
func fullDisks(ctx context.Context, s *qmp.Session, set *device.Set) (paths []string, err error) {
	var blocks []blockInfo
	if err := s.Execute(ctx, "query-block", nil, &blocks); err != nil {
		return nil, err
	}
	for _, d := range set.Disks {
		if slices.ContainsFunc(blocks, func(b blockInfo) bool { return b.IOStatus == "nospace" && belongsTo(b.QDev, d.Alias) }) {
			paths = append(paths, d.Source.Path())
		}
	}
	return paths, nil
}

// meet corrects the guest's state by what QEMU said when it was asked of a guest in phase was: what
// it has told since counts for more. It runs in the loop, or before it.
func (g *Guest) meet(found *inquiry, was domain.State) {
	g.setActive(func(d *domain.Definition) {
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
	for _, alias := range missing(g.run, found.devices) {
		g.deviceGone(alias)
	}
	for _, path := range found.full { // it was paused while nobody listened, or is still
		g.lacksRoom(path)
	}
	phase, reason := activePhase(found.status)
	switch {
	case g.state.Dumping:
		g.dumpCore() // who began it did not come to its end
	case g.state.Restarting && phase == domain.Running:
		g.advance(lifecycle.Resumed{})
	case g.state.Restarting:
		g.restartMachine() // who began it did not come to its end
	case phase == domain.ShuttingDown && g.state.Phase == domain.Paused && g.state.Reason == domain.ReasonShuttingDown:
		// it is kept as it ended
	case phase == domain.ShuttingDown && g.state.Phase != domain.ShuttingDown:
		g.advance(lifecycle.PoweredDown{}) // it happened while nobody listened
	case phase == domain.ShuttingDown:
		g.run.end(endGracefully)
	case reason == domain.ReasonPanicked && g.state.Phase == domain.Running:
		g.advance(lifecycle.Panicked{})
	case g.run.Resuming && phase == domain.Paused && reason == domain.ReasonUnknown:
		// it is let run next
	case phase != g.state.Phase && g.state.Phase == was:
		g.advance(lifecycle.Found{Phase: phase, Reason: reason})
	}
}

func hasTrays(s *device.Set) bool {
	return slices.ContainsFunc(s.Disks, func(d *device.Disk) bool { return d.Device == "cdrom" || d.Device == "floppy" })
}

// setTray notes whether the tray of a drive is open: a daemon that was killed while it
// changed the medium noted that it is, and did not live to hear that it was closed.
func setTray(s *device.Set, drive blockInfo) {
	for _, d := range s.Disks {
		if belongsTo(drive.QDev, d.Alias) && (d.Tray == "open") != drive.TrayOpen {
			d.Tray = map[bool]string{true: "open", false: "closed"}[drive.TrayOpen]
		}
	}
}

// missing gives the devices that the guest has let go while nobody listened, of
// those that it can let go by itself.
func missing(r *run, present map[string]bool) (aliases []string) {
	if present == nil {
		return nil
	}
	for _, dev := range r.def.Devices.All() {
		alias := dev.Common().Alias
		if unpluggable(dev) && alias != "" && !present[alias] {
			aliases = append(aliases, alias)
		}
	}
	return aliases
}

func hasUnpluggable(s *device.Set) bool { return slices.ContainsFunc(s.All(), unpluggable) }

func unpluggable(dev device.Device) bool {
	switch dev.(type) {
	case *device.Disk, *device.NIC, *device.HostDevice, *device.Memory:
		return true
	}
	return false
}

// Reconnection: soon at first, then patiently.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 5 * time.Second
	// steady is how long a session lasts that is worth a prompt new one. A QEMU that
	// gives up one after the other is met less and less often.
	steady = time.Minute
)

// loseMonitor notes that the monitor is gone while the process lives, and keeps
// trying to reach it, for as long as the process lives. A lost monitor is not a
// dead guest.
func (g *Guest) loseMonitor() {
	r := g.run
	if time.Since(r.reached) > steady {
		r.patience = 0
	}
	r.patience = min(max(2*r.patience, firstRetry), lastRetry)
	r.lose()
	g.publish()
	go g.regain(r, r.patience)
}

// regain reaches the monitor again and hands it to the loop.
func (g *Guest) regain(r *run, wait time.Duration) {
	for ; ; wait = min(2*wait, lastRetry) {
		pause := time.NewTimer(wait)
		select {
		case <-pause.C:
		case <-r.process.Exited():
			return
		case <-g.ended:
			return
		}
		s := r.tryDial(g.reg.life)
		if s == nil {
			continue
		}
		g.handOver(r, s)
		return
	}
}

// handOver gives the loop a monitor that was reached.
func (g *Guest) handOver(r *run, s *qmp.Session) {
	select {
	case r.back <- s:
	case <-r.process.Exited():
		s.Close()
	case <-g.ended:
		s.Close()
	}
}

// tryDial tries once to reach the monitor.
func (r *run) tryDial(ctx context.Context) *qmp.Session {
	ctx, stop := context.WithTimeout(ctx, lastRetry)
	defer stop()
	s, err := qmp.Dial(ctx, r.monitorPath(), r.log)
	if err != nil {
		r.log.Debug("the monitor cannot be reached yet", "error", err)
		return nil
	}
	return s
}

// handleReconnect takes a new session in and asks what was missed.
func (g *Guest) handleReconnect(s *qmp.Session) {
	g.run.connect(s)
	g.publish()
	g.log.Info("the monitor is back")
	g.resync()
}

// resync has QEMU asked, once no other work is under way, for what events would
// have told.
func (g *Guest) resync() {
	g.run.behind = true
	if g.job == nil && !g.run.ending() {
		g.continueAfter()
	}
}

// startResync asks QEMU, beside the loop, and ends what nobody follows any more.
// A QEMU that does not answer loses its session, and is asked again when there
// is a new one.
func (g *Guest) startResync() {
	r, s := g.run, g.run.session.Load()
	if s == nil || r.lost.Load() != nil {
		return // a new session brings the question with it
	}
	r.behind = false
	rejoin := g.planRejoin(r, s)
	g.startInternal(domain.JobQuery, modifyLimit, func(ctx context.Context, sc scope.Scope) (settle, error) {
		settled, err := rejoin(ctx, sc)
		if err != nil {
			g.log.Warn("cannot ask QEMU what was missed", "error", err)
			s.Close()
		}
		return settled, err
	})
}

// goOnOnce lets a guest run that has been loaded. One that did so before may have been stopped since
// by what it did to itself.
func goOnOnce(ctx context.Context, s *qmp.Session) error {
	var found struct{ Status string }
	if err := s.Execute(ctx, "query-status", nil, &found); err != nil {
		return err
	}
	if phase, reason := activePhase(found.Status); phase != domain.Paused || reason != domain.ReasonUnknown {
		return nil
	}
	return s.Execute(ctx, "cont", nil, nil)
}

func (g *Guest) planRejoin(r *run, s *qmp.Session) work {
	def := r.def
	resuming, was := r.Resuming, g.state.Phase
	return func(ctx context.Context, sc scope.Scope) (settle, error) {
		if resuming { // its daemon did not live to, or to write down that it did
			if err := goOnOnce(ctx, s); err != nil {
				return nil, err
			}
		}
		if err := r.ops.Recover(ctx); err != nil {
			return nil, err
		}
		if err := g.change(ctx, sc, "", func() error { def = r.def; return nil }); err != nil {
			return nil, err
		}
		found, err := inquire(ctx, s, def)
		if err != nil {
			return nil, err
		}
		return func() error {
			if resuming {
				r.Resuming = false
				g.keepRun()
			}
			g.meet(found, was)
			return nil
		}, nil
	}
}
