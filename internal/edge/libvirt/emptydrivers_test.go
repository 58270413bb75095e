package libvirt

import (
	"os/exec"
	"testing"

	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/mechanism/hostnet/linktest"
)

// TestEmptyDrivers_Lists reads lists of objects that Lodge never makes, as Cockpit and
// Vagrant do, and looks up one.
func TestEmptyDrivers_Lists(t *testing.T) {
	serve(t).virshSays([]virshOutput{
		{[]string{"iface-list", "--all"}, "Name State MAC Address\n---"},
		{[]string{"iface-list"}, "Name State MAC Address\n---"},
		{[]string{"-r", "iface-list", "--inactive"}, "Name State MAC Address\n---"},
		{[]string{"nwfilter-list"}, "UUID Name\n---"},
		{[]string{"nwfilter-binding-list"}, "Port Dev Filter\n---"},
		{[]string{"iface-dumpxml", "eth7"}, `error: Interface not found: no interface with name "eth7"`},
		{[]string{"iface-name", "52:54:00:00:00:07"}, `error: Interface not found: no interface with MAC address "52:54:00:00:00:07"`},
		{[]string{"nwfilter-dumpxml", "clean-traffic"}, `error: Network filter not found: no network filter with name "clean-traffic"`},
		{[]string{"nwfilter-binding-dumpxml", "vnet0"}, `error: Network filter binding not found: no network filter binding for port "vnet0"`},
		{[]string{"iface-begin"}, "error: this function is not supported by the connection driver: "},
	})
}

func TestEmptyDrivers_Python(t *testing.T) {
	const python = "/usr/bin/python3"
	if err := exec.CommandContext(t.Context(), python, "-c", "import libvirt").Run(); err != nil {
		t.Skip("python3-libvirt is not installed")
	}
	const script = `
import libvirt, sys
libvirt.registerErrorHandler(lambda *a: None, None)
c = libvirt.open("qemu:///system?socket=" + sys.argv[1])
print(c.listAllInterfaces(), c.listInterfaces(), c.numOfInterfaces(), c.listDefinedInterfaces(), c.numOfDefinedInterfaces())
print(c.listAllNWFilters(), c.listNWFilters(), c.numOfNWFilters(), c.listAllNWFilterBindings())
codes = []
for look in (lambda: c.interfaceLookupByName("eth7"), lambda: c.interfaceLookupByMACString("52:54:00:00:00:07"),
             lambda: c.nwfilterLookupByName("f"), lambda: c.nwfilterLookupByUUIDString("9a05da11-e96b-47f3-8253-a3a482e445f5"),
             lambda: c.nwfilterBindingLookupByPortDev("vnet0")):
    try: look()
    except libvirt.libvirtError as e: codes.append((e.get_error_code(), e.get_error_domain()))
print(codes)
`
	h := serve(t)
	out, err := h.run(python, "-c", script, h.socket)
	const want = "[] [] 0 [] 0\n[] [] 0 []\n[(57, 26), (57, 26), (62, 33), (62, 33), (101, 33)]"
	if err != nil || out != want {
		t.Errorf("%v\n%s\nwant\n%s", err, out, want)
	}
}

// TestNetworkPorts_NetworkWithoutNICs: a network without NICs has no ports, and for an inactive one the call fails.
func TestNetworkPorts_NetworkWithoutNICs(t *testing.T) {
	if !linktest.Alone(t) {
		return
	}
	h := withNetworks(t)
	w := h.open("")
	var on, off xdr.WithNetwork
	w.must(xdr.ProcNetworkCreateXML, &xdr.WithXML{XML: "<network><name>on</name></network>"}, &on)
	w.must(xdr.ProcNetworkDefineXML, &xdr.WithXML{XML: "<network><name>off</name></network>"}, &off)
	var ports xdr.NetworkListAllPortsRet
	w.must(xdr.ProcNetworkListAllPorts, &xdr.NetworkListAllPortsArgs{Network: on.Network, NeedResults: true}, &ports)
	if ports.Count != 0 || len(ports.Ports) != 0 {
		t.Errorf("ports: %+v", ports)
	}
	w.refused(xdr.ProcNetworkListAllPorts, &xdr.NetworkListAllPortsArgs{Network: off.Network}, rpc.CodeOperationInvalid)
	w.refused(xdr.ProcNetworkPortLookupByUUID, &xdr.NetworkPortLookupByUUIDArgs{Network: on.Network}, rpc.CodeNoNetworkPort)
	w.must(xdr.ProcNetworkDestroy, &on, nil)
}
