package api

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lodge-kvm/lodge/api/lodgev1"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/control/authz"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
)

// Status reports the daemon's own use of resources, so that leaks can be seen.
func (s *Server) Status(ctx context.Context, r *lodgev1.StatusRequest) (*lodgev1.StatusResponse, error) {
	if principal := caller(ctx); r.GetCollect() {
		if err := s.Authorizer.Check(principal, authz.Host, authz.Resource{Kind: authz.Everything}); err != nil { // a garbage collection stops the whole daemon
			s.Audit.Note(authz.Entry{Principal: principal, API: "lodge", Call: "Status", Permission: authz.Host, Err: err})
			return nil, err
		}
		debug.FreeOSMemory()
	}
	self, err := s.Kernel.Process(os.Getpid())
	if err != nil {
		return nil, err
	}
	descriptors, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot count descriptors")
	}
	used := []metrics.Sample{{Name: "/sched/goroutines:goroutines"}, {Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(used)
	answer := &lodgev1.StatusResponse{
		Version: s.Version, Started: timestamppb.New(s.started), Uptime: durationpb.New(time.Since(s.started)), Pid: int32(os.Getpid()),
		Goroutines: uint32(used[0].Value.Uint64()), Heap: used[1].Value.Uint64(), Threads: uint32(self.Threads),
		Descriptors: uint32(len(descriptors) - 1), // without the descriptor of the count
		Resident:    self.Resident, Cpu: durationpb.New(self.User + self.System),
		ApiClients: uint32(s.conns.count()), Sets: uint32(s.sets.count()), Events: &lodgev1.Cursor{Life: s.life, Seq: s.Events.Newest()},
	}
	isolation := provision.HostIsolation(s.Guests)
	answer.Isolation = &lodgev1.Isolation{On: isolation.On, InForce: isolation.InForce, Lacking: isolation.Lacking}
	if s.LibvirtClients != nil {
		answer.LibvirtClients = uint32(s.LibvirtClients())
	}
	restricted := s.Authorizer.Restricted(caller(ctx))
	for _, g := range s.Guests.All() {
		if restricted && !s.canSee(ctx, s.Fleet.Of(g)) {
			continue
		}
		answer.Guests++
		if g.View().Active != nil {
			answer.Active++
		}
	}
	for _, p := range launch.ListPrepared(s.Guests) {
		if !s.canSeeUUID(ctx, p.UUID) {
			continue
		}
		answer.Prepared = append(answer.Prepared, &lodgev1.PreparedGuest{
			Name: p.Name, Uuid: p.UUID, Pid: int32(p.PID), Since: timestamppb.New(p.Since), Memory: p.Memory,
		})
	}
	return answer, nil
}

// StartQueue lists the waiting starts, each with its reason, and the open operations.
func (s *Server) StartQueue(ctx context.Context, _ *lodgev1.StartQueueRequest) (*lodgev1.StartQueueResponse, error) {
	now := s.Starts.State()
	answer := &lodgev1.StartQueueResponse{
		Running: uint32(now.Running), Limit: uint32(now.Limit), Stuck: uint32(now.Stuck), Settling: uint32(now.Settling),
		Promised: now.Promised, Why: now.Why,
	}
	for _, w := range s.Starts.Queue() {
		if !s.canSeeUUID(ctx, w.Guest) {
			continue
		}
		answer.Waiting = append(answer.Waiting, &lodgev1.Waiting{
			Name: w.Name, Position: uint32(w.Position), Since: timestamppb.New(w.Since), Reason: w.Reason,
		})
	}
	for _, o := range s.operations(ctx) {
		answer.Operations = append(answer.Operations, toOperation(o))
	}
	return answer, nil
}

// operations returns the open operations that the client may see. Those on tiles and clones are shown to
// clients that may see everything.
func (s *Server) operations(ctx context.Context) (all []operation.Listed) {
	principal := caller(ctx)
	for _, o := range guest.Operations(s.Guests) {
		if s.canSeeUUID(ctx, o.UUID) {
			all = append(all, o)
		}
	}
	for _, o := range s.Networks.Operations() {
		if !s.Authorizer.Restricted(principal) || s.Authorizer.May(principal, authz.Read, s.Authorizer.NetworkByUUID(o.UUID)) {
			all = append(all, o)
		}
	}
	if !s.Authorizer.Restricted(principal) {
		all = append(all, s.Fleet.Operations()...)
	}
	return all
}

func toOperation(o operation.Listed) *lodgev1.Operation {
	m := &lodgev1.Operation{
		Id: o.ID, Name: o.Name, Uuid: o.UUID, Kind: o.Kind, Objects: o.Objects, State: o.State.String(), Step: o.Step,
		Began: timestamppb.New(o.Began), Since: timestamppb.New(o.Since),
	}
	if o.Cause != nil {
		m.Reason = o.Cause.Error()
	}
	return m
}
