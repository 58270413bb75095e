package libvirt

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

// absentCalls read types of objects that Lodge never makes: the host's network
// configuration (virInterface), network filters and their bindings. No such object
// exists, so lists are empty and each look-up fails. Clients such as Cockpit and
// Vagrant read these lists at every visit. Calls that would make such an object
// are refused by name.
func absentCalls(g group) {
	on(g, xdr.ProcConnectNumOfInterfaces, (*handlers).countNone)
	on(g, xdr.ProcConnectListInterfaces, (*handlers).namesNone)
	on(g, xdr.ProcConnectNumOfDefinedInterfaces, (*handlers).countNone)
	on(g, xdr.ProcConnectListDefinedInterfaces, (*handlers).namesNone)
	on(g, xdr.ProcConnectListAllInterfaces, (*handlers).listAllInterfaces)
	on(g, xdr.ProcInterfaceLookupByName, (*handlers).interfaceLookupByName)
	on(g, xdr.ProcInterfaceLookupByMACString, (*handlers).interfaceLookupByMAC)
	on(g, xdr.ProcInterfaceGetXMLDesc, (*handlers).interfaceXML)
	on(g, xdr.ProcInterfaceIsActive, (*handlers).interfaceIsActive)

	on(g, xdr.ProcConnectNumOfNWFilters, (*handlers).countNone)
	on(g, xdr.ProcConnectListNWFilters, (*handlers).namesNone)
	on(g, xdr.ProcConnectListAllNWFilters, (*handlers).listAllFilters)
	on(g, xdr.ProcNWFilterLookupByName, (*handlers).filterLookupByName)
	on(g, xdr.ProcNWFilterLookupByUUID, (*handlers).filterLookupByUUID)
	on(g, xdr.ProcNWFilterGetXMLDesc, (*handlers).filterXML)

	on(g, xdr.ProcConnectListAllNWFilterBindings, (*handlers).listAllBindings)
	on(g, xdr.ProcNWFilterBindingLookupByPortDev, (*handlers).bindingLookup)
	on(g, xdr.ProcNWFilterBindingGetXMLDesc, (*handlers).bindingXML)
}

// listInterfaceAll are the filters of listing interfaces: inactive and active.
const listInterfaceAll = 3

func (h *handlers) countNone(_ context.Context, _ *request, _ *void) (*xdr.WithCount, error) {
	return &xdr.WithCount{}, nil
}

func (h *handlers) namesNone(_ context.Context, _ *request, _ *xdr.WithMaxNames) (*xdr.WithNames, error) {
	return &xdr.WithNames{}, nil
}

func (h *handlers) listAllInterfaces(_ context.Context, _ *request, args *xdr.WithNeedResultsFlags) (*xdr.ConnectListAllInterfacesRet, error) {
	return &xdr.ConnectListAllInterfacesRet{}, checkFlags("CONNECT_LIST_ALL_INTERFACES", args.Flags, listInterfaceAll)
}

// noInterface is the error that names the place to see the host's links instead.
func noInterface(key, value string) error {
	return fault.New(fault.NotFound, fault.Interface,
		"no interface with %s %q: Lodge does not configure the host's network; virsh nodedev-list --cap net lists its links", key, value)
}

func (h *handlers) interfaceLookupByName(_ context.Context, _ *request, args *xdr.WithName) (*xdr.WithInterface, error) {
	return nil, noInterface("name", args.Name)
}

func (h *handlers) interfaceLookupByMAC(_ context.Context, _ *request, args *xdr.InterfaceLookupByMACStringArgs) (*xdr.WithInterface, error) {
	return nil, noInterface("MAC address", args.MAC)
}

func (h *handlers) interfaceXML(_ context.Context, _ *request, args *xdr.WithInterfaceFlags) (*xdr.WithXML, error) {
	return nil, noInterface("name", args.Interface.Name)
}

func (h *handlers) interfaceIsActive(_ context.Context, _ *request, args *xdr.WithInterface) (*xdr.WithActive, error) {
	return nil, noInterface("name", args.Interface.Name)
}

func (h *handlers) listAllFilters(_ context.Context, _ *request, args *xdr.WithNeedResultsFlags) (*xdr.ConnectListAllNWFiltersRet, error) {
	return &xdr.ConnectListAllNWFiltersRet{}, checkFlags("CONNECT_LIST_ALL_NWFILTERS", args.Flags, 0)
}

func noFilter(key, value string) error {
	return fault.New(fault.NotFound, fault.Filter, "no network filter with %s %q: network filters are not built", key, value)
}

func (h *handlers) filterLookupByName(_ context.Context, _ *request, args *xdr.WithName) (*xdr.WithNWFilter, error) {
	return nil, noFilter("name", args.Name)
}

func (h *handlers) filterLookupByUUID(_ context.Context, _ *request, args *xdr.WithUUID) (*xdr.WithNWFilter, error) {
	return nil, noFilter("UUID", formatUUID(args.UUID))
}

func (h *handlers) filterXML(_ context.Context, _ *request, args *xdr.NWFilterGetXMLDescArgs) (*xdr.WithXML, error) {
	return nil, noFilter("name", args.NWFilter.Name)
}

func (h *handlers) listAllBindings(_ context.Context, _ *request, args *xdr.WithNeedResultsFlags) (*xdr.ConnectListAllNWFilterBindingsRet, error) {
	return &xdr.ConnectListAllNWFilterBindingsRet{}, checkFlags("CONNECT_LIST_ALL_NWFILTER_BINDINGS", args.Flags, 0)
}

func noBinding(port string) error {
	return withCode(codeNoFilterBinding, fault.New(fault.NotFound, fault.Filter,
		"no network filter binding for port %q: network filters are not built", port))
}

func (h *handlers) bindingLookup(_ context.Context, _ *request, args *xdr.WithName) (*xdr.NWFilterBindingLookupByPortDevRet, error) {
	return nil, noBinding(args.Name)
}

func (h *handlers) bindingXML(_ context.Context, _ *request, args *xdr.NWFilterBindingGetXMLDescArgs) (*xdr.WithXML, error) {
	return nil, noBinding(args.NWFilter.PortDevice)
}
