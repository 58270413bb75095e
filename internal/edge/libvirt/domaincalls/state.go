package domaincalls

import (
	"context"
	"time"

	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/guest/statistics"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// DomainStateCalls return a domain's identity and state. None of them waits for a guest.
func DomainStateCalls(g rpc.Group) {
	rpc.On(g, xdr.ProcDomainGetState, domainGetState)
	rpc.On(g, xdr.ProcDomainGetInfo, domainGetInfo)
	rpc.On(g, xdr.ProcDomainGetOSType, domainGetOSType)
	rpc.On(g, xdr.ProcDomainIsActive, domainIsActive)
	rpc.On(g, xdr.ProcDomainIsPersistent, domainIsPersistent)
	rpc.On(g, xdr.ProcDomainIsUpdated, domainIsUpdated)
	rpc.On(g, xdr.ProcDomainGetControlInfo, domainGetControlInfo)
	rpc.On(g, xdr.ProcDomainGetMessages, domainGetMessages)
	rpc.On(g, xdr.ProcDomainGetSecurityLabel, domainGetSecurityLabel)
	rpc.On(g, xdr.ProcDomainGetSecurityLabelList, domainGetSecurityLabelList)
}

// StateReasons are libvirt's numbers of the reasons, by state; 0 is "unknown".
// The numbers of the states are the same in libvirt and in package domain.
var StateReasons = map[domain.State]map[domain.Reason]int32{
	domain.Running: {
		domain.ReasonBooted: 1, domain.ReasonMigrated: 2, domain.ReasonRestored: 3, domain.ReasonFromSnapshot: 4,
		domain.ReasonUnpaused: 5, domain.ReasonMigrationCanceled: 6, domain.ReasonSaveCanceled: 7,
		domain.ReasonWakeup: 8, domain.ReasonCrashed: 9, domain.ReasonPostcopy: 10,
	},
	domain.Paused: {
		domain.ReasonUser: 1, domain.ReasonMigration: 2, domain.ReasonSave: 3, domain.ReasonDump: 4,
		domain.ReasonIOError: 5, domain.ReasonWatchdog: 6, domain.ReasonFromSnapshot: 7, domain.ReasonShuttingDown: 8,
		domain.ReasonSnapshot: 9, domain.ReasonCrashed: 10, domain.ReasonPanicked: 10, domain.ReasonStartingUp: 11, domain.ReasonPostcopy: 12,
	},
	domain.ShuttingDown: {domain.ReasonUser: 1},
	domain.ShutOff: {
		domain.ReasonShutdown: 1, domain.ReasonDestroyed: 2, domain.ReasonCrashed: 3, domain.ReasonMigrated: 4,
		domain.ReasonSaved: 5, domain.ReasonFailed: 6, domain.ReasonFromSnapshot: 7, domain.ReasonDaemon: 8,
	},
	domain.Crashed: {domain.ReasonPanicked: 1},
}

func domainGetState(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.DomainGetStateArgs) (*xdr.DomainGetStateRet, error) {
	if err := rpc.CheckFlags("DOMAIN_GET_STATE", args.Flags, 0); err != nil {
		return nil, err
	}
	v, err := ViewOf(h, args.Domain)
	if err != nil {
		return nil, err
	}
	return &xdr.DomainGetStateRet{State: int32(v.State), Reason: StateReasons[v.State][v.Reason]}, nil
}

// domainGetInfo reads the CPU time from the kernel, so it does not wait for a QEMU
// that is stuck.
func domainGetInfo(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.DomainGetInfoArgs) (*xdr.DomainGetInfoRet, error) {
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	v := g.View()
	ret, err := DomainInfo(v)
	if err != nil || v.Active == nil {
		return ret, err
	}
	if used, err := statistics.CPUTime(g); err == nil { // an error: the guest has just ended
		ret.CPUTime = uint64(used)
	}
	return ret, nil
}

// DomainInfo returns the reply to DOMAIN_GET_INFO, without CPU time. A quarantined guest without a known
// definition gets no error: clients read the info of every listed domain.
func DomainInfo(v *guest.View) (*xdr.DomainGetInfoRet, error) {
	def, err := definitionByFlags(v, 0)
	if err != nil && !v.Quarantined {
		return nil, err
	}
	ret := &xdr.DomainGetInfoRet{State: byte(v.State)}
	if err == nil {
		ret.MaxMemory, ret.Memory, ret.VCPUs = def.Memory/1024, def.CurrentMemory/1024, uint16(def.VCPUs.Current)
	}
	return ret, nil
}

func domainGetOSType(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.DomainGetOSTypeArgs) (*xdr.DomainGetOSTypeRet, error) {
	if _, err := FindGuest(h, args.Domain); err != nil {
		return nil, err
	}
	return &xdr.DomainGetOSTypeRet{Type: "hvm"}, nil // the only type that a definition may have
}

func domainIsActive(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.DomainIsActiveArgs) (*xdr.DomainIsActiveRet, error) {
	v, err := ViewOf(h, args.Domain)
	if err != nil {
		return nil, err
	}
	return &xdr.DomainIsActiveRet{Active: v.Active != nil}, nil
}

func domainIsPersistent(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.DomainIsPersistentArgs) (*xdr.DomainIsPersistentRet, error) {
	v, err := ViewOf(h, args.Domain)
	if err != nil {
		return nil, err
	}
	return &xdr.DomainIsPersistentRet{Persistent: v.Persistent}, nil
}

func domainIsUpdated(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.DomainIsUpdatedArgs) (*xdr.DomainIsUpdatedRet, error) {
	v, err := ViewOf(h, args.Domain)
	if err != nil {
		return nil, err
	}
	return &xdr.DomainIsUpdatedRet{Updated: v.Updated}, nil
}

// States of the control interface to QEMU (virDomainControlState).
const (
	controlOK    = 0
	controlJob   = 1
	controlError = 3

	controlMonitorLost = 2 // the detail of controlError: the monitor does not answer
)

func domainGetControlInfo(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.DomainGetControlInfoArgs) (*xdr.DomainGetControlInfoRet, error) {
	if err := rpc.CheckFlags("DOMAIN_GET_CONTROL_INFO", args.Flags, 0); err != nil {
		return nil, err
	}
	g, v, err := activeGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	ret, since := &xdr.DomainGetControlInfoRet{State: controlOK}, time.Time{}
	if job := g.Job(); job.Kind != domain.JobNone {
		ret.State, since = controlJob, job.Started
	}
	if !v.StuckSince.IsZero() {
		ret.State, ret.Details, since = controlError, controlMonitorLost, v.StuckSince
	}
	if !since.IsZero() {
		ret.StateTime = uint64(max(0, time.Since(since).Milliseconds())) // since may come from another clock
	}
	return ret, nil
}

// Types of messages (virDomainMessageType). A message that is not about a deprecation counts as tainting.
const (
	messageDeprecations = 1
	messageTainting     = 2
)

func domainGetMessages(_ context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainGetMessagesArgs) (*xdr.DomainGetMessagesRet, error) {
	if err := rpc.CheckFlags("DOMAIN_GET_MESSAGES", args.Flags, messageDeprecations|messageTainting); err != nil {
		return nil, err
	}
	v, err := ViewOf(h, args.Domain)
	if err != nil {
		return nil, err
	}
	ret := new(xdr.DomainGetMessagesRet)
	for _, m := range h.Guests.Advice(v, s.CanSeeGuest) {
		typ := uint32(messageTainting)
		if machine.Deprecates(m) {
			typ = messageDeprecations
		}
		if (args.Flags == 0 || args.Flags&typ != 0) && len(ret.Messages) < xdr.MaxDomainMessages {
			ret.Messages = append(ret.Messages, rpc.StripControl(m))
		}
	}
	return ret, nil
}

// domainGetSecurityLabel returns a guest's label of the first active security model.
// It is empty if the guest has no label.
func domainGetSecurityLabel(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.DomainGetSecurityLabelArgs) (*xdr.DomainGetSecurityLabelRet, error) {
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	all := provision.SecurityLabels(h.Guests, g.View())
	if len(all) == 0 {
		return &xdr.DomainGetSecurityLabelRet{Label: rpc.NULTerminated("")}, nil
	}
	return &xdr.DomainGetSecurityLabelRet{Label: rpc.NULTerminated(all[0].Label), Enforcing: all[0].Enforcing}, nil
}

// domainGetSecurityLabelList returns one label for each active security model.
func domainGetSecurityLabelList(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.DomainGetSecurityLabelListArgs) (*xdr.DomainGetSecurityLabelListRet, error) {
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	ret := &xdr.DomainGetSecurityLabelListRet{}
	for _, l := range provision.SecurityLabels(h.Guests, g.View()) {
		ret.Labels = append(ret.Labels, xdr.SecurityLabel{Label: rpc.NULTerminated(l.Label), Enforcing: l.Enforcing})
	}
	ret.Count = int32(len(ret.Labels))
	return ret, nil
}
