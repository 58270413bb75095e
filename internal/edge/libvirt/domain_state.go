package libvirt

import (
	"context"
	"time"

	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/guest/statistics"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// domainStateCalls give a domain's identity and state. None of them waits for a guest.
func domainStateCalls(g group) {
	on(g, xdr.ProcDomainGetState, (*handlers).domainGetState)
	on(g, xdr.ProcDomainGetInfo, (*handlers).domainGetInfo)
	on(g, xdr.ProcDomainGetOSType, (*handlers).domainGetOSType)
	on(g, xdr.ProcDomainIsActive, (*handlers).domainIsActive)
	on(g, xdr.ProcDomainIsPersistent, (*handlers).domainIsPersistent)
	on(g, xdr.ProcDomainIsUpdated, (*handlers).domainIsUpdated)
	on(g, xdr.ProcDomainGetControlInfo, (*handlers).domainGetControlInfo)
	on(g, xdr.ProcDomainGetMessages, (*handlers).domainGetMessages)
	on(g, xdr.ProcDomainGetSecurityLabel, (*handlers).domainGetSecurityLabel)
	on(g, xdr.ProcDomainGetSecurityLabelList, (*handlers).domainGetSecurityLabelList)
}

// stateReasons gives libvirt's number for a reason, by state; 0 is "unknown".
// The states themselves count as libvirt's do.
var stateReasons = map[domain.State]map[domain.Reason]int32{
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

func (h *handlers) domainGetState(_ context.Context, _ *request, args *xdr.DomainGetStateArgs) (*xdr.DomainGetStateRet, error) {
	if err := checkFlags("DOMAIN_GET_STATE", args.Flags, 0); err != nil {
		return nil, err
	}
	v, err := h.view(args.Domain)
	if err != nil {
		return nil, err
	}
	return &xdr.DomainGetStateRet{State: int32(v.State), Reason: stateReasons[v.State][v.Reason]}, nil
}

// domainGetInfo has the processor time from the kernel, which counts it for a
// guest that is stuck too.
func (h *handlers) domainGetInfo(_ context.Context, _ *request, args *xdr.DomainGetInfoArgs) (*xdr.DomainGetInfoRet, error) {
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, err
	}
	v := g.View()
	ret, err := infoOf(v)
	if err != nil || v.Active == nil {
		return ret, err
	}
	if used, err := statistics.CPUTime(g); err == nil { // or else it has ended just now
		ret.CPUTime = uint64(used)
	}
	return ret, nil
}

// infoOf converts a guest's view. Lists include guests without a known definition, too.
func infoOf(v *guest.View) (*xdr.DomainGetInfoRet, error) {
	def, err := definition(v, 0)
	if err != nil && !v.Quarantined {
		return nil, err
	}
	ret := &xdr.DomainGetInfoRet{State: byte(v.State)}
	if err == nil {
		ret.MaxMemory, ret.Memory, ret.VCPUs = def.Memory/1024, def.CurrentMemory/1024, uint16(def.VCPUs.Current)
	}
	return ret, nil
}

func (h *handlers) domainGetOSType(_ context.Context, _ *request, args *xdr.DomainGetOSTypeArgs) (*xdr.DomainGetOSTypeRet, error) {
	if _, err := h.guest(args.Domain); err != nil {
		return nil, err
	}
	return &xdr.DomainGetOSTypeRet{Type: "hvm"}, nil // the only type that a definition may have
}

func (h *handlers) domainIsActive(_ context.Context, _ *request, args *xdr.DomainIsActiveArgs) (*xdr.DomainIsActiveRet, error) {
	v, err := h.view(args.Domain)
	if err != nil {
		return nil, err
	}
	return &xdr.DomainIsActiveRet{Active: v.Active != nil}, nil
}

func (h *handlers) domainIsPersistent(_ context.Context, _ *request, args *xdr.DomainIsPersistentArgs) (*xdr.DomainIsPersistentRet, error) {
	v, err := h.view(args.Domain)
	if err != nil {
		return nil, err
	}
	return &xdr.DomainIsPersistentRet{Persistent: v.Persistent}, nil
}

func (h *handlers) domainIsUpdated(_ context.Context, _ *request, args *xdr.DomainIsUpdatedArgs) (*xdr.DomainIsUpdatedRet, error) {
	v, err := h.view(args.Domain)
	if err != nil {
		return nil, err
	}
	return &xdr.DomainIsUpdatedRet{Updated: v.Updated}, nil
}

// States of the way to a guest's monitor.
const (
	controlOK    = 0
	controlJob   = 1
	controlError = 3

	controlLost = 2 // why: the monitor does not answer
)

func (h *handlers) domainGetControlInfo(_ context.Context, _ *request, args *xdr.DomainGetControlInfoArgs) (*xdr.DomainGetControlInfoRet, error) {
	if err := checkFlags("DOMAIN_GET_CONTROL_INFO", args.Flags, 0); err != nil {
		return nil, err
	}
	g, v, err := h.active(args.Domain)
	if err != nil {
		return nil, err
	}
	ret, since := &xdr.DomainGetControlInfoRet{State: controlOK}, time.Time{}
	if job := g.Job(); job.Kind != domain.JobNone {
		ret.State, since = controlJob, job.Started
	}
	if !v.StuckSince.IsZero() {
		ret.State, ret.Details, since = controlError, controlLost, v.StuckSince
	}
	if !since.IsZero() {
		ret.StateTime = uint64(max(0, time.Since(since).Milliseconds())) // it may be the time of another clock
	}
	return ret, nil
}

// Types of messages; a message without a type counts as tainting.
const (
	messageDeprecations = 1
	messageTainting     = 2
)

func (h *handlers) domainGetMessages(_ context.Context, s *request, args *xdr.DomainGetMessagesArgs) (*xdr.DomainGetMessagesRet, error) {
	if err := checkFlags("DOMAIN_GET_MESSAGES", args.Flags, messageDeprecations|messageTainting); err != nil {
		return nil, err
	}
	v, err := h.view(args.Domain)
	if err != nil {
		return nil, err
	}
	ret := new(xdr.DomainGetMessagesRet)
	for _, m := range h.Guests.Advice(v, s.seesGuest) {
		sort := uint32(messageTainting)
		if machine.Deprecates(m) {
			sort = messageDeprecations
		}
		if (args.Flags == 0 || args.Flags&sort != 0) && len(ret.Messages) < xdr.MaxDomainMessages {
			ret.Messages = append(ret.Messages, steerless(m))
		}
	}
	return ret, nil
}

// domainGetSecurityLabel gives a guest's label under the first security model in force.
// The label is empty if the guest has none of its own.
func (h *handlers) domainGetSecurityLabel(_ context.Context, _ *request, args *xdr.DomainGetSecurityLabelArgs) (*xdr.DomainGetSecurityLabelRet, error) {
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, err
	}
	all := provision.SecurityLabels(h.Guests, g.View())
	if len(all) == 0 {
		return &xdr.DomainGetSecurityLabelRet{Label: zeroEnded("")}, nil
	}
	return &xdr.DomainGetSecurityLabelRet{Label: zeroEnded(all[0].Label), Enforcing: all[0].Enforcing}, nil
}

// zeroEnded is a text as clients take it that have it as bytes.
func zeroEnded(text string) []byte { return append([]byte(text), 0) }

// domainGetSecurityLabelList: one label for each security model in force.
func (h *handlers) domainGetSecurityLabelList(_ context.Context, _ *request, args *xdr.DomainGetSecurityLabelListArgs) (*xdr.DomainGetSecurityLabelListRet, error) {
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, err
	}
	ret := &xdr.DomainGetSecurityLabelListRet{}
	for _, l := range provision.SecurityLabels(h.Guests, g.View()) {
		ret.Labels = append(ret.Labels, xdr.SecurityLabel{Label: zeroEnded(l.Label), Enforcing: l.Enforcing})
	}
	ret.Count = int32(len(ret.Labels))
	return ret, nil
}
