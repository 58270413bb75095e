package api

import (
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lodge-kvm/lodge/api/lodgev1"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/control/fleet"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/statistics"
)

// Stats returns samples: the newest ones at once, or fresh ones within a time.
func (s *Server) Stats(ctx context.Context, r *lodgev1.StatsRequest) (*lodgev1.StatsResponse, error) {
	members, err := s.selectGuests(ctx, r.GetSelect())
	if err != nil {
		return nil, err
	}
	running := members[:0]
	for _, m := range members {
		if m.View.Active != nil {
			running = append(running, m)
		}
	}
	statistics.Refresh(s.Guests)
	samples, reasons, err := s.samples(ctx, running, r.GetFreshWithin())
	if err != nil {
		return nil, err
	}
	now := time.Now()
	answer := &lodgev1.StatsResponse{Guests: make([]*lodgev1.GuestStats, 0, len(running))}
	for i, m := range running {
		st := &lodgev1.GuestStats{
			Name: m.View.Name, Uuid: m.View.UUID, State: m.View.State.String(), Labels: m.Labels, Tile: m.Labels[tileLabel],
			Memory: memoryOf(m.View.Active), Vcpus: uint32(vcpus(m.View.Active)),
			Sample: toSample(samples[i], now, r.GetDevices()),
		}
		if st.Sample == nil {
			st.Missing = "none has been taken yet"
			if reasons[i] != nil {
				st.Missing = validUTF8(reasons[i].Error())
			}
		}
		answer.Guests = append(answer.Guests, st)
	}
	return answer, nil
}

// samples returns a sample for each guest, or nil with the reason. Fresh ones are requested from all guests at the
// same time, so that a guest that does not answer does not delay the others.
func (s *Server) samples(ctx context.Context, members []fleet.Member, freshWithin *durationpb.Duration) ([]*machine.Stats, []error, error) {
	samples, reasons := make([]*machine.Stats, len(members)), make([]error, len(members))
	if freshWithin == nil {
		for i, m := range members {
			samples[i] = statistics.Sample(m.Guest)
		}
		return samples, reasons, nil
	}
	limit := freshWithin.AsDuration()
	if limit <= 0 || limit > s.limits.maxFreshWait {
		return nil, nil, fault.New(fault.Invalid, fault.Call, "the wait for fresh samples must be from 1ns to %v, not %v", s.limits.maxFreshWait, limit)
	}
	ctx, stop := withTimeout(ctx, limit, "no fresh sample")
	defer stop()
	var queries sync.WaitGroup
	for i, m := range members {
		queries.Go(func() { samples[i], reasons[i] = statistics.Stats(ctx, m.Guest, 0) })
	}
	queries.Wait()
	return samples, reasons, nil
}

// toSample translates a sample; nil stays nil.
func toSample(st *machine.Stats, now time.Time, devices bool) *lodgev1.Sample {
	if st == nil {
		return nil
	}
	sample := &lodgev1.Sample{
		At: timestamppb.New(st.At), Age: durationpb.New(now.Sub(st.At)),
		Cpu: durationpb.New(st.CPU), CpuUser: durationpb.New(st.User), CpuSystem: durationpb.New(st.System),
		Resident: st.Resident, Balloon: st.Balloon.Current,
	}
	if st.Stale != nil {
		sample.Stale = validUTF8(st.Stale.Error())
	}
	for i := range st.Disks {
		d := &st.Disks[i]
		sample.DiskReadBytes += d.ReadBytes
		sample.DiskWriteBytes += d.WriteBytes
		sample.DiskReadOps += d.ReadOps
		sample.DiskWriteOps += d.WriteOps
	}
	for i := range st.NICs {
		sample.NetReceiveBytes += st.NICs[i].RxBytes
		sample.NetTransmitBytes += st.NICs[i].TxBytes
	}
	if devices {
		addDevices(sample, st)
	}
	return sample
}

// balloonNames are the names on the wire of the statistics that a guest reports by its balloon driver.
var balloonNames = map[machine.BalloonFigure]string{
	machine.SwappedIn: "swapped in", machine.SwappedOut: "swapped out", machine.MajorFaults: "major faults", machine.MinorFaults: "minor faults",
	machine.FreeMemory: "free", machine.TotalMemory: "total", machine.AvailableMemory: "available", machine.DiskCaches: "disk caches",
	machine.HugePagesGiven: "huge pages given", machine.HugePagesRefused: "huge pages refused",
}

func addDevices(sample *lodgev1.Sample, st *machine.Stats) {
	for figure, name := range balloonNames {
		if value, known := statistics.Figure(&st.Balloon, figure); known {
			if sample.GuestMemory == nil {
				sample.GuestMemory = map[string]uint64{}
			}
			sample.GuestMemory[name] = value
		}
	}
	for _, d := range st.Disks {
		sample.Disks = append(sample.Disks, &lodgev1.Disk{
			Target: d.Target, Path: d.Path,
			ReadOps: d.ReadOps, ReadBytes: d.ReadBytes, ReadTime: durationpb.New(d.ReadTime),
			WriteOps: d.WriteOps, WriteBytes: d.WriteBytes, WriteTime: durationpb.New(d.WriteTime),
			FlushOps: d.FlushOps, FlushTime: durationpb.New(d.FlushTime),
			Capacity: d.Capacity, Physical: d.Physical, Allocation: d.Allocation,
		})
	}
	for _, n := range st.NICs {
		if n.IfName == "" {
			continue // not counted
		}
		sample.Interfaces = append(sample.Interfaces, &lodgev1.Interface{
			Name: n.IfName, Mac: n.MAC,
			ReceiveBytes: n.RxBytes, ReceivePackets: n.RxPackets, ReceiveErrors: n.RxErrors, ReceiveDropped: n.RxDropped,
			TransmitBytes: n.TxBytes, TransmitPackets: n.TxPackets, TransmitErrors: n.TxErrors, TransmitDropped: n.TxDropped,
		})
	}
	for _, v := range st.VCPUs {
		sample.Vcpus = append(sample.Vcpus, &lodgev1.VCPU{
			Index: uint32(v.Index), Time: durationpb.New(v.Time), Waiting: durationpb.New(v.Waiting),
		})
	}
}
