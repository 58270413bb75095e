package conformance

import (
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/digitalocean/go-libvirt"
)

// documentedStatistics are the names of libvirt's documentation for the statistics of all domains, by group, with
// the Go types of their values.
var documentedStatistics = []struct {
	group libvirt.DomainStatsTypes
	names string
	typ   any
}{
	{libvirt.DomainStatsState, `state\.(state|reason)`, int32(0)},
	{libvirt.DomainStatsCPUTotal, `cpu\.(time|user|system|haltpoll\.(success|fail)\.time)`, uint64(0)},
	{
		libvirt.DomainStatsBalloon,
		`balloon\.(current|maximum|swap_in|swap_out|major_fault|minor_fault|unused|available|rss|usable|last-update|disk_caches|hugetlb_pgalloc|hugetlb_pgfail)`,
		uint64(0),
	},
	{libvirt.DomainStatsVCPU, `vcpu\.(current|maximum)`, uint32(0)},
	{libvirt.DomainStatsVCPU, `vcpu\.\d+\.state`, int32(0)},
	{libvirt.DomainStatsVCPU, `vcpu\.\d+\.(time|wait|delay)`, uint64(0)},
	{libvirt.DomainStatsInterface, `net\.count`, uint32(0)},
	{libvirt.DomainStatsInterface, `net\.\d+\.name`, ""},
	{libvirt.DomainStatsInterface, `net\.\d+\.[rt]x\.(bytes|pkts|errs|drop)`, uint64(0)},
	{libvirt.DomainStatsBlock, `block\.count`, uint32(0)},
	{libvirt.DomainStatsBlock, `block\.\d+\.(name|path)`, ""},
	{libvirt.DomainStatsBlock, `block\.\d+\.backingIndex`, uint32(0)},
	{libvirt.DomainStatsBlock, `block\.\d+\.((rd|wr)\.(reqs|bytes|times)|fl\.(reqs|times)|allocation|capacity|physical|threshold)`, uint64(0)},
	{libvirt.DomainStatsIothread, `iothread\.count`, uint32(0)},
	{libvirt.DomainStatsIothread, `iothread\.\d+\.poll-max-ns`, uint64(0)},
	{libvirt.DomainStatsIothread, `iothread\.\d+\.poll-(grow|shrink)`, uint32(0)},
}

// undocumented describes the fault of a statistic that was requested with these groups; empty: it has none.
func undocumented(p libvirt.TypedParam, groups libvirt.DomainStatsTypes) string {
	for _, d := range documentedStatistics {
		if groups&d.group == 0 || !regexp.MustCompile("^"+d.names+"$").MatchString(p.Field) {
			continue
		}
		if got := reflect.TypeOf(p.Value.I); got != reflect.TypeOf(d.typ) {
			return fmt.Sprintf("%s is of type %v, want %T", p.Field, got, d.typ)
		}
		return ""
	}
	return p.Field + " is not a name that libvirt documents for these groups"
}

// readByExporters makes the calls of the exporters for Prometheus. They read each group of each domain without
// waiting, split names at dots and assert the types of values. A name of another form makes them panic.
func readByExporters(t *testing.T, d *daemon) {
	d.define(t, shape{
		name: "watched", vcpus: "<vcpu>2</vcpu><iothreads>1</iothreads>",
		devices: "<interface type='user'/><disk type='file' device='disk'><driver name='qemu' type='raw'/>" +
			"<source file='" + d.blank(t, "watched.raw", 1<<20) + "'/><target dev='vda' bus='virtio'/></disk>",
	})
	d.virsh(t, "start", "--paused", "watched")
	l, err := connected(d.socket(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Disconnect() }()
	domains, _, err := l.ConnectListAllDomains(1, libvirt.ConnectListDomainsActive)
	if err != nil || len(domains) != 1 {
		t.Fatalf("domains %v, %v", domains, err)
	}
	all := libvirt.DomainStatsTypes(0)
	for _, d := range documentedStatistics {
		all |= d.group
	}
	ask := func(domains []libvirt.Domain, groups libvirt.DomainStatsTypes, flags libvirt.ConnectGetAllDomainStatsFlags) (names []string) {
		t.Helper()
		records, err := l.ConnectGetAllDomainStats(domains, uint32(groups), uint32(flags))
		if err != nil || len(records) != 1 {
			t.Fatalf("statistics of groups %#x: %v, %v", groups, records, err)
		}
		for _, p := range records[0].Params {
			names = append(names, p.Field)
			if wrong := undocumented(p, groups); wrong != "" {
				t.Error(wrong)
			}
		}
		return names
	}
	nowait := libvirt.ConnectGetAllDomainsStatsNowait
	eventually(t, "figures of the guest's disk and processor time", func() bool {
		names := strings.Join(ask(nil, all, 0), " ")
		return strings.Contains(names, "cpu.time") && strings.Contains(names, "block.0.rd.reqs")
	})
	ask(nil, all, nowait|libvirt.ConnectGetAllDomainsStatsBacking)
	for group := libvirt.DomainStatsState; group <= libvirt.DomainStatsIothread; group <<= 1 {
		if all&group != 0 && len(ask(domains, group, nowait)) == 0 {
			t.Errorf("group %#x has no figures", group)
		}
	}
	for _, call := range []func() error{
		func() error { _, err := l.DomainGetXMLDesc(domains[0], 0); return err },
		func() error { _, _, _, _, _, err := l.DomainGetInfo(domains[0]); return err },
		func() error { _, err := l.DomainIsActive(domains[0]); return err },
		func() error { _, err := l.DomainMemoryStats(domains[0], 11, 0); return err },
		func() error { _, _, _, _, _, err := l.DomainBlockStats(domains[0], "vda"); return err },
		func() error { _, _, _, _, _, _, _, _, _, _, _, _, err := l.DomainGetJobInfo(domains[0]); return err },
		func() error { _, _, err := l.ConnectListAllStoragePools(1, 0); return err },
		func() error { _, err := l.ConnectGetLibVersion(); return err },
	} {
		if err := call(); err != nil {
			t.Errorf("a call of the exporters fails: %v", err)
		}
	}
	d.virsh(t, "destroy", "watched")
}
