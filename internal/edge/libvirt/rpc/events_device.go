package rpc

import (
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/word/event"
)

// deviceNotices returns the notices for an event of a domain's device.
func deviceNotices(d xdr.Domain, p event.Payload) []Notice {
	one := func(id, proc int32, message func(callback int32) xdr.Message) []Notice {
		return []Notice{{Topic: Topic{DomainEvents, id}, Proc: proc, Message: message}}
	}
	switch p := p.(type) {
	case event.DomainIOError:
		return ioErrorNotices(d, p)
	case event.DomainBlockJob:
		return blockJobNotices(d, p)
	case event.DomainGraphics:
		return one(eventGraphics, xdr.ProcDomainEventCallbackGraphics, func(c int32) xdr.Message {
			return &xdr.DomainEventCallbackGraphicsMsg{CallbackID: c, Msg: graphicsMessage(d, p)}
		})
	case event.DomainMediaChange:
		if _, known := mediaReasons[p.Reason]; !known {
			return nil // libvirt sends no event for a change that a client made
		}
		return one(eventMediaChange, xdr.ProcDomainEventCallbackDiskChange, func(c int32) xdr.Message {
			return &xdr.DomainEventCallbackDiskChangeMsg{CallbackID: c, Msg: xdr.DomainEventDiskChangeMsg{
				Domain: d, OldSourcePath: OptionalString(p.OldPath), NewSourcePath: OptionalString(p.NewPath),
				DeviceAlias: p.Alias, Reason: mediaReasons[p.Reason],
			}}
		})
	case event.DomainTray:
		return one(eventTray, xdr.ProcDomainEventCallbackTrayChange, func(c int32) xdr.Message {
			reason := int32(1)
			if p.Open {
				reason = 0
			}
			return &xdr.DomainEventCallbackTrayChangeMsg{CallbackID: c, Msg: xdr.DomainEventTrayChangeMsg{
				Domain: d, DeviceAlias: p.Alias, Reason: reason,
			}}
		})
	case event.DomainDeviceAdded:
		return one(eventDeviceAdded, xdr.ProcDomainEventCallbackDeviceAdded, func(c int32) xdr.Message {
			return &xdr.DomainEventCallbackDeviceAddedMsg{CallbackID: c, Domain: d, DeviceAlias: p.Alias}
		})
	case event.DomainDeviceRemoved:
		return one(eventDeviceRemoved, xdr.ProcDomainEventCallbackDeviceRemoved, func(c int32) xdr.Message {
			return &xdr.DomainEventCallbackDeviceRemovedMsg{CallbackID: c, Msg: xdr.DomainEventDeviceRemovedMsg{
				Domain: d, DeviceAlias: p.Alias,
			}}
		})
	case event.DomainDeviceRemovalFailed:
		return one(eventDeviceRemovalFailed, xdr.ProcDomainEventCallbackDeviceRemovalFailed, func(c int32) xdr.Message {
			return &xdr.DomainEventCallbackDeviceRemovalFailedMsg{CallbackID: c, Domain: d, DeviceAlias: p.Alias}
		})
	case event.DomainBlockThreshold:
		return one(eventBlockThreshold, xdr.ProcDomainEventBlockThreshold, func(c int32) xdr.Message {
			return &xdr.DomainEventBlockThresholdMsg{
				CallbackID: c, Domain: d, Device: p.Device, Path: OptionalString(p.Path), Threshold: p.Threshold, Excess: p.Excess,
			}
		})
	}
	return nil
}

// ioErrorNotices returns two notices: the older event without the reason, the newer with it.
func ioErrorNotices(d xdr.Domain, p event.DomainIOError) []Notice {
	action := ioErrorActions[p.Action]
	return []Notice{{
		Topic: Topic{DomainEvents, eventIOError}, Proc: xdr.ProcDomainEventCallbackIOError,
		Message: func(c int32) xdr.Message {
			return &xdr.DomainEventCallbackIOErrorMsg{CallbackID: c, Msg: xdr.DomainEventIOErrorMsg{
				Domain: d, SourcePath: p.Path, DeviceAlias: p.Alias, Action: action,
			}}
		},
	}, {
		Topic: Topic{DomainEvents, eventIOErrorReason}, Proc: xdr.ProcDomainEventCallbackIOErrorReason,
		Message: func(c int32) xdr.Message {
			return &xdr.DomainEventCallbackIOErrorReasonMsg{CallbackID: c, Msg: xdr.DomainEventIOErrorReasonMsg{
				Domain: d, SourcePath: p.Path, DeviceAlias: p.Alias, Action: action, Reason: p.Reason,
			}}
		},
	}}
}

// blockJobNotices returns two notices: the older event has the image's path, the newer the disk's target.
func blockJobNotices(d xdr.Domain, p event.DomainBlockJob) []Notice {
	kind, status := BlockJobKinds[p.Kind], blockJobStatuses[p.Status]
	return []Notice{{
		Topic: Topic{DomainEvents, eventBlockJob}, Proc: xdr.ProcDomainEventCallbackBlockJob,
		Message: func(c int32) xdr.Message {
			return &xdr.DomainEventCallbackBlockJobMsg{CallbackID: c, Msg: xdr.DomainEventBlockJobMsg{
				Domain: d, Path: p.Path, Type: kind, Status: status,
			}}
		},
	}, {
		Topic: Topic{DomainEvents, eventBlockJob2}, Proc: xdr.ProcDomainEventBlockJob2,
		Message: func(c int32) xdr.Message {
			return &xdr.DomainEventBlockJob2Msg{CallbackID: c, Domain: d, Dest: p.Target, Type: kind, Status: status}
		},
	}}
}

func graphicsMessage(d xdr.Domain, p event.DomainGraphics) xdr.DomainEventGraphicsMsg {
	msg := xdr.DomainEventGraphicsMsg{
		Domain: d, Phase: graphicsPhases[p.Phase], AuthScheme: p.AuthScheme,
		Local:  xdr.GraphicsAddress{Family: addressFamilies[p.LocalFamily], Node: p.LocalNode, Service: p.LocalService},
		Remote: xdr.GraphicsAddress{Family: addressFamilies[p.RemoteFamily], Node: p.RemoteNode, Service: p.RemoteService},
	}
	for _, id := range []xdr.GraphicsIdentity{{Type: "x509dname", Name: p.X509Name}, {Type: "saslUsername", Name: p.SASLUser}} {
		if id.Name != "" {
			msg.Subject = append(msg.Subject, id)
		}
	}
	return msg
}
