package libvirt

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

// eventCalls are the registrations of callbacks.
func eventCalls(g group) {
	onThen(g, xdr.ProcConnectDomainEventCallbackRegisterAny, (*handlers).watchDomains)
	on(g, xdr.ProcConnectDomainEventCallbackDeregisterAny, (*handlers).unwatchDomains)
	onThen(g, xdr.ProcConnectNetworkEventRegisterAny, (*handlers).watchNetworks)
	on(g, xdr.ProcConnectNetworkEventDeregisterAny, (*handlers).unwatchNetworks)
	onThen(g, xdr.ProcConnectStoragePoolEventRegisterAny, (*handlers).watchPools)
	on(g, xdr.ProcConnectStoragePoolEventDeregisterAny, (*handlers).unwatchPools)
	onThen(g, xdr.ProcConnectNodeDeviceEventRegisterAny, (*handlers).watchNodeDevices)
	on(g, xdr.ProcConnectNodeDeviceEventDeregisterAny, (*handlers).unwatchNodeDevices)
	onThen(g, xdr.ProcConnectSecretEventRegisterAny, (*handlers).watchSecrets)
	on(g, xdr.ProcConnectSecretEventDeregisterAny, (*handlers).unwatchSecrets)
	on(g, xdr.ProcConnectRegisterCloseCallback, (*handlers).registerCloseCallback)
	on(g, xdr.ProcConnectUnregisterCloseCallback, (*handlers).unregisterCloseCallback)
}

// watch subscribes the client to a kind of event, of one object or of all if object is "".
func (h *handlers) watch(s *session, f family, event int32, object string) (*xdr.WithCallbackID, func(), error) {
	id, told, err := s.subscribe(h.Events, topic{f, event}, object)
	if err != nil {
		return nil, nil, err
	}
	return &xdr.WithCallbackID{CallbackID: id}, told, nil
}

func (h *handlers) watchDomains(_ context.Context, s *request, args *xdr.ConnectDomainEventCallbackRegisterAnyArgs) (*xdr.WithCallbackID, func(), error) {
	object := ""
	if args.Domain != nil {
		object = formatUUID(args.Domain.UUID)
	}
	return h.watch(s.session, ofDomain, args.EventID, object)
}

func (h *handlers) unwatchDomains(_ context.Context, s *request, args *xdr.WithCallbackID) (*void, error) {
	return nil, s.unsubscribe(ofDomain, args.CallbackID)
}

func (h *handlers) watchNetworks(_ context.Context, s *request, args *xdr.ConnectNetworkEventRegisterAnyArgs) (*xdr.WithCallbackID, func(), error) {
	object := ""
	if args.Network != nil {
		object = formatUUID(args.Network.UUID)
	}
	return h.watch(s.session, ofNetwork, args.EventID, object)
}

func (h *handlers) unwatchNetworks(_ context.Context, s *request, args *xdr.WithCallbackID) (*void, error) {
	return nil, s.unsubscribe(ofNetwork, args.CallbackID)
}

func (h *handlers) watchPools(_ context.Context, s *request, args *xdr.ConnectStoragePoolEventRegisterAnyArgs) (*xdr.WithCallbackID, func(), error) {
	object := ""
	if args.Pool != nil {
		object = formatUUID(args.Pool.UUID)
	}
	return h.watch(s.session, ofPool, args.EventID, object)
}

func (h *handlers) unwatchPools(_ context.Context, s *request, args *xdr.WithCallbackID) (*void, error) {
	return nil, s.unsubscribe(ofPool, args.CallbackID)
}

func (h *handlers) watchNodeDevices(_ context.Context, s *request, args *xdr.ConnectNodeDeviceEventRegisterAnyArgs) (*xdr.WithCallbackID, func(), error) {
	object := ""
	if args.Device != nil {
		object = args.Device.Name
	}
	return h.watch(s.session, ofNodeDevice, args.EventID, object)
}

func (h *handlers) unwatchNodeDevices(_ context.Context, s *request, args *xdr.WithCallbackID) (*void, error) {
	return nil, s.unsubscribe(ofNodeDevice, args.CallbackID)
}

func (h *handlers) watchSecrets(_ context.Context, s *request, args *xdr.ConnectSecretEventRegisterAnyArgs) (*xdr.WithCallbackID, func(), error) {
	object := ""
	if args.Secret != nil {
		object = formatUUID(args.Secret.UUID)
	}
	return h.watch(s.session, ofSecret, args.EventID, object)
}

func (h *handlers) unwatchSecrets(_ context.Context, s *request, args *xdr.WithCallbackID) (*void, error) {
	return nil, s.unsubscribe(ofSecret, args.CallbackID)
}

// registerCloseCallback: the callback is about the way from the server on to a
// hypervisor far away. Here that way has no length and never closes.
func (h *handlers) registerCloseCallback(_ context.Context, s *request, _ *void) (*void, error) {
	return nil, s.watchClose(true)
}

func (h *handlers) unregisterCloseCallback(_ context.Context, s *request, _ *void) (*void, error) {
	return nil, s.watchClose(false)
}

func (s *session) watchClose(on bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watched == on {
		state := map[bool]string{true: "already registered", false: "not registered"}[on]
		return withCode(codeInternal, fault.New(fault.WrongState, fault.Call, "a close callback is %s", state))
	}
	s.watched = on
	return nil
}
