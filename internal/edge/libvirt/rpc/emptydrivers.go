package rpc

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

// EmptyDriverCalls are the reading calls of libvirt drivers that Lodge has no objects
// for: the host's network configuration (virInterface), network filters and their
// bindings. So lists are empty and each look-up fails. Cockpit and Vagrant read these
// lists on every connection. The calls that would make such an object are refused by
// name (unbuilt.go).
func EmptyDriverCalls(g Group) {
	On(g, xdr.ProcConnectNumOfInterfaces, numOfNone)
	On(g, xdr.ProcConnectListInterfaces, listNone)
	On(g, xdr.ProcConnectNumOfDefinedInterfaces, numOfNone)
	On(g, xdr.ProcConnectListDefinedInterfaces, listNone)
	On(g, xdr.ProcConnectListAllInterfaces, listAllInterfaces)
	On(g, xdr.ProcInterfaceLookupByName, interfaceLookupByName)
	On(g, xdr.ProcInterfaceLookupByMACString, interfaceLookupByMAC)
	On(g, xdr.ProcInterfaceGetXMLDesc, interfaceXML)
	On(g, xdr.ProcInterfaceIsActive, interfaceIsActive)

	On(g, xdr.ProcConnectNumOfNWFilters, numOfNone)
	On(g, xdr.ProcConnectListNWFilters, listNone)
	On(g, xdr.ProcConnectListAllNWFilters, listAllFilters)
	On(g, xdr.ProcNWFilterLookupByName, filterLookupByName)
	On(g, xdr.ProcNWFilterLookupByUUID, filterLookupByUUID)
	On(g, xdr.ProcNWFilterGetXMLDesc, filterXML)

	On(g, xdr.ProcConnectListAllNWFilterBindings, listAllBindings)
	On(g, xdr.ProcNWFilterBindingLookupByPortDev, bindingLookup)
	On(g, xdr.ProcNWFilterBindingGetXMLDesc, bindingXML)
}

// listInterfaceAll are the flags for listing interfaces: inactive and active.
const listInterfaceAll = 3

func numOfNone(_ context.Context, h *Handlers, _ *Request, _ *Void) (*xdr.WithCount, error) {
	return &xdr.WithCount{}, nil
}

func listNone(_ context.Context, h *Handlers, _ *Request, _ *xdr.WithMaxNames) (*xdr.WithNames, error) {
	return &xdr.WithNames{}, nil
}

func listAllInterfaces(_ context.Context, h *Handlers, _ *Request, args *xdr.WithNeedResultsFlags) (*xdr.ConnectListAllInterfacesRet, error) {
	return &xdr.ConnectListAllInterfacesRet{}, CheckFlags("CONNECT_LIST_ALL_INTERFACES", args.Flags, listInterfaceAll)
}

// noInterface is the error for every look-up of an interface; it names the command that lists the host's links.
func noInterface(key, value string) error {
	return fault.New(fault.NotFound, fault.Interface,
		"no interface with %s %q: Lodge does not configure the host's network; virsh nodedev-list --cap net lists its links", key, value)
}

func interfaceLookupByName(_ context.Context, h *Handlers, _ *Request, args *xdr.WithName) (*xdr.WithInterface, error) {
	return nil, noInterface("name", args.Name)
}

func interfaceLookupByMAC(_ context.Context, h *Handlers, _ *Request, args *xdr.InterfaceLookupByMACStringArgs) (*xdr.WithInterface, error) {
	return nil, noInterface("MAC address", args.MAC)
}

func interfaceXML(_ context.Context, h *Handlers, _ *Request, args *xdr.WithInterfaceFlags) (*xdr.WithXML, error) {
	return nil, noInterface("name", args.Interface.Name)
}

func interfaceIsActive(_ context.Context, h *Handlers, _ *Request, args *xdr.WithInterface) (*xdr.WithActive, error) {
	return nil, noInterface("name", args.Interface.Name)
}

func listAllFilters(_ context.Context, h *Handlers, _ *Request, args *xdr.WithNeedResultsFlags) (*xdr.ConnectListAllNWFiltersRet, error) {
	return &xdr.ConnectListAllNWFiltersRet{}, CheckFlags("CONNECT_LIST_ALL_NWFILTERS", args.Flags, 0)
}

func noFilter(key, value string) error {
	return fault.New(fault.NotFound, fault.Filter, "no network filter with %s %q: network filters are not built", key, value)
}

func filterLookupByName(_ context.Context, h *Handlers, _ *Request, args *xdr.WithName) (*xdr.WithNWFilter, error) {
	return nil, noFilter("name", args.Name)
}

func filterLookupByUUID(_ context.Context, h *Handlers, _ *Request, args *xdr.WithUUID) (*xdr.WithNWFilter, error) {
	return nil, noFilter("UUID", FormatUUID(args.UUID))
}

func filterXML(_ context.Context, h *Handlers, _ *Request, args *xdr.NWFilterGetXMLDescArgs) (*xdr.WithXML, error) {
	return nil, noFilter("name", args.NWFilter.Name)
}

func listAllBindings(_ context.Context, h *Handlers, _ *Request, args *xdr.WithNeedResultsFlags) (*xdr.ConnectListAllNWFilterBindingsRet, error) {
	return &xdr.ConnectListAllNWFilterBindingsRet{}, CheckFlags("CONNECT_LIST_ALL_NWFILTER_BINDINGS", args.Flags, 0)
}

func noBinding(port string) error {
	return WithCode(codeNoFilterBinding, fault.New(fault.NotFound, fault.Filter,
		"no network filter binding for port %q: network filters are not built", port))
}

func bindingLookup(_ context.Context, h *Handlers, _ *Request, args *xdr.WithName) (*xdr.NWFilterBindingLookupByPortDevRet, error) {
	return nil, noBinding(args.Name)
}

func bindingXML(_ context.Context, h *Handlers, _ *Request, args *xdr.NWFilterBindingGetXMLDescArgs) (*xdr.WithXML, error) {
	return nil, noBinding(args.NWFilter.PortDevice)
}
