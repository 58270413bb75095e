package guest

import (
	"context"
	"slices"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// How often QEMU is asked for what changes slowly: sizes of images (QEMU asks the file system, which may
// hang), threads, and the memory figures that a guest reports unasked. A paused guest, where almost nothing
// changes, is asked for anything only after pausedSlowly.
const (
	slowly       = time.Minute
	pausedSlowly = 5 * time.Minute
)

// measure takes a sample. It asks the kernel, and QEMU only for what the last sample does not have. It is
// the guest's taker.
func (g *Guest) measure(ctx context.Context, last *Stats, thorough bool, early func(*Stats)) (*Stats, error) {
	r, v := g.live.Load(), g.View()
	if r == nil || v.Active == nil {
		return nil, errNotRunning()
	}
	st := &Stats{At: time.Now(), def: v.Active}
	st.Balloon.Current = v.Active.CurrentMemory
	g.reg.sampleNICs(st, last)
	stopped, err := g.reg.sampleProcess(r.PID, st)
	if err != nil {
		return nil, err
	}
	paused := v.State == domain.Paused && last != nil && last.At.After(v.Since)
	patience := slowly
	if paused {
		patience = pausedSlowly
	}
	if thorough = thorough || last == nil || last.def != st.def || st.At.Sub(last.thorough) >= patience; !thorough {
		st.keep(last)
	}
	if last == nil {
		early(st.copy())
	}
	if stopped {
		return nil, fault.New(fault.Timeout, fault.Domain, "QEMU (process %d) is stopped by a signal; continue it with SIGCONT", r.PID)
	}
	s, err := r.monitor()
	if err != nil {
		return nil, err
	}
	if thorough {
		err = g.reg.sampleThoroughly(ctx, s, r.PID, st)
	} else if !paused {
		err = g.reg.sampleQuickly(ctx, s, r.PID, st)
	}
	return st, err
}

func (s *Stats) copy() *Stats {
	other := *s
	return &other
}

// keep copies the figures that are not queried again from the last sample.
func (s *Stats) keep(last *Stats) {
	s.threads, s.thorough = last.threads, last.thorough
	s.VCPUs, s.Disks, s.IOThreads = last.VCPUs, last.Disks, last.IOThreads
	s.Balloon.figures, s.Balloon.known, s.Balloon.Updated = last.Balloon.figures, last.Balloon.known, last.Balloon.Updated
}

// sampleThoroughly asks QEMU for everything. It sends one query at least, so that a QEMU that does not
// answer is noticed.
func (r *Registry) sampleThoroughly(ctx context.Context, s *qmp.Session, pid int, st *Stats) error {
	threads, err := r.queryVCPUs(ctx, s, pid)
	if err != nil {
		return err
	}
	st.threads = slices.Clone(threads[:min(len(threads), int(st.def.VCPUs.Max))]) // QEMU may return any number
	r.sampleVCPUs(pid, st)
	if err := sampleBalloon(ctx, s, st); err != nil {
		return err
	}
	if st.IOThreads, err = sampleIOThreads(ctx, s, st.def); err != nil {
		return err
	}
	if st.Disks, err = sampleDisks(ctx, s, st.def); err != nil {
		return err
	}
	st.thorough = st.At
	return nil
}

// sampleQuickly asks for what changes while a guest runs.
func (r *Registry) sampleQuickly(ctx context.Context, s *qmp.Session, pid int, st *Stats) error {
	r.sampleVCPUs(pid, st)
	if b := st.def.Devices.Balloon; b != nil && b.StatsPeriod > 0 {
		if err := sampleBalloon(ctx, s, st); err != nil {
			return err
		}
	}
	return recount(ctx, s, st)
}

// sampleProcess reads the kernel's figures for QEMU's process, and whether a signal has stopped it.
func (r *Registry) sampleProcess(pid int, st *Stats) (stopped bool, err error) {
	p, err := r.Kernel.Process(pid)
	if err != nil {
		return false, err
	}
	st.CPU, st.User, st.System, st.Resident = p.User+p.System, p.User, p.System, p.Resident
	return p.State == 'T' || p.State == 't', nil
}

func (r *Registry) sampleVCPUs(pid int, st *Stats) {
	st.VCPUs = make([]VCPUStats, 0, len(st.threads))
	for _, t := range st.threads {
		if s, err := r.Kernel.Schedule(pid, t.Thread); err == nil {
			st.VCPUs = append(st.VCPUs, VCPUStats{Index: t.Index, Time: s.Run, Waiting: s.Wait})
			continue
		}
		p, err := r.Kernel.Thread(pid, t.Thread) // in whole ticks, if the kernel counts no finer
		if err != nil {
			continue // the vCPU was removed since
		}
		st.VCPUs = append(st.VCPUs, VCPUStats{Index: t.Index, Time: p.User + p.System})
	}
}

// sampleNICs reads the counters of the guest's interfaces. It uses the links that the last sample found.
func (r *Registry) sampleNICs(st, last *Stats) {
	nics := st.def.Devices.NICs
	if len(nics) > 0 {
		st.NICs = make([]NICStats, len(nics))
	}
	for i, n := range nics {
		was := counted{}
		if last != nil && i < len(last.NICs) && last.NICs[i].IfName == n.Target {
			was = last.NICs[i].counted
		}
		if s, ok := r.nicStats(n, was); ok {
			st.NICs[i] = s
		}
	}
}

// nicStats reads an interface's counters, from the link that was found before if there is one. What the
// host transmits is what the guest receives.
func (r *Registry) nicStats(n *device.NIC, at counted) (NICStats, bool) {
	if n.Target == "" {
		return NICStats{}, false
	}
	c, err := hostnet.Counters{}, error(nil)
	if at.index != 0 {
		c, err = r.meter.Counters(at.index)
	}
	if at.index == 0 || err != nil { // another link may have the name now
		if at, err = r.findCounted(n); err == nil {
			c, err = r.meter.Counters(at.index)
		}
	}
	if err != nil {
		return NICStats{}, false
	}
	if !at.asGuest {
		c = hostnet.Counters{
			RxBytes: c.TxBytes, RxPackets: c.TxPackets, RxErrors: c.TxErrors, RxDropped: c.TxDropped,
			TxBytes: c.RxBytes, TxPackets: c.RxPackets, TxErrors: c.RxErrors, TxDropped: c.RxDropped,
		}
	}
	return NICStats{IfName: n.Target, MAC: n.MAC, Counters: c, counted: at}, true
}

// findCounted finds an interface's link. A macvtap counts from the guest's side already. A network may use
// macvtaps, and its definition may have changed since, so the link itself is checked.
func (r *Registry) findCounted(n *device.NIC) (counted, error) {
	index, err := r.meter.Index(n.Target)
	if err != nil || n.Type != "network" {
		return counted{index: index, asGuest: n.Type == "direct"}, err
	}
	l, err := hostnet.ByName(n.Target)
	return counted{index: index, asGuest: l.Kind == "macvtap"}, err
}

// unset is QEMU's value for a figure that the guest did not report.
const unset = 1<<64 - 1

func sampleBalloon(ctx context.Context, s *qmp.Session, st *Stats) error {
	path, err := balloonPath(st.def.Devices.Balloon)
	if err != nil {
		return nil // no balloon: no figures
	}
	var answer struct {
		Stats      map[string]uint64
		LastUpdate int64 `json:"last-update"`
	}
	if err := s.Execute(ctx, "qom-get", map[string]any{"path": path, "property": "guest-stats"}, &answer); err != nil {
		return err
	}
	st.Balloon.known, st.Balloon.Updated = 0, time.Time{}
	for f, name := range qemuFigures {
		if value, ok := answer.Stats[name]; ok && value != unset {
			st.Balloon.Report(BalloonFigure(f), value)
		}
	}
	if answer.LastUpdate > 0 {
		st.Balloon.Updated = time.Unix(answer.LastUpdate, 0)
	}
	return nil
}
