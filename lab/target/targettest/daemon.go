// Package targettest is a daemon for tests of the lab: it answers as one with a
// host of two nodes would, has the guests, pools and networks that it was asked
// for, and runs a real agent in this process for each guest.
//
// What belongs here: answers. What does not: guests, and their files.
package targettest

import (
	"cmp"
	"context"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/remote"
	"github.com/lodge-kvm/lodge/internal/remote/pair"
	"github.com/lodge-kvm/lodge/internal/remote/remotetest"
	"github.com/lodge-kvm/lodge/lab/agent"
)

// Daemon has what it was given and asked for. Set its fields before it is called.
type Daemon struct {
	Refuse map[int32]*remote.Error // calls that it refuses
	// Hostname is its host's own; big if nothing is said.
	Hostname string
	Domains  []xdr.Domain
	Pools    []xdr.StoragePool
	Nets     []xdr.Network
	Pages    uint64 // huge ones that are free on each node

	mu      sync.Mutex
	calls   []string
	volumes map[string]map[string]*content // by pool and name
	defined map[string]string              // definitions of pools that do not run, by name
	paths   map[string]string              // of pools
}

// Listen has it answer until the test ends, at the socket whose path it gives.
func (d *Daemon) Listen(t *testing.T) string {
	t.Helper()
	return remotetest.ListenStreams(t, d.Answer, func(proc int32, args xdr.Message) io.ReadWriteCloser {
		switch proc {
		case xdr.ProcDomainOpenChannel:
			return answering(t)
		case xdr.ProcStorageVolUpload, xdr.ProcStorageVolDownload:
			return d.transfer(args.(*xdr.WithVolumeOffsetLengthFlags))
		}
		return nil
	})
}

// ListenAfar is Listen as a daemon of another host, whose address it gives.
func (d *Daemon) ListenAfar(t *testing.T) string {
	t.Helper()
	return "qemu+tcp://127.0.0.1:" + remotetest.Gate(t, d.Listen(t), remotetest.Open) + "/system"
}

// answering is the host's end of a line to an agent.
func answering(t *testing.T) net.Conn {
	near, agents, err := pair.Both()
	if err != nil {
		t.Error(err)
		return nil
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = new(agent.Agent).Serve(context.WithoutCancel(t.Context()), agents)
		agents.Close()
	}()
	t.Cleanup(func() {
		near.Close()
		<-ended
	})
	return near
}

// RefuseNothing has it answer all calls from now on.
func (d *Daemon) RefuseNothing() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.Refuse)
}

// Calls are those that made, refused or took away something, in their order.
func (d *Daemon) Calls() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.calls)
}

// Left names the guests, pools and networks that there are.
func (d *Daemon) Left() (names []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, one := range d.Domains {
		names = append(names, "domain "+one.Name)
	}
	for _, one := range d.Pools {
		names = append(names, "pool "+one.Name)
	}
	for one := range d.defined {
		names = append(names, "definition of pool "+one)
	}
	for _, one := range d.Nets {
		names = append(names, "network "+one.Name)
	}
	return names
}

// Answer is what it says to a call, for tests that say more.
func (d *Daemon) Answer(proc int32, args xdr.Message) (xdr.Message, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	name := xdr.Lookup(xdr.ProgramRemote, proc).Name
	if refused := d.Refuse[proc]; refused != nil {
		d.calls = append(d.calls, "refused "+name)
		return nil, refused
	}
	note := func(what string) { d.calls = append(d.calls, name+" "+what) }
	switch proc {
	case xdr.ProcConnectGetLibVersion:
		return &xdr.WithVersion{Version: 9001002}, nil
	case xdr.ProcConnectGetVersion:
		return &xdr.WithVersion{Version: 7002022}, nil
	case xdr.ProcConnectGetHostname:
		return &xdr.WithHostname{Hostname: cmp.Or(d.Hostname, "big")}, nil
	case xdr.ProcNodeGetInfo:
		return &xdr.NodeGetInfoRet{Memory: 8 << 20, CPUs: 4}, nil
	case xdr.ProcConnectGetCapabilities:
		return &xdr.ConnectGetCapabilitiesRet{Capabilities: `<capabilities><host><topology><cells num='3'>
			<cell id='0'><cpus num='2'><cpu id='0'/><cpu id='2'/></cpus></cell>
			<cell id='1'><cpus num='2'><cpu id='1'/><cpu id='3'/></cpus></cell>
			<cell id='2'><memory>1</memory></cell></cells></topology></host></capabilities>`}, nil
	case xdr.ProcNodeGetFreePages:
		return &xdr.NodeGetFreePagesRet{Counts: []uint64{d.Pages}}, nil
	case xdr.ProcStoragePoolCreateXML:
		pool := xdr.StoragePool{Name: nameOf(args.(*xdr.StoragePoolCreateXMLArgs).XML)}
		if _, defined := d.defined[pool.Name]; defined || d.runs(pool.Name) {
			return nil, &remote.Error{Code: 9, Message: "the pool exists"}
		}
		d.Pools = append(d.Pools, pool)
		d.open(pool.Name, pathOf(args.(*xdr.StoragePoolCreateXMLArgs).XML))
		return &xdr.StoragePoolCreateXMLRet{Pool: pool}, nil
	case xdr.ProcNetworkCreateXML:
		net := xdr.Network{Name: nameOf(args.(*xdr.NetworkCreateXMLArgs).XML)}
		d.Nets = append(d.Nets, net)
		return &xdr.NetworkCreateXMLRet{Network: net}, nil
	case xdr.ProcStorageVolCreateXML:
		document := args.(*xdr.StorageVolCreateXMLArgs).XML
		note(nameOf(document))
		return &xdr.StorageVolCreateXMLRet{Volume: d.add(args.(*xdr.StorageVolCreateXMLArgs).Pool.Name, nameOf(document))}, nil
	case xdr.ProcStorageVolDelete:
		gone := args.(*xdr.StorageVolDeleteArgs).Volume
		note(gone.Name)
		delete(d.volumes[gone.Pool], gone.Name)
	case xdr.ProcStoragePoolGetXMLDesc, xdr.ProcStoragePoolDefineXML, xdr.ProcStoragePoolDelete, xdr.ProcStoragePoolUndefine,
		xdr.ProcStoragePoolListAllVolumes, xdr.ProcStoragePoolGetInfo, xdr.ProcStorageVolGetInfo, xdr.ProcStoragePoolLookupByName,
		xdr.ProcStoragePoolIsActive, xdr.ProcStoragePoolCreate, xdr.ProcStoragePoolRefresh:
		return d.store(proc, args)
	case xdr.ProcNodeGetMemoryStats:
		stats := []xdr.NodeMemoryStat{{Field: "total", Value: 8 << 20}, {Field: "free", Value: 3 << 20}}
		return &xdr.NodeGetMemoryStatsRet{Params: stats[:args.(*xdr.NodeGetMemoryStatsArgs).NParams], NParams: int32(len(stats))}, nil
	case xdr.ProcNodeGetCPUStats:
		return &xdr.NodeGetCPUStatsRet{}, nil
	case xdr.ProcConnectGetAllDomainStats:
		return &xdr.ConnectGetAllDomainStatsRet{}, nil
	case xdr.ProcConnectGetSysinfo:
		return nil, &remote.Error{Code: 3, Message: "no firmware"}
	case xdr.ProcDomainCreateXML:
		one := xdr.Domain{Name: nameOf(args.(*xdr.DomainCreateXMLArgs).XML), ID: 1}
		d.Domains = append(d.Domains, one)
		return &xdr.DomainCreateXMLRet{Domain: one}, nil
	case xdr.ProcDomainDestroy:
		gone := args.(*xdr.DomainDestroyArgs).Domain.Name
		note(gone)
		d.Domains = slices.DeleteFunc(d.Domains, func(one xdr.Domain) bool { return one.Name == gone })
	case xdr.ProcStoragePoolDestroy:
		gone := args.(*xdr.StoragePoolDestroyArgs).Pool.Name
		note(gone)
		d.Pools = slices.DeleteFunc(d.Pools, func(one xdr.StoragePool) bool { return one.Name == gone })
	case xdr.ProcNetworkDestroy:
		gone := args.(*xdr.NetworkDestroyArgs).Network.Name
		note(gone)
		d.Nets = slices.DeleteFunc(d.Nets, func(one xdr.Network) bool { return one.Name == gone })
	case xdr.ProcConnectListAllDomains:
		return &xdr.ConnectListAllDomainsRet{Domains: slices.Clone(d.Domains)}, nil
	case xdr.ProcConnectListAllStoragePools:
		pools := slices.Clone(d.Pools)
		for name := range d.defined {
			if !d.runs(name) {
				pools = append(pools, xdr.StoragePool{Name: name})
			}
		}
		return &xdr.ConnectListAllStoragePoolsRet{Pools: pools}, nil
	case xdr.ProcConnectListAllNetworks:
		return &xdr.ConnectListAllNetworksRet{Networks: slices.Clone(d.Nets)}, nil
	case xdr.ProcDomainSetVCPUsFlags:
		note("")
	case xdr.ProcAuthList:
		return &xdr.AuthListRet{}, nil
	case xdr.ProcConnectGetDomainCapabilities:
		return &xdr.ConnectGetDomainCapabilitiesRet{}, nil
	}
	return nil, nil
}

func nameOf(document string) string {
	_, name, _ := strings.Cut(document, "<name>")
	name, _, _ = strings.Cut(name, "</name>")
	return name
}
