package target

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/remote"
	"github.com/lodge-kvm/lodge/lab/image"
	"github.com/lodge-kvm/lodge/lab/scenario"
	"github.com/lodge-kvm/lodge/lab/target/targettest"
)

func connect(t *testing.T, d *targettest.Daemon) *Target {
	t.Helper()
	return connectTo(t, d.Listen(t))
}

func connectTo(t *testing.T, path string) *Target {
	t.Helper()
	target, err := Connect(t.Context(), "x", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(target.Close)
	return target
}

func open(t *testing.T, target *Target) *Site {
	t.Helper()
	s, err := target.Open(t.Context(), "lab-abc", 1, t.TempDir(), Image{Kernel: "/image/vmlinuz", Initrd: "/image/initrd", Usr: "/image/usr.erofs", Root: "/image/root.qcow2"})
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
	target := connect(t, &targettest.Daemon{})
	if target.Library != "9.1.2" || target.Hypervisor != "7.2.22" || target.Host != "big" || target.Accelerator != "kvm" || target.Memory() != 8<<30 || target.Processors() != 4 {
		t.Errorf("got %+v with %d bytes", target.Target, target.Memory())
	}
	if len(target.Cells) != 2 || target.Cells[1] != (Cell{1, "1,3"}) {
		t.Errorf("nodes %+v: one without processors holds no guest", target.Cells)
	}
	slow := connect(t, &targettest.Daemon{Refuse: map[int32]*remote.Error{xdr.ProcConnectGetDomainCapabilities: {Code: 67, Message: "no kvm"}}})
	if slow.Accelerator != "tcg" {
		t.Errorf("without KVM it is %s", slow.Accelerator)
	}
}

// The document is what an operator would check by eye: it stands in testdata.
func TestTheDefinitionOfAGuest(t *testing.T) {
	d := &targettest.Daemon{Refuse: map[int32]*remote.Error{xdr.ProcConnectGetDomainCapabilities: {Code: 67}}}
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
	if want := []string{"refused CONNECT_GET_DOMAIN_CAPABILITIES", "STORAGE_VOL_CREATE_XML lab-abc-t2-db-root.qcow2", "STORAGE_VOL_CREATE_XML lab-abc-t2-db-data.qcow2", "STORAGE_VOL_CREATE_XML lab-abc-t2-db-more.raw"}; !slices.Equal(d.Calls(), want) {
		t.Errorf("made %q", d.Calls())
	}
}

func TestAGuestThatDoesNotStartLeavesNothing(t *testing.T) {
	d := &targettest.Daemon{Refuse: map[int32]*remote.Error{xdr.ProcDomainCreateXML: {Code: 67, Message: "no such machine"}}}
	s := open(t, connect(t, d))
	_, err := s.Start(t.Context(), "lab-abc-t1-db", 1, 1, spec)
	skipped, ok := errors.AsType[*Skipped](err)
	if !ok || !strings.Contains(skipped.Reason, "no such machine") {
		t.Errorf("got %v", err)
	}
	deleted := 0
	for _, call := range d.Calls() {
		if strings.HasPrefix(call, "STORAGE_VOL_DELETE") {
			deleted++
		}
	}
	if deleted != 3 {
		t.Errorf("calls %q: three disks were made", d.Calls())
	}
	if left, err := os.ReadDir(s.dir); err != nil || len(left) > 0 {
		t.Errorf("%v, left: %v", err, left)
	}
}

func TestWhatCannotBeDoneHereIsSkipped(t *testing.T) {
	d := &targettest.Daemon{Refuse: map[int32]*remote.Error{xdr.ProcDomainSetVCPUsFlags: {Code: 84, Message: "not this machine"}}}
	s := open(t, connect(t, d))
	for what, change := range map[string]func(*scenario.Guest){
		"AHCI":           func(g *scenario.Guest) { g.Kernel, g.Disks[0].Bus = scenario.KernelCloud, "sata" },
		"generic kernel": func(g *scenario.Guest) { g.Disks[0].Bus = "sata" },
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
			err = (&Guest{site: s, at: s.target}).Change(t.Context(), scenario.Event{Do: scenario.DoVCPUs, To: "2"})
		}
		if skipped, ok := errors.AsType[*Skipped](err); !ok || !strings.Contains(skipped.Reason, what) {
			t.Errorf("%s: got %v", what, err)
		}
	}
}

func TestAnIDEDiskWantsTheOlderMachine(t *testing.T) {
	s := open(t, connect(t, &targettest.Daemon{}))
	g := spec
	g.Disks = []scenario.Disk{{Name: "data", Size: scenario.GiB, Bus: "ide", Format: "raw", Cache: "none", IO: "threads"}}
	guest, err := s.Start(t.Context(), "lab-abc-t1-x", 1, 1, g)
	if err != nil || !strings.Contains(guest.XML, "machine='pc'") || !strings.Contains(guest.XML, "<target dev='hda' bus='ide'/>") {
		t.Errorf("%v: %s", err, guest.XML)
	}
}

// A guest with a disk on SATA boots the kernel that has a driver for it, and so does
// one that is told to; the others boot the faster one.
// Promise: L52
func TestASATADiskWantsTheGenericKernel(t *testing.T) {
	s := open(t, connect(t, &targettest.Daemon{}))
	s.image.Generic = image.Kernel{Kernel: "/image/vmlinuz-generic", Initrd: "/image/initrd-generic"}
	for number, c := range []struct {
		bus, kernel string
		want        []string
	}{
		{"sata", "", []string{"<kernel>/image/vmlinuz-generic</kernel>", "<initrd>/image/initrd-generic</initrd>", "machine='q35'", "<target dev='sda' bus='sata'/>"}},
		{"virtio", scenario.KernelGeneric, []string{"<kernel>/image/vmlinuz-generic</kernel>", "<target dev='vdc' bus='virtio'/>"}},
		{"scsi", scenario.KernelCloud, []string{"<kernel>/image/vmlinuz</kernel>", "<initrd>/image/initrd</initrd>", "model='virtio-scsi'"}},
		{"ide", "", []string{"<kernel>/image/vmlinuz</kernel>"}},
	} {
		g := spec
		g.Kernel = c.kernel
		g.Disks = []scenario.Disk{{Name: "data", Size: scenario.GiB, Bus: c.bus, Format: "raw", Cache: "none", IO: "threads"}}
		guest, err := s.Start(t.Context(), fmt.Sprintf("lab-abc-t1-x%d", number), number+1, 1, g)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range c.want {
			if !strings.Contains(guest.XML, want) {
				t.Errorf("%s, kernel %q: no %s in %s", c.bus, c.kernel, want, guest.XML)
			}
		}
		if scsi := strings.Contains(guest.XML, "virtio-scsi"); scsi != (c.bus == "scsi") {
			t.Errorf("%s has a SCSI controller: %v", c.bus, scsi)
		}
	}
}

// Promise: L45
func TestADeviceInUseIsNotTaken(t *testing.T) {
	s := open(t, connect(t, &targettest.Daemon{}))
	for store, want := range map[string]string{"/dev/null": "no block device", "/dev/none-of-these": "not there"} {
		g := spec
		g.Disks = []scenario.Disk{{Name: "data", Size: scenario.GiB, Bus: "virtio", Format: "raw", Cache: "none", IO: "threads", Store: store}}
		if _, err := s.Start(t.Context(), "lab-abc-t1-x", 1, 1, g); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", store, err)
		}
	}
}

func TestSweepTakesOnlyTheRunsOwn(t *testing.T) {
	d := &targettest.Daemon{
		Domains: []xdr.Domain{{Name: "lab-abc-t1-db"}, {Name: "mine"}, {Name: "lab-abcd-t1-db"}},
		Pools:   []xdr.StoragePool{{Name: "lab-abc-files"}, {Name: "default"}},
		Nets:    []xdr.Network{{Name: "lab-abc-1"}, {Name: "lab-abcd-1"}, {Name: "default"}},
	}
	if err := connect(t, d).Sweep(t.Context(), "lab-abc"); err != nil {
		t.Fatal(err)
	}
	if want := []string{"DOMAIN_DESTROY lab-abc-t1-db", "STORAGE_POOL_DESTROY lab-abc-files", "NETWORK_DESTROY lab-abc-1"}; !slices.Equal(d.Calls(), want) {
		t.Errorf("calls %q", d.Calls())
	}
}

func TestAddressesDiffer(t *testing.T) {
	seen := map[string]bool{}
	for number := 1; number <= 3; number++ {
		s := &Site{subnet: Subnet("lab-abc", number), name: fmt.Sprintf("lab-abc-%d", number)}
		for i := range 4097 {
			for _, one := range []string{s.address(i), s.hardware(i)} {
				if seen[one] || strings.HasSuffix(one, ".255") || strings.HasSuffix(one, ".0") {
					t.Fatalf("guest %d of target %d has %s", i, number, one)
				}
				seen[one] = true
			}
		}
		if seen[s.bridge()] || len(s.bridge()) > 15 {
			t.Errorf("bridge %s is another's, or too long", s.bridge())
		}
		seen[s.bridge()] = true
	}
}

// Two daemons of one host, or one that is measured twice, have the run's guests in
// turns: what belongs to one is not the other's.
// Promise: L43
func TestTargetsOfARunShareNothing(t *testing.T) {
	d := &targettest.Daemon{}
	target := connect(t, d)
	dir := t.TempDir()
	var sites []*Site
	for number := 1; number <= 2; number++ {
		s, err := target.Open(t.Context(), "lab-abc", number, dir, Image{})
		if err != nil {
			t.Fatal(err)
		}
		sites = append(sites, s)
	}
	if sites[0].dir == sites[1].dir || !slices.Equal(d.Left(), []string{"pool lab-abc-1-files", "pool lab-abc-2-files", "network lab-abc-1", "network lab-abc-2"}) {
		t.Errorf("%v, %s and %s", d.Left(), sites[0].dir, sites[1].dir)
	}
	if err := sites[0].Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(sites[1].dir); err != nil {
		t.Errorf("the first took the second's files with it: %v", err)
	}
	if err := sites[1].Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("there is left %v", left)
	}
}
