package memory

import (
	"time"

	"github.com/lodge-kvm/lodge/internal/control/fleet"
	"github.com/lodge-kvm/lodge/internal/decision/arbiter"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// gather reads the known state of each running guest.
func (m *Manager) gather(now time.Time) ([]arbiter.Guest, []*track) {
	known := make(map[string]*track, len(m.tracks))
	var guests []arbiter.Guest
	var tracks []*track
	for _, g := range m.config.Guests.All() {
		v := g.View()
		if v.Active == nil || v.PID == 0 || v.State != domain.Running && v.State != domain.Paused {
			continue
		}
		p, err := m.config.Kernel.Process(v.PID)
		if err != nil {
			continue // it has just ended
		}
		t := m.tracks[v.UUID]
		if t == nil || t.id != v.ID {
			t = &track{guest: g, id: v.ID, since: now}
		}
		known[v.UUID] = t
		guests, tracks = append(guests, t.see(v, p.Resident, m.config.Fleet.MemberOf(g).Marks.Memory)), append(tracks, t)
	}
	m.tracks = known
	return guests, tracks
}

// see is what the arbiter is told of the guest. What its process holds beyond the guest's memory is QEMU's own: it counts
// as held by others.
func (t *track) see(v *guest.View, resident uint64, marks fleet.MemoryMarks) arbiter.Guest {
	d, floor := v.Active, v.AskedMemory
	if marks.Floor > 0 {
		floor = marks.Floor
	}
	t.own = mib(resident - min(resident, d.CurrentMemory))
	a := arbiter.Guest{
		ID: v.UUID, Started: t.since, Max: mib(d.Memory), Floor: mib(min(floor, d.Memory)), Shares: float64(marks.Weight()) / fleet.UsualShares,
		Actual: mib(d.CurrentMemory), Resident: mib(resident) - t.own, Apart: apart(v),
	}
	if t.mode = marks.Mode; t.mode == Off {
		a.Apart = "its setting memory.mode is off"
	}
	a.Sample, a.Target = t.latest(a.Actual)
	return a
}

// apart is why a guest's balloon must not be moved; empty: it may be.
func apart(v *guest.View) string {
	d := v.Active
	switch b := d.Devices.Balloon; {
	case b == nil || b.Model == "none":
		return "it has no balloon"
	case d.Backing.HasHugePages:
		return "its memory is in huge pages"
	case d.Backing.Locked:
		return "its memory is locked"
	case len(d.Devices.HostDevices) > 0:
		return "a device of the host is passed through to it"
	case len(d.Devices.Memories) > 0:
		return "it has memory modules"
	case v.State == domain.Paused:
		return "it is paused"
	case v.WillResume || v.Job.Kind == domain.JobSave || v.Job.Kind == domain.JobDump || v.Job.Kind == domain.JobRestore:
		return "its memory is being saved or dumped"
	}
	return ""
}
