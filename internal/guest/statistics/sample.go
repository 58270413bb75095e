package statistics

import (
	"context"
	"slices"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// How often QEMU is asked for the figures that change slowly: sizes of images (QEMU asks the file system,
// which may hang), threads, and the memory figures that a guest reports unasked. In a paused guest almost
// nothing changes, so its QEMU is asked for anything only after PausedPeriod.
const (
	sizesPeriod  = time.Minute
	PausedPeriod = 5 * time.Minute
)

// Measure takes a sample. It asks the kernel, and QEMU only for what the last sample does not have. It is
// the guest's sampleFunc.
func Measure(ctx context.Context, g *machine.Guest, last *machine.Stats, thorough bool, early func(*machine.Stats)) (*machine.Stats, error) {
	r, v := g.Live.Load(), g.View()
	if r == nil || v.Active == nil {
		return nil, ErrNotRunning()
	}
	st := &machine.Stats{At: time.Now(), Def: v.Active}
	st.Balloon.Current = v.Active.CurrentMemory
	sampleNICs(g.Reg, st, last)
	stopped, err := sampleProcess(g.Reg, r.PID, st)
	if err != nil {
		return nil, err
	}
	paused := v.State == domain.Paused && last != nil && last.At.After(v.Since)
	patience := sizesPeriod
	if paused {
		patience = PausedPeriod
	}
	if thorough = thorough || last == nil || last.Def != st.Def || st.At.Sub(last.Thorough) >= patience; !thorough {
		keepSlowFigures(st, last)
	}
	if last == nil {
		early(copyStats(st))
	}
	if stopped {
		return nil, fault.New(fault.Timeout, fault.Domain, "QEMU (process %d) is stopped by a signal; continue it with SIGCONT", r.PID)
	}
	s, err := r.Monitor()
	if err != nil {
		return nil, err
	}
	if thorough {
		err = sampleThoroughly(ctx, g.Reg, s, r.PID, st)
	} else if !paused {
		err = sampleQuickly(ctx, g.Reg, s, r.PID, st)
	}
	return st, err
}

func copyStats(s *machine.Stats) *machine.Stats {
	other := *s
	return &other
}

// keepSlowFigures copies the figures that are not queried again from the last sample.
func keepSlowFigures(s, last *machine.Stats) {
	s.Threads, s.Thorough = last.Threads, last.Thorough
	s.VCPUs, s.Disks, s.IOThreads = last.VCPUs, last.Disks, last.IOThreads
	s.Balloon.Figures, s.Balloon.Known, s.Balloon.Updated = last.Balloon.Figures, last.Balloon.Known, last.Balloon.Updated
}

// sampleThoroughly asks QEMU for everything. It sends one query at least, so that a QEMU that does not
// answer is noticed.
func sampleThoroughly(ctx context.Context, r *machine.Registry, s *qmp.Session, pid int, st *machine.Stats) error {
	threads, err := provision.QueryVCPUs(ctx, r, s, pid)
	if err != nil {
		return err
	}
	st.Threads = slices.Clone(threads[:min(len(threads), int(st.Def.VCPUs.Max))]) // QEMU may return any number
	sampleVCPUs(r, pid, st)
	if err := sampleBalloon(ctx, s, st); err != nil {
		return err
	}
	if st.IOThreads, err = machine.SampleIOThreads(ctx, s, st.Def); err != nil {
		return err
	}
	if st.Disks, err = sampleDisks(ctx, s, st.Def); err != nil {
		return err
	}
	st.Thorough = st.At
	return nil
}

// sampleQuickly asks for what changes while a guest runs.
func sampleQuickly(ctx context.Context, r *machine.Registry, s *qmp.Session, pid int, st *machine.Stats) error {
	sampleVCPUs(r, pid, st)
	if b := st.Def.Devices.Balloon; b != nil && b.StatsPeriod > 0 {
		if err := sampleBalloon(ctx, s, st); err != nil {
			return err
		}
	}
	return sampleCounters(ctx, s, st)
}

// sampleProcess reads the kernel's figures for QEMU's process, and whether a signal has stopped it.
func sampleProcess(r *machine.Registry, pid int, st *machine.Stats) (stopped bool, err error) {
	p, err := r.Kernel.Process(pid)
	if err != nil {
		return false, err
	}
	st.CPU, st.User, st.System, st.Resident = p.User+p.System, p.User, p.System, p.Resident
	return p.State == 'T' || p.State == 't', nil
}

func sampleVCPUs(r *machine.Registry, pid int, st *machine.Stats) {
	st.VCPUs = make([]machine.VCPUStats, 0, len(st.Threads))
	for _, t := range st.Threads {
		if s, err := r.Kernel.Schedule(pid, t.Thread); err == nil {
			st.VCPUs = append(st.VCPUs, machine.VCPUStats{Index: t.Index, Time: s.Run, Waiting: s.Wait})
			continue
		}
		p, err := r.Kernel.Thread(pid, t.Thread) // in whole ticks, if the kernel counts no finer
		if err != nil {
			continue // the vCPU was removed since
		}
		st.VCPUs = append(st.VCPUs, machine.VCPUStats{Index: t.Index, Time: p.User + p.System})
	}
}

// sampleNICs reads the counters of the guest's interfaces. It uses the links that the last sample found.
func sampleNICs(r *machine.Registry, st, last *machine.Stats) {
	nics := st.Def.Devices.NICs
	if len(nics) > 0 {
		st.NICs = make([]machine.NICStats, len(nics))
	}
	for i, n := range nics {
		was := machine.Counted{}
		if last != nil && i < len(last.NICs) && last.NICs[i].IfName == n.Target {
			was = last.NICs[i].Counted
		}
		if s, ok := NICStats(r, n, was); ok {
			st.NICs[i] = s
		}
	}
}

// NICStats reads an interface's counters, from the link that was found before if there is one. What the
// host transmits is what the guest receives.
func NICStats(r *machine.Registry, n *device.NIC, at machine.Counted) (machine.NICStats, bool) {
	if n.Target == "" {
		return machine.NICStats{}, false
	}
	c, err := hostnet.Counters{}, error(nil)
	if at.Index != 0 {
		c, err = r.Meter.Counters(at.Index)
	}
	if at.Index == 0 || err != nil { // another link may have the name now
		if at, err = findCounted(r, n); err == nil {
			c, err = r.Meter.Counters(at.Index)
		}
	}
	if err != nil {
		return machine.NICStats{}, false
	}
	if !at.AsGuest {
		c = hostnet.Counters{
			RxBytes: c.TxBytes, RxPackets: c.TxPackets, RxErrors: c.TxErrors, RxDropped: c.TxDropped,
			TxBytes: c.RxBytes, TxPackets: c.RxPackets, TxErrors: c.RxErrors, TxDropped: c.RxDropped,
		}
	}
	return machine.NICStats{IfName: n.Target, MAC: n.MAC, Counters: c, Counted: at}, true
}

// findCounted finds an interface's link. A macvtap counts from the guest's side already. A network may use
// macvtaps, and its definition may have changed since, so the link itself is checked.
func findCounted(r *machine.Registry, n *device.NIC) (machine.Counted, error) {
	index, err := r.Meter.Index(n.Target)
	if err != nil || n.Type != "network" {
		return machine.Counted{Index: index, AsGuest: n.Type == "direct"}, err
	}
	l, err := hostnet.ByName(n.Target)
	return machine.Counted{Index: index, AsGuest: l.Kind == "macvtap"}, err
}

// Unset is QEMU's value for a figure that the guest did not report.
const Unset = 1<<64 - 1

func sampleBalloon(ctx context.Context, s *qmp.Session, st *machine.Stats) error {
	path, err := provision.BalloonPath(st.Def.Devices.Balloon)
	if err != nil {
		return nil // no balloon: no figures
	}
	return readFigures(ctx, s, path, &st.Balloon)
}

// readFigures reads the memory figures that a guest has reported to the balloon at that path.
func readFigures(ctx context.Context, s *qmp.Session, path string, into *machine.Balloon) error {
	var answer struct {
		Stats      map[string]uint64
		LastUpdate int64 `json:"last-update"`
	}
	if err := s.Execute(ctx, "qom-get", map[string]any{"path": path, "property": "guest-stats"}, &answer); err != nil {
		return err
	}
	into.Known, into.Updated = 0, time.Time{}
	for f, name := range qemuFigures {
		if value, ok := answer.Stats[name]; ok && value != Unset {
			SetFigure(into, machine.BalloonFigure(f), value)
		}
	}
	if answer.LastUpdate > 0 {
		into.Updated = time.Unix(answer.LastUpdate, 0)
	}
	return nil
}
