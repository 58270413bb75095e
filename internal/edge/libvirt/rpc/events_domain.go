package rpc

import (
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/word/event"
)

// Event ids of domains that Lodge sends.
const (
	EventLifecycle           = 0
	eventReboot              = 1
	EventRTC                 = 2
	eventWatchdog            = 3
	eventIOError             = 4
	eventGraphics            = 5
	eventIOErrorReason       = 6
	eventBlockJob            = 8
	eventMediaChange         = 9
	eventTray                = 10
	eventPMWakeup            = 11
	eventPMSuspend           = 12
	eventBalloon             = 13
	eventPMSuspendDisk       = 14
	eventDeviceRemoved       = 15
	eventBlockJob2           = 16
	eventTunable             = 17
	eventAgent               = 18
	eventDeviceAdded         = 19
	eventJobCompleted        = 21
	eventDeviceRemovalFailed = 22
	eventMetadata            = 23
	eventBlockThreshold      = 24
	eventMemoryFailure       = 25
)

// EnumValues maps words of package event to the numbers of one of libvirt's enums.
type EnumValues map[string]int32

// The numbers of libvirt's domain events, for the words of package event.
var (
	// DomainChanges are libvirt's numbers of the lifecycle events of a domain.
	DomainChanges = map[event.Change]int32{
		event.Defined: 0, event.Undefined: 1, event.Started: 2, event.Suspended: 3, event.Resumed: 4,
		event.Stopped: 5, event.Shutdown: 6, event.PMSuspended: 7, event.Crashed: 8,
	}
	// DomainDetails are libvirt's numbers of the details of each lifecycle event.
	DomainDetails = map[event.Change]EnumValues{
		event.Defined:   {event.DetailAdded: 0, event.DetailUpdated: 1, event.DetailRenamed: 2, event.DetailFromSnapshot: 3},
		event.Undefined: {event.DetailRemoved: 0, event.DetailRenamed: 1},
		event.Started: {
			event.DetailBooted: 0, event.DetailMigrated: 1, event.DetailRestored: 2,
			event.DetailFromSnapshot: 3, event.DetailWakeup: 4,
		},
		event.Suspended: {
			event.DetailPaused: 0, event.DetailMigrated: 1, event.DetailIOError: 2, event.DetailWatchdog: 3,
			event.DetailRestored: 4, event.DetailFromSnapshot: 5,
		},
		event.Resumed: {event.DetailUnpaused: 0, event.DetailMigrated: 1, event.DetailFromSnapshot: 2},
		event.Stopped: {
			event.DetailShutdown: 0, event.DetailDestroyed: 1, event.DetailCrashed: 2, event.DetailMigrated: 3,
			event.DetailSaved: 4, event.DetailFailed: 5, event.DetailFromSnapshot: 6,
		},
		event.Shutdown:    {event.DetailFinished: 0, event.DetailGuestAsked: 1, event.DetailHostAsked: 2},
		event.PMSuspended: {event.DetailMemory: 0, event.DetailDisk: 1},
		event.Crashed:     {event.DetailPanicked: 0},
	}
	watchdogActions = EnumValues{"none": 0, "pause": 1, "reset": 2, "poweroff": 3, "shutdown": 4, "dump": 5, "inject-nmi": 6}
	ioErrorActions  = EnumValues{"none": 0, "pause": 1, "report": 2}
	graphicsPhases  = EnumValues{"connect": 0, "initialize": 1, "disconnect": 2}
	addressFamilies = EnumValues{"ipv4": 0, "ipv6": 1, "unix": 2}
	// BlockJobKinds are libvirt's numbers of the types of block jobs.
	BlockJobKinds     = EnumValues{"pull": 1, "copy": 2, "commit": 3, "active-commit": 4, "backup": 5}
	blockJobStatuses  = EnumValues{"completed": 0, "failed": 1, "canceled": 2, "ready": 3}
	mediaReasons      = EnumValues{"missing on start": 0, "drop missing on start": 1}
	agentReasons      = EnumValues{"domain started": 1, "channel": 2}
	metadataKinds     = EnumValues{"description": 0, "title": 1, "element": 2}
	failureRecipients = EnumValues{"hypervisor": 0, "guest": 1}
	failureActions    = EnumValues{"ignore": 0, "inject": 1, "fatal": 2, "reset": 3}
	// JobOperations are libvirt's numbers of the operations of jobs.
	JobOperations = EnumValues{"start": 1, "save": 2, "restore": 3, "dump": 8}
)

// domainNotices returns the notices for an event of a domain: for some events two,
// in an older and a newer form.
func domainNotices(d xdr.Domain, p event.Payload) []Notice {
	one := func(id, proc int32, message func(callback int32) xdr.Message) []Notice {
		return []Notice{{Topic: Topic{DomainEvents, id}, Proc: proc, Message: message}}
	}
	switch p := p.(type) {
	case event.DomainChange:
		return one(EventLifecycle, xdr.ProcDomainEventCallbackLifecycle, func(c int32) xdr.Message {
			return &xdr.DomainEventCallbackLifecycleMsg{CallbackID: c, Msg: xdr.DomainEventLifecycleMsg{
				Domain: d, Event: DomainChanges[p.Change], Detail: DomainDetails[p.Change][p.Detail],
			}}
		})
	case event.DomainReboot:
		return one(eventReboot, xdr.ProcDomainEventCallbackReboot, func(c int32) xdr.Message {
			return &xdr.DomainEventCallbackRebootMsg{CallbackID: c, Msg: xdr.DomainEventRebootMsg{Domain: d}}
		})
	case event.DomainRTC:
		return one(EventRTC, xdr.ProcDomainEventCallbackRTCChange, func(c int32) xdr.Message {
			return &xdr.DomainEventCallbackRTCChangeMsg{CallbackID: c, Msg: xdr.DomainEventRTCChangeMsg{Domain: d, Offset: p.Offset}}
		})
	case event.DomainWatchdog:
		return one(eventWatchdog, xdr.ProcDomainEventCallbackWatchdog, func(c int32) xdr.Message {
			return &xdr.DomainEventCallbackWatchdogMsg{CallbackID: c, Msg: xdr.DomainEventWatchdogMsg{
				Domain: d, Action: watchdogActions[p.Action],
			}}
		})
	case event.DomainBalloon:
		return one(eventBalloon, xdr.ProcDomainEventCallbackBalloonChange, func(c int32) xdr.Message {
			return &xdr.DomainEventCallbackBalloonChangeMsg{CallbackID: c, Msg: xdr.DomainEventBalloonChangeMsg{
				Domain: d, Actual: p.Actual / 1024,
			}}
		})
	case event.DomainAgent:
		return one(eventAgent, xdr.ProcDomainEventCallbackAgentLifecycle, func(c int32) xdr.Message {
			state := int32(2)
			if p.Connected {
				state = 1
			}
			return &xdr.DomainEventCallbackAgentLifecycleMsg{CallbackID: c, Domain: d, State: state, Reason: agentReasons[p.Reason]}
		})
	case event.DomainTunable:
		return one(eventTunable, xdr.ProcDomainEventCallbackTunable, func(c int32) xdr.Message {
			return &xdr.DomainEventCallbackTunableMsg{CallbackID: c, Domain: d, Params: tunableParams(p.Settings)}
		})
	case event.DomainJob:
		return one(eventJobCompleted, xdr.ProcDomainEventCallbackJobCompleted, func(c int32) xdr.Message {
			return &xdr.DomainEventCallbackJobCompletedMsg{CallbackID: c, Domain: d, Params: jobOutcome(p)}
		})
	case event.DomainMetadata:
		return one(eventMetadata, xdr.ProcDomainEventCallbackMetadataChange, func(c int32) xdr.Message {
			return &xdr.DomainEventCallbackMetadataChangeMsg{
				CallbackID: c, Domain: d, Type: metadataKinds[p.Kind], NamespaceURI: OptionalString(p.URI),
			}
		})
	case event.DomainMemoryFailure:
		return one(eventMemoryFailure, xdr.ProcDomainEventMemoryFailure, func(c int32) xdr.Message {
			return &xdr.DomainEventMemoryFailureMsg{
				CallbackID: c, Domain: d, Recipient: failureRecipients[p.Recipient], Action: failureActions[p.Action],
				Flags: failureFlags(p),
			}
		})
	case event.DomainPMSuspend, event.DomainPMWakeup:
		return powerNotices(d, p)
	}
	return deviceNotices(d, p)
}

// powerNotices returns the notice for a suspend or wakeup by the guest itself.
func powerNotices(d xdr.Domain, p event.Payload) []Notice {
	n := Notice{Topic: Topic{DomainEvents, eventPMWakeup}, Proc: xdr.ProcDomainEventCallbackPMWakeup, Message: func(c int32) xdr.Message {
		return &xdr.DomainEventCallbackPMWakeupMsg{CallbackID: c, Msg: xdr.DomainEventPMWakeupMsg{Domain: d}}
	}}
	if to, ok := p.(event.DomainPMSuspend); ok && to.To == "disk" {
		n = Notice{Topic: Topic{DomainEvents, eventPMSuspendDisk}, Proc: xdr.ProcDomainEventCallbackPMSuspendDisk, Message: func(c int32) xdr.Message {
			return &xdr.DomainEventCallbackPMSuspendDiskMsg{CallbackID: c, Msg: xdr.DomainEventPMSuspendDiskMsg{Domain: d}}
		}}
	} else if ok {
		n = Notice{Topic: Topic{DomainEvents, eventPMSuspend}, Proc: xdr.ProcDomainEventCallbackPMSuspend, Message: func(c int32) xdr.Message {
			return &xdr.DomainEventCallbackPMSuspendMsg{CallbackID: c, Msg: xdr.DomainEventPMSuspendMsg{Domain: d}}
		}}
	}
	return []Notice{n}
}

// tunableParams returns changed tunables as typed parameters.
func tunableParams(changed []event.Setting) []xdr.TypedParam {
	var params []xdr.TypedParam
	for _, s := range changed {
		switch v := s.Value.(type) {
		case uint64:
			params = append(params, xdr.TypedParam{Field: s.Name, Value: xdr.Uint64(v)})
		case int64:
			params = append(params, xdr.TypedParam{Field: s.Name, Value: xdr.Int64(v)})
		case string:
			params = append(params, xdr.TypedParam{Field: s.Name, Value: xdr.String(v)})
		}
	}
	return params
}

func jobOutcome(j event.DomainJob) []xdr.TypedParam {
	return []xdr.TypedParam{
		{Field: "operation", Value: xdr.Int(JobOperations[j.Kind])},
		{Field: "time_elapsed", Value: xdr.Uint64(j.Milli)},
		{Field: "data_total", Value: xdr.Uint64(j.TotalBytes)},
		{Field: "success", Value: xdr.Bool(j.Success)},
	}
}

func failureFlags(p event.DomainMemoryFailure) uint32 {
	var flags uint32
	if p.Urgent {
		flags |= 1
	}
	if p.Recursive {
		flags |= 2
	}
	return flags
}

// OptionalString returns nil for an empty string: a field that is absent on the wire.
func OptionalString(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
