package target

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/lodge-kvm/lodge/lab/remote"
	"github.com/lodge-kvm/lodge/lab/remote/remotetest"
	"github.com/lodge-kvm/lodge/lab/scenario"
	"github.com/lodge-kvm/lodge/xdr"
)

// daemon answers as one with a host of two nodes would, and refuses the calls it
// is told to.
type daemon struct {
	mu      sync.Mutex
	calls   []string
	refuse  map[int32]*remote.Error
	domains []xdr.Domain
	pools   []xdr.StoragePool
	nets    []xdr.Network
}

func (d *daemon) answer(proc int32, args xdr.Message) (xdr.Message, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	name := xdr.Lookup(xdr.ProgramRemote, proc).Name
	if refused := d.refuse[proc]; refused != nil {
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
		return &xdr.WithHostname{Hostname: "big"}, nil
	case xdr.ProcNodeGetInfo:
		return &xdr.NodeGetInfoRet{Memory: 8 << 20, CPUs: 4}, nil
	case xdr.ProcConnectGetCapabilities:
		return &xdr.ConnectGetCapabilitiesRet{Capabilities: `<capabilities><host><topology><cells num='3'>
			<cell id='0'><cpus num='2'><cpu id='0'/><cpu id='2'/></cpus></cell>
			<cell id='1'><cpus num='2'><cpu id='1'/><cpu id='3'/></cpus></cell>
			<cell id='2'><memory>1</memory></cell></cells></topology></host></capabilities>`}, nil
	case xdr.ProcStoragePoolCreateXML:
		pool := xdr.StoragePool{Name: nameOf(args.(*xdr.StoragePoolCreateXMLArgs).XML)}
		d.pools = append(d.pools, pool)
		return &xdr.StoragePoolCreateXMLRet{Pool: pool}, nil
	case xdr.ProcNetworkCreateXML:
		net := xdr.Network{Name: nameOf(args.(*xdr.NetworkCreateXMLArgs).XML)}
		d.nets = append(d.nets, net)
		return &xdr.NetworkCreateXMLRet{Network: net}, nil
	case xdr.ProcStorageVolCreateXML:
		document := args.(*xdr.StorageVolCreateXMLArgs).XML
		note(nameOf(document))
		return &xdr.StorageVolCreateXMLRet{}, nil
	case xdr.ProcStorageVolDelete:
		note(args.(*xdr.StorageVolDeleteArgs).Volume.Name)
	case xdr.ProcDomainCreateXML:
		one := xdr.Domain{Name: nameOf(args.(*xdr.DomainCreateXMLArgs).XML), ID: 1}
		d.domains = append(d.domains, one)
		return &xdr.DomainCreateXMLRet{Domain: one}, nil
	case xdr.ProcDomainDestroy:
		note(args.(*xdr.DomainDestroyArgs).Domain.Name)
	case xdr.ProcStoragePoolDestroy:
		note(args.(*xdr.StoragePoolDestroyArgs).Pool.Name)
	case xdr.ProcNetworkDestroy:
		note(args.(*xdr.NetworkDestroyArgs).Network.Name)
	case xdr.ProcConnectListAllDomains:
		return &xdr.ConnectListAllDomainsRet{Domains: d.domains}, nil
	case xdr.ProcConnectListAllStoragePools:
		return &xdr.ConnectListAllStoragePoolsRet{Pools: d.pools}, nil
	case xdr.ProcConnectListAllNetworks:
		return &xdr.ConnectListAllNetworksRet{Networks: d.nets}, nil
	case xdr.ProcDomainSetVCPUsFlags:
		note("")
	case xdr.ProcAuthList:
		return &xdr.AuthListRet{}, nil
	case xdr.ProcConnectGetDomainCapabilities:
		return &xdr.ConnectGetDomainCapabilitiesRet{}, nil
	}
	return nil, nil
}

func (d *daemon) made() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.calls)
}

func nameOf(document string) string {
	_, name, _ := strings.Cut(document, "<name>")
	name, _, _ = strings.Cut(name, "</name>")
	return name
}

func connect(t *testing.T, d *daemon) *Target {
	t.Helper()
	target, err := Connect(t.Context(), "x", remotetest.Listen(t, d.answer))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(target.Close)
	return target
}

func open(t *testing.T, target *Target) *Site {
	t.Helper()
	s, err := target.Open(t.Context(), "lab-abc", t.TempDir(), Image{Kernel: "/image/vmlinuz", Initrd: "/image/initrd", Usr: "/image/usr.erofs", Root: "/image/root.qcow2"})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

var regexpTSC = regexp.MustCompile(` tsc_early_khz=\d+`)

var spec = scenario.Guest{
	Role: "db", Count: 1, Memory: 256 * scenario.MiB, VCPUs: 1, MaxVCPUs: 4, TBCache: 64 * scenario.MiB, Node: "spread", Pages: "2MiB", CPU: "host-passthrough",
	Disks: []scenario.Disk{
		{Name: "data", Size: scenario.GiB, Bus: "virtio", Format: "qcow2", Allocate: "full", Cache: "none", IO: "native", IOThread: true},
		{Name: "more", Size: scenario.GiB, Bus: "scsi", Format: "raw", Allocate: "thin", Cache: "writethrough", IO: "threads"},
	},
}

func TestADaemonIsDescribed(t *testing.T) {
	target := connect(t, &daemon{})
	if target.Library != "9.1.2" || target.Hypervisor != "7.2.22" || target.Host != "big" || target.Accelerator != "kvm" || target.Memory() != 8<<30 || target.Processors() != 4 {
		t.Errorf("got %+v with %d bytes", target.Target, target.Memory())
	}
	if len(target.Cells) != 2 || target.Cells[1] != (Cell{1, "1,3"}) {
		t.Errorf("nodes %+v: one without processors holds no guest", target.Cells)
	}
	slow := connect(t, &daemon{refuse: map[int32]*remote.Error{xdr.ProcConnectGetDomainCapabilities: {Code: 67, Message: "no kvm"}}})
	if slow.Accelerator != "tcg" {
		t.Errorf("without KVM it is %s", slow.Accelerator)
	}
}

// The document is what an operator would check by eye: it stands in testdata.
func TestTheDefinitionOfAGuest(t *testing.T) {
	d := &daemon{refuse: map[int32]*remote.Error{xdr.ProcConnectGetDomainCapabilities: {Code: 67}}}
	s := open(t, connect(t, d))
	g, err := s.Start(t.Context(), "lab-abc-t2-db", 12, 2, spec)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.ReplaceAll(g.XML, s.dir, "/files")
	got = regexpTSC.ReplaceAllString(got, "")
	path := filepath.Join("testdata", "guest.xml")
	want, err := os.ReadFile(path)
	if err != nil || string(want) != got {
		t.Errorf("%v: the definition is now\n%s", err, got)
	}
	if want := []string{"refused CONNECT_GET_DOMAIN_CAPABILITIES", "STORAGE_VOL_CREATE_XML lab-abc-t2-db-root.qcow2", "STORAGE_VOL_CREATE_XML lab-abc-t2-db-data.qcow2", "STORAGE_VOL_CREATE_XML lab-abc-t2-db-more.raw"}; !slices.Equal(d.made(), want) {
		t.Errorf("made %q", d.made())
	}
}

func TestAGuestThatDoesNotStartLeavesNothing(t *testing.T) {
	d := &daemon{refuse: map[int32]*remote.Error{xdr.ProcDomainCreateXML: {Code: 67, Message: "no such machine"}}}
	s := open(t, connect(t, d))
	_, err := s.Start(t.Context(), "lab-abc-t1-db", 1, 1, spec)
	skipped, ok := errors.AsType[*Skipped](err)
	if !ok || !strings.Contains(skipped.Reason, "no such machine") {
		t.Errorf("got %v", err)
	}
	deleted := 0
	for _, call := range d.made() {
		if strings.HasPrefix(call, "STORAGE_VOL_DELETE") {
			deleted++
		}
	}
	if deleted != 3 {
		t.Errorf("calls %q: three disks were made", d.made())
	}
}

func TestWhatCannotBeDoneHereIsSkipped(t *testing.T) {
	d := &daemon{refuse: map[int32]*remote.Error{xdr.ProcDomainSetVCPUsFlags: {Code: 84, Message: "not this machine"}}}
	s := open(t, connect(t, d))
	for what, change := range map[string]func(*scenario.Guest){
		"AHCI":           func(g *scenario.Guest) { g.Disks[0].Bus = "sata" },
		"no IDE":         func(g *scenario.Guest) { g.Disks[0].Bus = "ide" },
		"no node 7":      func(g *scenario.Guest) { g.Node = "7" },
		"not this machi": nil,
	} {
		g := spec
		g.Disks = slices.Clone(spec.Disks)
		var err error
		if change != nil {
			change(&g)
			_, err = s.Start(t.Context(), "lab-abc-t1-x", 1, 1, g)
		} else {
			err = (&Guest{site: s}).Change(t.Context(), scenario.Event{Do: scenario.DoVCPUs, To: "2"})
		}
		if skipped, ok := errors.AsType[*Skipped](err); !ok || !strings.Contains(skipped.Reason, what) {
			t.Errorf("%s: got %v", what, err)
		}
	}
}

func TestSweepTakesOnlyTheRunsOwn(t *testing.T) {
	d := &daemon{
		domains: []xdr.Domain{{Name: "lab-abc-t1-db"}, {Name: "mine"}, {Name: "lab-abcd-t1-db"}},
		pools:   []xdr.StoragePool{{Name: "lab-abc-files"}, {Name: "default"}},
		nets:    []xdr.Network{{Name: "lab-abc"}, {Name: "default"}},
	}
	if err := connect(t, d).Sweep(t.Context(), "lab-abc"); err != nil {
		t.Fatal(err)
	}
	if want := []string{"DOMAIN_DESTROY lab-abc-t1-db", "STORAGE_POOL_DESTROY lab-abc-files", "NETWORK_DESTROY lab-abc"}; !slices.Equal(d.made(), want) {
		t.Errorf("calls %q", d.made())
	}
}

func TestAddressesDiffer(t *testing.T) {
	s := &Site{subnet: subnet("lab-abc"), run: "lab-abc"}
	seen := map[string]bool{}
	for i := range 4097 {
		for _, one := range []string{s.address(i), s.hardware(i)} {
			if seen[one] || strings.HasSuffix(one, ".255") || strings.HasSuffix(one, ".0") {
				t.Fatalf("guest %d has %s", i, one)
			}
			seen[one] = true
		}
	}
	if len(s.bridge()) > 15 {
		t.Errorf("bridge %s is too long", s.bridge())
	}
}
