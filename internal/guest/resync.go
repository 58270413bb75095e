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

// contact is a monitor that answered, with QEMU's answers.
type contact struct {
	session *qmp.Session
	found   *inquiry
}

// reattach connects an adopted guest to its monitor and corrects the guest's state by QEMU's answers. It
// runs before the loop and waits only as long as the adoption does. A monitor that answers later is handed
// to the loop.
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
		run.behind = run.Resuming || len(run.ops.Operations()) > 0 // the loop finishes these later
		r.reached <- struct{}{}
	case <-r.patience.Done():
		g.log.Warn("monitor not responding; guest adopted without it", "pid", run.PID)
		run.lose()
		g.publish()
		go g.reattachLate(run, reached)
	}
}

// reach connects to QEMU and asks for missed changes, within lastRetry. It returns nil if either fails.
func (r *run) reach(ctx context.Context, def *domain.Definition) *contact {
	s := r.tryDial(ctx)
	if s == nil {
		return nil
	}
	ctx, stop := context.WithTimeout(ctx, lastRetry)
	defer stop()
	found, err := inquire(ctx, s, def)
	if err != nil {
		r.log.Debug("QEMU does not answer queries about missed events", "error", err)
		s.Close()
		return nil
	}
	return &contact{s, found}
}

// reattachLate hands the loop a monitor that answered too late for the adoption.
func (g *Guest) reattachLate(r *run, reached <-chan *contact) {
	if c := <-reached; c != nil {
		g.handOver(r, c.session)
		return
	}
	g.regain(r, firstRetry)
}

// endAgain repeats a stop that an earlier daemon began, whether the monitor answers or not. A guest with
// AutoDestroy is ended, because its client's connection ended with the earlier daemon.
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

// inquiry is QEMU's answer to a daemon that has missed events.
type inquiry struct {
	status   string
	channels map[string]bool // virtio-serial ports by id: open in the guest
	devices  map[string]bool // aliases of the devices that QEMU still has; nil: not asked
	balloon  uint64
	vcpus    uint        // 0: not asked
	drives   []blockInfo // nil: not asked, because the guest has no drive with a tray
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
			if slots, err := querySlots(ctx, s); err == nil { // some machine types have no slots
				vcpus = filled(slots)
			}
			return nil
		})
	}
	if _, err := balloonPath(def.Devices.Balloon); err == nil {
		asking.Go(func() error {
			_ = s.Execute(ctx, "query-balloon", nil, &balloon) // it may refuse; then nothing has changed
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

// fullDisks returns the image paths of the disks that failed for lack of space.
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

// meet corrects the guest's state by QEMU's answers. was is the guest's phase when QEMU was asked: a change
// by an event since then takes precedence. It runs in the loop, or before the loop starts.
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
	for _, path := range found.full { // it was paused for lack of space, now or while no daemon ran
		g.lacksRoom(path)
	}
	phase, reason := activePhase(found.status)
	switch {
	case g.state.Dumping:
		g.dumpCore() // the dump was begun and not finished
	case g.state.Restarting && phase == domain.Running:
		g.advance(lifecycle.Resumed{})
	case g.state.Restarting:
		g.restartMachine() // the restart was begun and not finished
	case phase == domain.ShuttingDown && g.state.Phase == domain.Paused && g.state.Reason == domain.ReasonShuttingDown:
		// the guest stays as it ended
	case phase == domain.ShuttingDown && g.state.Phase != domain.ShuttingDown:
		g.advance(lifecycle.PoweredDown{}) // it shut down while no daemon ran
	case phase == domain.ShuttingDown:
		g.run.end(endGracefully)
	case reason == domain.ReasonPanicked && g.state.Phase == domain.Running:
		g.advance(lifecycle.Panicked{})
	case g.run.Resuming && phase == domain.Paused && reason == domain.ReasonUnknown:
		// its vCPUs are resumed next
	case phase != g.state.Phase && g.state.Phase == was:
		g.advance(lifecycle.Found{Phase: phase, Reason: reason})
	}
}

func hasTrays(s *device.Set) bool {
	return slices.ContainsFunc(s.Disks, func(d *device.Disk) bool { return d.Device == "cdrom" || d.Device == "floppy" })
}

// setTray records whether the tray of a drive is open. A daemon that was killed during a change of medium
// may have recorded an open tray and missed the event that it closed.
func setTray(s *device.Set, drive blockInfo) {
	for _, d := range s.Disks {
		if belongsTo(drive.QDev, d.Alias) && (d.Tray == "open") != drive.TrayOpen {
			d.Tray = map[bool]string{true: "open", false: "closed"}[drive.TrayOpen]
		}
	}
}

// missing returns the aliases of unpluggable devices that the guest released while no daemon ran. It
// considers only kinds of devices that a guest can release without being asked.
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

// regain reconnects to the monitor and hands the session to the loop. It ends with the process or the
// guest.
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

// handOver gives the loop a new session, or closes it if the process or the guest has ended.
func (g *Guest) handOver(r *run, s *qmp.Session) {
	select {
	case r.back <- s:
	case <-r.process.Exited():
		s.Close()
	case <-g.ended:
		s.Close()
	}
}

// tryDial tries once, for at most lastRetry, to connect to the monitor.
func (r *run) tryDial(ctx context.Context) *qmp.Session {
	ctx, stop := context.WithTimeout(ctx, lastRetry)
	defer stop()
	s, err := qmp.Dial(ctx, r.monitorPath(), r.log)
	if err != nil {
		r.log.Debug("cannot reach the monitor yet", "error", err)
		return nil
	}
	return s
}

// handleReconnect takes over a new session and asks QEMU for missed changes.
func (g *Guest) handleReconnect(s *qmp.Session) {
	g.run.connect(s)
	g.publish()
	g.log.Info("monitor reconnected")
	g.resync()
}

// resync asks QEMU for the changes that missed events would have reported. It waits until no other job
// runs.
func (g *Guest) resync() {
	g.run.behind = true
	if g.job == nil && !g.run.ending() {
		g.continueAfter()
	}
}

// startResync asks QEMU beside the loop and finishes the operations that no client waits for. If QEMU does
// not answer, it closes the session and asks again on the next one.
func (g *Guest) startResync() {
	r, s := g.run, g.run.session.Load()
	if s == nil || r.lost.Load() != nil {
		return // the next session repeats the query
	}
	r.behind = false
	rejoin := g.planRejoin(r, s)
	g.startInternal(domain.JobQuery, modifyLimit, func(ctx context.Context, sc scope.Scope) (settle, error) {
		settled, err := rejoin(ctx, sc)
		if err != nil {
			g.log.Warn("cannot query QEMU about missed events", "error", err)
			s.Close()
		}
		return settled, err
	})
}

// goOnOnce resumes the vCPUs of a guest that was loaded and has not run yet. A guest that ran before may
// have stopped since for its own reasons, and is left stopped.
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

// planRejoin plans the work after missed events: resume a restored guest, recover the operations, and
// correct the state by QEMU's answers.
func (g *Guest) planRejoin(r *run, s *qmp.Session) work {
	def := r.def
	resuming, was := r.Resuming, g.state.Phase
	return func(ctx context.Context, sc scope.Scope) (settle, error) {
		if resuming { // the earlier daemon did not resume it, or did not record that it had
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
