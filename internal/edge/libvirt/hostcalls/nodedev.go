package hostcalls

import (
	"context"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/control/authz"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/host/resources"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
)

// NodeDeviceCalls are the calls that list and describe the host's devices.
func NodeDeviceCalls(g rpc.Group) {
	rpc.On(g, xdr.ProcNodeNumOfDevices, nodeNumOfDevices)
	rpc.On(g, xdr.ProcNodeListDevices, nodeListDevices)
	rpc.On(g, xdr.ProcConnectListAllNodeDevices, connectListAllNodeDevices)
	rpc.On(g, xdr.ProcNodeDeviceLookupByName, nodeDeviceLookupByName)
	rpc.On(g, xdr.ProcNodeDeviceLookupSCSIHostByWWN, nodeDeviceLookupSCSIHostByWWN)
	rpc.On(g, xdr.ProcNodeDeviceGetXMLDesc, nodeDeviceGetXMLDesc)
	rpc.On(g, xdr.ProcNodeDeviceGetParent, nodeDeviceGetParent)
	rpc.On(g, xdr.ProcNodeDeviceNumOfCaps, nodeDeviceNumOfCaps)
	rpc.On(g, xdr.ProcNodeDeviceListCaps, nodeDeviceListCaps)
	rpc.On(g, xdr.ProcNodeDeviceIsActive, nodeDeviceIsActive)
	rpc.On(g, xdr.ProcNodeDeviceIsPersistent, nodeDeviceIsPersistent)
	rpc.On(g, xdr.ProcNodeDeviceGetAutostart, nodeDeviceGetAutostart)
	rpc.On(g, xdr.ProcNodeDeviceDettach, nodeDeviceDettach)
	rpc.On(g, xdr.ProcNodeDeviceDetachFlags, nodeDeviceDetachFlags)
	rpc.On(g, xdr.ProcNodeDeviceReAttach, nodeDeviceReAttach)
}

// deviceKinds are the flags that select capabilities in a list of devices. Flags for
// capabilities that no device here has (mediated devices, s390 channels, ...) are valid,
// and give an empty list.
var deviceKinds = []struct {
	flag uint32
	kind resources.Kind
}{
	{1 << 0, resources.System},
	{1 << 1, resources.PCI},
	{1 << 2, resources.USB},
	{1 << 3, resources.USBInterface},
	{1 << 4, resources.Net},
	{1 << 5, resources.SCSIHost},
	{1 << 6, resources.SCSITarget},
	{1 << 7, resources.SCSI},
	{1 << 8, resources.Storage},
	{1 << 9, resources.FCHost},
	{1 << 12, resources.DRM},
}

// Flags for listing devices, in addition to the kinds.
const (
	listDeviceKinds    = 1<<22 - 1
	listDeviceInactive = 1 << 30 // defined, but not present: no device here
	listDeviceActive   = 1 << 31
)

func connectListAllNodeDevices(_ context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.ConnectListAllNodeDevicesArgs) (*xdr.ConnectListAllNodeDevicesRet, error) {
	if err := rpc.CheckFlags("CONNECT_LIST_ALL_NODE_DEVICES", args.Flags, listDeviceKinds|listDeviceActive|listDeviceInactive); err != nil {
		return nil, err
	}
	var found []*resources.Device
	if args.Flags&(listDeviceActive|listDeviceInactive) != listDeviceInactive {
		found = visibleDevices(s.Session, devicesByFlags(h, args.Flags&listDeviceKinds))
	}
	ret := &xdr.ConnectListAllNodeDevicesRet{Count: uint32(len(found))}
	if args.NeedResults {
		for _, d := range found {
			ret.Devices = append(ret.Devices, xdr.NodeDevice{Name: d.Name})
		}
	}
	return ret, nil
}

func devicesByFlags(h *rpc.Handlers, flags uint32) []*resources.Device {
	if flags == 0 {
		return h.Devices.All()
	}
	var kinds []resources.Kind
	for _, k := range deviceKinds {
		if flags&k.flag != 0 {
			kinds = append(kinds, k.kind)
		}
	}
	return h.Devices.Of(kinds...)
}

// visibleDevices returns the devices that the client may see.
func visibleDevices(s *rpc.Session, all []*resources.Device) []*resources.Device {
	if canSeeEverything(s) {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), isVirtual)
}

// findDevice finds a device that the client may see.
func findDevice(h *rpc.Handlers, s *rpc.Session, name string) (*resources.Device, error) {
	d, err := h.Devices.ByName(name)
	if err == nil && isVirtual(d) && !canSeeEverything(s) {
		return nil, s.Authorizer().Check(s.Principal(), authz.Read, authz.Resource{Kind: authz.Everything, Name: "device '" + name + "'"})
	}
	return d, err
}

// isVirtual reports whether a device is made by software, such as the links of guests and networks, and
// other programs' disks. They disclose facts about their owners.
func isVirtual(d *resources.Device) bool { return strings.Contains(d.Path, "/devices/virtual/") }

// canSeeEverything reports whether the rules hide nothing from the client.
func canSeeEverything(s *rpc.Session) bool {
	return !s.Authorizer().Restricted(s.Principal()) || s.CanSee(authz.Resource{Kind: authz.Everything})
}

// devicesByCap selects the devices of the older calls: by one capability's name, or all.
func devicesByCap(h *rpc.Handlers, capability *string) []*resources.Device {
	if capability == nil {
		return h.Devices.All()
	}
	return h.Devices.Of(resources.Kind(*capability))
}

func nodeNumOfDevices(_ context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.NodeNumOfDevicesArgs) (*xdr.NodeNumOfDevicesRet, error) {
	if err := rpc.CheckFlags("NODE_NUM_OF_DEVICES", args.Flags, 0); err != nil {
		return nil, err
	}
	return &xdr.NodeNumOfDevicesRet{Count: int32(len(visibleDevices(s.Session, devicesByCap(h, args.Capability))))}, nil
}

func nodeListDevices(_ context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.NodeListDevicesArgs) (*xdr.NodeListDevicesRet, error) {
	if err := rpc.CheckFlags("NODE_LIST_DEVICES", args.Flags, 0); err != nil {
		return nil, err
	}
	ret := &xdr.NodeListDevicesRet{}
	for _, d := range visibleDevices(s.Session, devicesByCap(h, args.Capability)) {
		ret.Names = append(ret.Names, d.Name)
	}
	return ret, rpc.TruncateList(&ret.Names, args.MaxNames)
}

func nodeDeviceLookupByName(_ context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.NodeDeviceLookupByNameArgs) (*xdr.NodeDeviceLookupByNameRet, error) {
	d, err := findDevice(h, s.Session, args.Name)
	if err != nil {
		return nil, err
	}
	return &xdr.NodeDeviceLookupByNameRet{Device: xdr.NodeDevice{Name: d.Name}}, nil
}

func nodeDeviceLookupSCSIHostByWWN(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.NodeDeviceLookupSCSIHostByWWNArgs) (*xdr.NodeDeviceLookupSCSIHostByWWNRet, error) {
	if err := rpc.CheckFlags("NODE_DEVICE_LOOKUP_SCSI_HOST_BY_WWN", args.Flags, 0); err != nil {
		return nil, err
	}
	d, err := h.Devices.ByWWN(args.WWNN, args.WWPN)
	if err != nil {
		return nil, err
	}
	return &xdr.NodeDeviceLookupSCSIHostByWWNRet{Device: xdr.NodeDevice{Name: d.Name}}, nil
}

func nodeDeviceGetXMLDesc(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.NodeDeviceGetXMLDescArgs) (*xdr.NodeDeviceGetXMLDescRet, error) {
	if err := rpc.CheckFlags("NODE_DEVICE_GET_XML_DESC", args.Flags, 0); err != nil {
		return nil, err
	}
	d, err := findDevice(h, s.Session, args.Name)
	if err != nil {
		return nil, err
	}
	doc, err := rpc.RunFair(ctx, func() (string, error) { return DescribeDevice(d) })
	return &xdr.NodeDeviceGetXMLDescRet{XML: doc}, err
}

func nodeDeviceGetParent(_ context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.NodeDeviceGetParentArgs) (*xdr.NodeDeviceGetParentRet, error) {
	d, err := findDevice(h, s.Session, args.Name)
	if err != nil {
		return nil, err
	}
	ret := &xdr.NodeDeviceGetParentRet{}
	if d.Parent != "" {
		ret.ParentName = &d.Parent
	}
	return ret, nil
}

func nodeDeviceNumOfCaps(_ context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.NodeDeviceNumOfCapsArgs) (*xdr.NodeDeviceNumOfCapsRet, error) {
	d, err := findDevice(h, s.Session, args.Name)
	if err != nil {
		return nil, err
	}
	return &xdr.NodeDeviceNumOfCapsRet{Count: int32(len(d.Kinds))}, nil
}

func nodeDeviceListCaps(_ context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.NodeDeviceListCapsArgs) (*xdr.NodeDeviceListCapsRet, error) {
	d, err := findDevice(h, s.Session, args.Name)
	if err != nil {
		return nil, err
	}
	ret := &xdr.NodeDeviceListCapsRet{}
	for _, k := range d.Kinds {
		ret.Names = append(ret.Names, string(k))
	}
	return ret, rpc.TruncateList(&ret.Names, args.MaxNames)
}

// Every listed device is present, and is found again after the host has started.

func nodeDeviceIsActive(_ context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.NodeDeviceIsActiveArgs) (*xdr.NodeDeviceIsActiveRet, error) {
	_, err := findDevice(h, s.Session, args.Name)
	return &xdr.NodeDeviceIsActiveRet{Active: true}, err
}

func nodeDeviceIsPersistent(_ context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.NodeDeviceIsPersistentArgs) (*xdr.NodeDeviceIsPersistentRet, error) {
	_, err := findDevice(h, s.Session, args.Name)
	return &xdr.NodeDeviceIsPersistentRet{Persistent: true}, err
}

func nodeDeviceGetAutostart(_ context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.NodeDeviceGetAutostartArgs) (*xdr.NodeDeviceGetAutostartRet, error) {
	_, err := findDevice(h, s.Session, args.Name)
	return &xdr.NodeDeviceGetAutostartRet{Autostart: true}, err
}

func nodeDeviceDettach(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.NodeDeviceDettachArgs) (*rpc.Void, error) {
	d, err := pciDevice(h, s.Session, args.Name)
	if err != nil {
		return nil, err
	}
	return nil, provision.DetachFromHost(ctx, h.Guests, s.Scope, d.Address)
}

func nodeDeviceDetachFlags(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.NodeDeviceDetachFlagsArgs) (*rpc.Void, error) {
	if err := rpc.CheckFlags("NODE_DEVICE_DETACH_FLAGS", args.Flags, 0); err != nil {
		return nil, err
	}
	if args.DriverName != nil && *args.DriverName != "vfio" {
		return nil, fault.New(fault.Unsupported, fault.Config, "virsh nodedev-detach --driver %s: guests have PCI devices by vfio alone; leave the driver out", *args.DriverName)
	}
	return nodeDeviceDettach(ctx, h, s, &xdr.NodeDeviceDettachArgs{Name: args.Name})
}

func nodeDeviceReAttach(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.NodeDeviceReAttachArgs) (*rpc.Void, error) {
	d, err := pciDevice(h, s.Session, args.Name)
	if err != nil {
		return nil, err
	}
	return nil, provision.ReattachToHost(ctx, h.Guests, s.Scope, d.Address)
}

// pciDevice finds a device that must be a PCI function.
func pciDevice(h *rpc.Handlers, s *rpc.Session, name string) (*kernel.PCIDevice, error) {
	d, err := findDevice(h, s, name)
	if err != nil {
		return nil, err
	}
	if d.PCI == nil {
		return nil, fault.New(fault.Invalid, fault.Call, "device %s is not a PCI device", name)
	}
	return d.PCI, nil
}
