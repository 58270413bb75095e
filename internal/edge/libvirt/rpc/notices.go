package rpc

import (
	"strings"

	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/word/event"
)

var (
	networkChanges = map[event.Change]int32{event.Defined: 0, event.Undefined: 1, event.Started: 2, event.Stopped: 3}
	poolChanges    = map[event.Change]int32{
		event.Defined: 0, event.Undefined: 1, event.Started: 2, event.Stopped: 3, event.Created: 4, event.Deleted: 5,
	}
	secretChanges     = map[event.Change]int32{event.Defined: 0, event.Undefined: 1}
	nodeDeviceChanges = map[event.Change]int32{event.Created: 0, event.Deleted: 1, event.Defined: 2, event.Undefined: 3}
)

// Notices converts an event of the log to the notices that clients know. An event about
// an object without a valid UUID gives none.
func Notices(e event.Event) []Notice {
	var found []Notice
	if p, ok := e.Payload.(event.NodeDeviceChange); ok {
		found = nodeDeviceNotices(e.Source.Name, p)
		return setObject(e.Source.Name, e.Source.Name, found)
	}
	id, err := ParseUUID(e.Source.UUID)
	if err != nil {
		return nil
	}
	switch p := e.Payload.(type) {
	case event.NetworkChange, event.NetworkMetadata:
		found = networkNotices(xdr.Network{Name: e.Source.Name, UUID: id}, p)
	case event.PoolChange, event.PoolRefresh:
		found = poolNotices(xdr.StoragePool{Name: e.Source.Name, UUID: id}, p)
	case event.SecretChange, event.SecretValue:
		found = secretNotices(id, p)
	default:
		found = domainNotices(xdr.Domain{Name: e.Source.Name, UUID: id, ID: int32(e.Source.ID)}, p)
	}
	return setObject(strings.ToLower(e.Source.UUID), e.Source.Name, found)
}

// setObject sets the object of the notices.
func setObject(object, name string, found []Notice) []Notice {
	for i := range found {
		found[i].object, found[i].name = object, name
	}
	return found
}

func networkNotices(n xdr.Network, p event.Payload) []Notice {
	switch p := p.(type) {
	case event.NetworkChange:
		return []Notice{{Topic: Topic{NetworkEvents, 0}, Proc: xdr.ProcNetworkEventLifecycle, Message: func(c int32) xdr.Message {
			return &xdr.NetworkEventLifecycleMsg{CallbackID: c, Network: n, Event: networkChanges[p.Change]}
		}}}
	case event.NetworkMetadata:
		return []Notice{{Topic: Topic{NetworkEvents, 1}, Proc: xdr.ProcNetworkEventCallbackMetadataChange, Message: func(c int32) xdr.Message {
			return &xdr.NetworkEventCallbackMetadataChangeMsg{
				CallbackID: c, Network: n, Type: metadataKinds[p.Kind], NamespaceURI: OptionalString(p.URI),
			}
		}}}
	}
	return nil
}

func poolNotices(pool xdr.StoragePool, p event.Payload) []Notice {
	switch p := p.(type) {
	case event.PoolChange:
		return []Notice{{Topic: Topic{PoolEvents, 0}, Proc: xdr.ProcStoragePoolEventLifecycle, Message: func(c int32) xdr.Message {
			return &xdr.StoragePoolEventLifecycleMsg{CallbackID: c, Pool: pool, Event: poolChanges[p.Change]}
		}}}
	case event.PoolRefresh:
		return []Notice{{Topic: Topic{PoolEvents, 1}, Proc: xdr.ProcStoragePoolEventRefresh, Message: func(c int32) xdr.Message {
			return &xdr.StoragePoolEventRefreshMsg{CallbackID: c, Pool: pool}
		}}}
	}
	return nil
}

func secretNotices(id xdr.UUID, p event.Payload) []Notice {
	switch p := p.(type) {
	case event.SecretChange:
		s := xdr.Secret{UUID: id, UsageType: SecretUsages[p.Usage], UsageID: p.For}
		return []Notice{{Topic: Topic{SecretEvents, 0}, Proc: xdr.ProcSecretEventLifecycle, Message: func(c int32) xdr.Message {
			return &xdr.SecretEventLifecycleMsg{CallbackID: c, Secret: s, Event: secretChanges[p.Change]}
		}}}
	case event.SecretValue:
		s := xdr.Secret{UUID: id, UsageType: SecretUsages[p.Usage], UsageID: p.For}
		return []Notice{{Topic: Topic{SecretEvents, 1}, Proc: xdr.ProcSecretEventValueChanged, Message: func(c int32) xdr.Message {
			return &xdr.SecretEventValueChangedMsg{CallbackID: c, Secret: s}
		}}}
	}
	return nil
}

func nodeDeviceNotices(name string, p event.NodeDeviceChange) []Notice {
	return []Notice{{Topic: Topic{NodeDeviceEvents, 0}, Proc: xdr.ProcNodeDeviceEventLifecycle, Message: func(c int32) xdr.Message {
		return &xdr.NodeDeviceEventLifecycleMsg{CallbackID: c, Device: xdr.NodeDevice{Name: name}, Event: nodeDeviceChanges[p.Change]}
	}}}
}

// SecretUsages are libvirt's numbers for the usage types of secrets.
var SecretUsages = map[string]int32{"": 0, "volume": 1, "ceph": 2, "iscsi": 3, "tls": 4, "vtpm": 5}
