package rpc

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

// EventCalls register and deregister callbacks.
func EventCalls(g Group) {
	OnAfterReply(g, xdr.ProcConnectDomainEventCallbackRegisterAny, registerDomainEvent)
	On(g, xdr.ProcConnectDomainEventCallbackDeregisterAny, deregisterDomainEvent)
	OnAfterReply(g, xdr.ProcConnectNetworkEventRegisterAny, registerNetworkEvent)
	On(g, xdr.ProcConnectNetworkEventDeregisterAny, deregisterNetworkEvent)
	OnAfterReply(g, xdr.ProcConnectStoragePoolEventRegisterAny, registerPoolEvent)
	On(g, xdr.ProcConnectStoragePoolEventDeregisterAny, deregisterPoolEvent)
	OnAfterReply(g, xdr.ProcConnectNodeDeviceEventRegisterAny, registerNodeDeviceEvent)
	On(g, xdr.ProcConnectNodeDeviceEventDeregisterAny, deregisterNodeDeviceEvent)
	OnAfterReply(g, xdr.ProcConnectSecretEventRegisterAny, registerSecretEvent)
	On(g, xdr.ProcConnectSecretEventDeregisterAny, deregisterSecretEvent)
	On(g, xdr.ProcConnectRegisterCloseCallback, registerCloseCallback)
	On(g, xdr.ProcConnectUnregisterCloseCallback, unregisterCloseCallback)
}

// registerEvent subscribes the client to an event, of one object or of all if object is "".
func registerEvent(h *Handlers, s *Session, f eventFamily, event int32, object string) (*xdr.WithCallbackID, func(), error) {
	id, replyQueued, err := s.subscribe(h.Events, Topic{f, event}, object)
	if err != nil {
		return nil, nil, err
	}
	return &xdr.WithCallbackID{CallbackID: id}, replyQueued, nil
}

func registerDomainEvent(_ context.Context, h *Handlers, s *Request, args *xdr.ConnectDomainEventCallbackRegisterAnyArgs) (*xdr.WithCallbackID, func(), error) {
	object := ""
	if args.Domain != nil {
		object = FormatUUID(args.Domain.UUID)
	}
	return registerEvent(h, s.Session, DomainEvents, args.EventID, object)
}

func deregisterDomainEvent(_ context.Context, h *Handlers, s *Request, args *xdr.WithCallbackID) (*Void, error) {
	return nil, s.unsubscribe(DomainEvents, args.CallbackID)
}

func registerNetworkEvent(_ context.Context, h *Handlers, s *Request, args *xdr.ConnectNetworkEventRegisterAnyArgs) (*xdr.WithCallbackID, func(), error) {
	object := ""
	if args.Network != nil {
		object = FormatUUID(args.Network.UUID)
	}
	return registerEvent(h, s.Session, NetworkEvents, args.EventID, object)
}

func deregisterNetworkEvent(_ context.Context, h *Handlers, s *Request, args *xdr.WithCallbackID) (*Void, error) {
	return nil, s.unsubscribe(NetworkEvents, args.CallbackID)
}

func registerPoolEvent(_ context.Context, h *Handlers, s *Request, args *xdr.ConnectStoragePoolEventRegisterAnyArgs) (*xdr.WithCallbackID, func(), error) {
	object := ""
	if args.Pool != nil {
		object = FormatUUID(args.Pool.UUID)
	}
	return registerEvent(h, s.Session, PoolEvents, args.EventID, object)
}

func deregisterPoolEvent(_ context.Context, h *Handlers, s *Request, args *xdr.WithCallbackID) (*Void, error) {
	return nil, s.unsubscribe(PoolEvents, args.CallbackID)
}

func registerNodeDeviceEvent(_ context.Context, h *Handlers, s *Request, args *xdr.ConnectNodeDeviceEventRegisterAnyArgs) (*xdr.WithCallbackID, func(), error) {
	object := ""
	if args.Device != nil {
		object = args.Device.Name
	}
	return registerEvent(h, s.Session, NodeDeviceEvents, args.EventID, object)
}

func deregisterNodeDeviceEvent(_ context.Context, h *Handlers, s *Request, args *xdr.WithCallbackID) (*Void, error) {
	return nil, s.unsubscribe(NodeDeviceEvents, args.CallbackID)
}

func registerSecretEvent(_ context.Context, h *Handlers, s *Request, args *xdr.ConnectSecretEventRegisterAnyArgs) (*xdr.WithCallbackID, func(), error) {
	object := ""
	if args.Secret != nil {
		object = FormatUUID(args.Secret.UUID)
	}
	return registerEvent(h, s.Session, SecretEvents, args.EventID, object)
}

func deregisterSecretEvent(_ context.Context, h *Handlers, s *Request, args *xdr.WithCallbackID) (*Void, error) {
	return nil, s.unsubscribe(SecretEvents, args.CallbackID)
}

// registerCloseCallback: the callback is for the server's connection to a remote
// hypervisor. Here there is none, so the callback is never called.
func registerCloseCallback(_ context.Context, h *Handlers, s *Request, _ *Void) (*Void, error) {
	return nil, s.setCloseCallback(true)
}

func unregisterCloseCallback(_ context.Context, h *Handlers, s *Request, _ *Void) (*Void, error) {
	return nil, s.setCloseCallback(false)
}

func (s *Session) setCloseCallback(on bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closeCallback == on {
		state := map[bool]string{true: "already registered", false: "not registered"}[on]
		return WithCode(CodeInternal, fault.New(fault.WrongState, fault.Call, "a close callback is %s", state))
	}
	s.closeCallback = on
	return nil
}
