package libvirt

import (
	"context"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/control/authz"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/host/resources"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
)

// nodeDeviceCalls are the calls that list and describe the host's devices.
func nodeDeviceCalls(g group) {
	on(g, xdr.ProcNodeNumOfDevices, (*handlers).nodeNumOfDevices)
	on(g, xdr.ProcNodeListDevices, (*handlers).nodeListDevices)
	on(g, xdr.ProcConnectListAllNodeDevices, (*handlers).connectListAllNodeDevices)
	on(g, xdr.ProcNodeDeviceLookupByName, (*handlers).nodeDeviceLookupByName)
	on(g, xdr.ProcNodeDeviceLookupSCSIHostByWWN, (*handlers).nodeDeviceLookupSCSIHostByWWN)
	on(g, xdr.ProcNodeDeviceGetXMLDesc, (*handlers).nodeDeviceGetXMLDesc)
	on(g, xdr.ProcNodeDeviceGetParent, (*handlers).nodeDeviceGetParent)
	on(g, xdr.ProcNodeDeviceNumOfCaps, (*handlers).nodeDeviceNumOfCaps)
	on(g, xdr.ProcNodeDeviceListCaps, (*handlers).nodeDeviceListCaps)
	on(g, xdr.ProcNodeDeviceIsActive, (*handlers).nodeDeviceIsActive)
	on(g, xdr.ProcNodeDeviceIsPersistent, (*handlers).nodeDeviceIsPersistent)
	on(g, xdr.ProcNodeDeviceGetAutostart, (*handlers).nodeDeviceGetAutostart)
	on(g, xdr.ProcNodeDeviceDettach, (*handlers).nodeDeviceDettach)
	on(g, xdr.ProcNodeDeviceDetachFlags, (*handlers).nodeDeviceDetachFlags)
	on(g, xdr.ProcNodeDeviceReAttach, (*handlers).nodeDeviceReAttach)
}

// deviceKinds are the flags that narrow a list of devices. Kinds that no device has
// here (mediated devices, channels of mainframes, ...) are flags all the same: with
// them the list is empty.
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
	listDeviceInactive = 1 << 30 // defined and not there: no device is
	listDeviceActive   = 1 << 31
)

func (h *handlers) connectListAllNodeDevices(_ context.Context, s *request, args *xdr.ConnectListAllNodeDevicesArgs) (*xdr.ConnectListAllNodeDevicesRet, error) {
	if err := checkFlags("CONNECT_LIST_ALL_NODE_DEVICES", args.Flags, listDeviceKinds|listDeviceActive|listDeviceInactive); err != nil {
		return nil, err
	}
	var found []*resources.Device
	if args.Flags&(listDeviceActive|listDeviceInactive) != listDeviceInactive {
		found = s.devices(h.devicesByFlags(args.Flags & listDeviceKinds))
	}
	ret := &xdr.ConnectListAllNodeDevicesRet{Count: uint32(len(found))}
	if args.NeedResults {
		for _, d := range found {
			ret.Devices = append(ret.Devices, xdr.NodeDevice{Name: d.Name})
		}
	}
	return ret, nil
}

func (h *handlers) devicesByFlags(flags uint32) []*resources.Device {
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

// devices are those that the client may see.
func (s *session) devices(all []*resources.Device) []*resources.Device {
	if s.seesEverything() {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), ofPrograms)
}

// device finds a device that the client may see.
func (h *handlers) device(s *session, name string) (*resources.Device, error) {
	d, err := h.Devices.ByName(name)
	if err == nil && ofPrograms(d) && !s.seesEverything() {
		return nil, s.gate().Check(s.who(), authz.Read, authz.Object{Kind: authz.Everything, Name: "device '" + name + "'"})
	}
	return d, err
}

// ofPrograms says whether software made a device: it is no piece of hardware. The links of guests
// and networks are such devices, and so are other programs' disks. They disclose facts about their owners.
func ofPrograms(d *resources.Device) bool { return strings.Contains(d.Path, "/devices/virtual/") }

// seesEverything says whether no rule hides anything from the client.
func (s *session) seesEverything() bool {
	return !s.gate().Held(s.who()) || s.sees(authz.Object{Kind: authz.Everything})
}

// devicesByWord is the older way to narrow: by one kind's word, or by none.
func (h *handlers) devicesByWord(capability *string) []*resources.Device {
	if capability == nil {
		return h.Devices.All()
	}
	return h.Devices.Of(resources.Kind(*capability))
}

func (h *handlers) nodeNumOfDevices(_ context.Context, s *request, args *xdr.NodeNumOfDevicesArgs) (*xdr.NodeNumOfDevicesRet, error) {
	if err := checkFlags("NODE_NUM_OF_DEVICES", args.Flags, 0); err != nil {
		return nil, err
	}
	return &xdr.NodeNumOfDevicesRet{Count: int32(len(s.devices(h.devicesByWord(args.Capability))))}, nil
}

func (h *handlers) nodeListDevices(_ context.Context, s *request, args *xdr.NodeListDevicesArgs) (*xdr.NodeListDevicesRet, error) {
	if err := checkFlags("NODE_LIST_DEVICES", args.Flags, 0); err != nil {
		return nil, err
	}
	ret := &xdr.NodeListDevicesRet{}
	for _, d := range s.devices(h.devicesByWord(args.Capability)) {
		ret.Names = append(ret.Names, d.Name)
	}
	return ret, atMost(&ret.Names, args.MaxNames)
}

// atMost cuts a list of names to the length that the client has room for.
func atMost[T any](names *[]T, room int32) error {
	if room < 0 {
		return fault.New(fault.Invalid, fault.Call, "there cannot be room for %d items", room)
	}
	*names = (*names)[:min(len(*names), int(room))]
	return nil
}

func (h *handlers) nodeDeviceLookupByName(_ context.Context, s *request, args *xdr.NodeDeviceLookupByNameArgs) (*xdr.NodeDeviceLookupByNameRet, error) {
	d, err := h.device(s.session, args.Name)
	if err != nil {
		return nil, err
	}
	return &xdr.NodeDeviceLookupByNameRet{Device: xdr.NodeDevice{Name: d.Name}}, nil
}

func (h *handlers) nodeDeviceLookupSCSIHostByWWN(_ context.Context, _ *request, args *xdr.NodeDeviceLookupSCSIHostByWWNArgs) (*xdr.NodeDeviceLookupSCSIHostByWWNRet, error) {
	if err := checkFlags("NODE_DEVICE_LOOKUP_SCSI_HOST_BY_WWN", args.Flags, 0); err != nil {
		return nil, err
	}
	d, err := h.Devices.ByWWN(args.WWNN, args.WWPN)
	if err != nil {
		return nil, err
	}
	return &xdr.NodeDeviceLookupSCSIHostByWWNRet{Device: xdr.NodeDevice{Name: d.Name}}, nil
}

func (h *handlers) nodeDeviceGetXMLDesc(ctx context.Context, s *request, args *xdr.NodeDeviceGetXMLDescArgs) (*xdr.NodeDeviceGetXMLDescRet, error) {
	if err := checkFlags("NODE_DEVICE_GET_XML_DESC", args.Flags, 0); err != nil {
		return nil, err
	}
	d, err := h.device(s.session, args.Name)
	if err != nil {
		return nil, err
	}
	doc, err := inTurn(ctx, func() (string, error) { return describeDevice(d) })
	return &xdr.NodeDeviceGetXMLDescRet{XML: doc}, err
}

func (h *handlers) nodeDeviceGetParent(_ context.Context, s *request, args *xdr.NodeDeviceGetParentArgs) (*xdr.NodeDeviceGetParentRet, error) {
	d, err := h.device(s.session, args.Name)
	if err != nil {
		return nil, err
	}
	ret := &xdr.NodeDeviceGetParentRet{}
	if d.Parent != "" {
		ret.ParentName = &d.Parent
	}
	return ret, nil
}

func (h *handlers) nodeDeviceNumOfCaps(_ context.Context, s *request, args *xdr.NodeDeviceNumOfCapsArgs) (*xdr.NodeDeviceNumOfCapsRet, error) {
	d, err := h.device(s.session, args.Name)
	if err != nil {
		return nil, err
	}
	return &xdr.NodeDeviceNumOfCapsRet{Count: int32(len(d.Kinds))}, nil
}

func (h *handlers) nodeDeviceListCaps(_ context.Context, s *request, args *xdr.NodeDeviceListCapsArgs) (*xdr.NodeDeviceListCapsRet, error) {
	d, err := h.device(s.session, args.Name)
	if err != nil {
		return nil, err
	}
	ret := &xdr.NodeDeviceListCapsRet{}
	for _, k := range d.Kinds {
		ret.Names = append(ret.Names, string(k))
	}
	return ret, atMost(&ret.Names, args.MaxNames)
}

// A device that is listed is there, and is there again when the host starts.

func (h *handlers) nodeDeviceIsActive(_ context.Context, s *request, args *xdr.NodeDeviceIsActiveArgs) (*xdr.NodeDeviceIsActiveRet, error) {
	_, err := h.device(s.session, args.Name)
	return &xdr.NodeDeviceIsActiveRet{Active: true}, err
}

func (h *handlers) nodeDeviceIsPersistent(_ context.Context, s *request, args *xdr.NodeDeviceIsPersistentArgs) (*xdr.NodeDeviceIsPersistentRet, error) {
	_, err := h.device(s.session, args.Name)
	return &xdr.NodeDeviceIsPersistentRet{Persistent: true}, err
}

func (h *handlers) nodeDeviceGetAutostart(_ context.Context, s *request, args *xdr.NodeDeviceGetAutostartArgs) (*xdr.NodeDeviceGetAutostartRet, error) {
	_, err := h.device(s.session, args.Name)
	return &xdr.NodeDeviceGetAutostartRet{Autostart: true}, err
}

func (h *handlers) nodeDeviceDettach(ctx context.Context, s *request, args *xdr.NodeDeviceDettachArgs) (*void, error) {
	d, err := h.pciDevice(s.session, args.Name)
	if err != nil {
		return nil, err
	}
	return nil, provision.DetachFromHost(ctx, h.Guests, s.scope, d.Address)
}

func (h *handlers) nodeDeviceDetachFlags(ctx context.Context, s *request, args *xdr.NodeDeviceDetachFlagsArgs) (*void, error) {
	if err := checkFlags("NODE_DEVICE_DETACH_FLAGS", args.Flags, 0); err != nil {
		return nil, err
	}
	if args.DriverName != nil && *args.DriverName != "vfio" {
		return nil, fault.New(fault.Unsupported, fault.Config, "virsh nodedev-detach --driver %s: guests have PCI devices by vfio alone; leave the driver out", *args.DriverName)
	}
	return h.nodeDeviceDettach(ctx, s, &xdr.NodeDeviceDettachArgs{Name: args.Name})
}

func (h *handlers) nodeDeviceReAttach(ctx context.Context, s *request, args *xdr.NodeDeviceReAttachArgs) (*void, error) {
	d, err := h.pciDevice(s.session, args.Name)
	if err != nil {
		return nil, err
	}
	return nil, provision.ReattachToHost(ctx, h.Guests, s.scope, d.Address)
}

// pciDevice finds a device that must be a PCI function.
func (h *handlers) pciDevice(s *session, name string) (*kernel.PCIDevice, error) {
	d, err := h.device(s, name)
	if err != nil {
		return nil, err
	}
	if d.PCI == nil {
		return nil, fault.New(fault.Invalid, fault.Call, "device %s is not a PCI device", name)
	}
	return d.PCI, nil
}
