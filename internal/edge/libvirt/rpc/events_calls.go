package rpc

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

// EventCalls are the registrations of callbacks.
func EventCalls(g Group) {
	OnThen(g, xdr.ProcConnectDomainEventCallbackRegisterAny, watchDomains)
	On(g, xdr.ProcConnectDomainEventCallbackDeregisterAny, unwatchDomains)
	OnThen(g, xdr.ProcConnectNetworkEventRegisterAny, watchNetworks)
	On(g, xdr.ProcConnectNetworkEventDeregisterAny, unwatchNetworks)
	OnThen(g, xdr.ProcConnectStoragePoolEventRegisterAny, watchPools)
	On(g, xdr.ProcConnectStoragePoolEventDeregisterAny, unwatchPools)
	OnThen(g, xdr.ProcConnectNodeDeviceEventRegisterAny, watchNodeDevices)
	On(g, xdr.ProcConnectNodeDeviceEventDeregisterAny, unwatchNodeDevices)
	OnThen(g, xdr.ProcConnectSecretEventRegisterAny, watchSecrets)
	On(g, xdr.ProcConnectSecretEventDeregisterAny, unwatchSecrets)
	On(g, xdr.ProcConnectRegisterCloseCallback, registerCloseCallback)
	On(g, xdr.ProcConnectUnregisterCloseCallback, unregisterCloseCallback)
}

// watch subscribes the client to a kind of event, of one object or of all if object is "".
func watch(h *Handlers, s *Session, f family, event int32, object string) (*xdr.WithCallbackID, func(), error) {
	id, told, err := s.subscribe(h.Events, Topic{f, event}, object)
	if err != nil {
		return nil, nil, err
	}
	return &xdr.WithCallbackID{CallbackID: id}, told, nil
}

func watchDomains(_ context.Context, h *Handlers, s *Request, args *xdr.ConnectDomainEventCallbackRegisterAnyArgs) (*xdr.WithCallbackID, func(), error) {
	object := ""
	if args.Domain != nil {
		object = FormatUUID(args.Domain.UUID)
	}
	return watch(h, s.Session, OfDomain, args.EventID, object)
}

func unwatchDomains(_ context.Context, h *Handlers, s *Request, args *xdr.WithCallbackID) (*Void, error) {
	return nil, s.unsubscribe(OfDomain, args.CallbackID)
}

func watchNetworks(_ context.Context, h *Handlers, s *Request, args *xdr.ConnectNetworkEventRegisterAnyArgs) (*xdr.WithCallbackID, func(), error) {
	object := ""
	if args.Network != nil {
		object = FormatUUID(args.Network.UUID)
	}
	return watch(h, s.Session, OfNetwork, args.EventID, object)
}

func unwatchNetworks(_ context.Context, h *Handlers, s *Request, args *xdr.WithCallbackID) (*Void, error) {
	return nil, s.unsubscribe(OfNetwork, args.CallbackID)
}

func watchPools(_ context.Context, h *Handlers, s *Request, args *xdr.ConnectStoragePoolEventRegisterAnyArgs) (*xdr.WithCallbackID, func(), error) {
	object := ""
	if args.Pool != nil {
		object = FormatUUID(args.Pool.UUID)
	}
	return watch(h, s.Session, OfPool, args.EventID, object)
}

func unwatchPools(_ context.Context, h *Handlers, s *Request, args *xdr.WithCallbackID) (*Void, error) {
	return nil, s.unsubscribe(OfPool, args.CallbackID)
}

func watchNodeDevices(_ context.Context, h *Handlers, s *Request, args *xdr.ConnectNodeDeviceEventRegisterAnyArgs) (*xdr.WithCallbackID, func(), error) {
	object := ""
	if args.Device != nil {
		object = args.Device.Name
	}
	return watch(h, s.Session, OfNodeDevice, args.EventID, object)
}

func unwatchNodeDevices(_ context.Context, h *Handlers, s *Request, args *xdr.WithCallbackID) (*Void, error) {
	return nil, s.unsubscribe(OfNodeDevice, args.CallbackID)
}

func watchSecrets(_ context.Context, h *Handlers, s *Request, args *xdr.ConnectSecretEventRegisterAnyArgs) (*xdr.WithCallbackID, func(), error) {
	object := ""
	if args.Secret != nil {
		object = FormatUUID(args.Secret.UUID)
	}
	return watch(h, s.Session, OfSecret, args.EventID, object)
}

func unwatchSecrets(_ context.Context, h *Handlers, s *Request, args *xdr.WithCallbackID) (*Void, error) {
	return nil, s.unsubscribe(OfSecret, args.CallbackID)
}

// registerCloseCallback: the callback is about the way from the server on to a
// hypervisor far away. Here that way has no length and never closes.
func registerCloseCallback(_ context.Context, h *Handlers, s *Request, _ *Void) (*Void, error) {
	return nil, s.watchClose(true)
}

func unregisterCloseCallback(_ context.Context, h *Handlers, s *Request, _ *Void) (*Void, error) {
	return nil, s.watchClose(false)
}

func (s *Session) watchClose(on bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watched == on {
		state := map[bool]string{true: "already registered", false: "not registered"}[on]
		return WithCode(CodeInternal, fault.New(fault.WrongState, fault.Call, "a close callback is %s", state))
	}
	s.watched = on
	return nil
}
