package guest_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

// TestHostCheck_NamesWhatTheHostLacks: before anything is made, and by what a user has written.
func TestHostCheck_NamesWhatTheHostLacks(t *testing.T) {
	d := newDaemonOf(t, true)
	for name, c := range map[string]struct{ xml, says string }{
		"vcpu":     {"<vcpu>2</vcpu><cputune><vcpupin vcpu='1' cpuset='7777'/></cputune>", "vCPU 1 is bound to CPUs 7777"},
		"emulator": {"<vcpu>1</vcpu><cputune><emulatorpin cpuset='7777'/></cputune>", "the emulator is bound to CPUs 7777"},
		"iothread": {"<vcpu>1</vcpu><iothreads>1</iothreads><cputune><iothreadpin iothread='1' cpuset='7777'/></cputune>", "iothread 1 is bound"},
		"whole":    {"<vcpu cpuset='7777'>1</vcpu>", "<vcpu cpuset>"},
		"memory":   {"<vcpu>1</vcpu><numatune><memory mode='strict' nodeset='77'/></numatune>", "bound to NUMA nodes 77"},
		"limit": {
			"<vcpu>1</vcpu><memtune><hard_limit unit='MiB'>32</hard_limit></memtune><memoryBacking><locked/></memoryBacking>", "memory of 64 MiB must be locked",
		},
		"kernel": {"<vcpu>1</vcpu>", "/nosuch: no such file"},
	} {
		doc := strings.Replace(small(name), "<vcpu>1</vcpu>", c.xml, 1)
		if name == "kernel" {
			doc = strings.Replace(doc, "</os>", "<kernel>/nosuch</kernel></os>", 1)
		}
		g, err := guest.Define(d.ctx(), d.Registry, scope.Daemon("a test"), doc, false)
		if err == nil {
			err = launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{})
		}
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	g := d.define(small("runs"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	refused(t, hotplug.PinVCPU(d.ctx(), g, scope.Daemon("a test"), 0, topology.Range(7777, 7777), machine.Affect{Live: true}), fault.Invalid, "vCPU 0 is bound to CPUs 7777")
	ok(t, hotplug.PinVCPU(d.ctx(), g, scope.Daemon("a test"), 0, topology.Range(0, 0), machine.Affect{Live: true}))
	d.want(g, domain.Running, domain.ReasonBooted)
}

// TestDisplay_ListensOnItsNetworkOnly: where there is no such network, or it is inactive, a guest does not
// start, rather than listen elsewhere.
func TestDisplay_ListensOnItsNetworkOnly(t *testing.T) {
	d := newDaemonOf(t, true)
	doc := func(name, net string) string {
		return strings.Replace(small(name), "</devices>", "<graphics type='vnc'><listen type='network' network='"+net+"'/></graphics></devices>", 1)
	}
	missing := d.define(doc("missing", "nonesuch"))
	refused(t, launch.Start(d.ctx(), missing, scope.Daemon("a test"), launch.StartOptions{}), fault.NotFound, `no network with name "nonesuch"`)
	_, err := d.Networks.Define(d.ctx(), scope.Daemon("a test"), "<network><name>idle</name><ip address='10.213.7.1' prefix='24'/></network>", false)
	ok(t, err)
	idle := d.define(doc("idle", "idle"))
	refused(t, launch.Start(d.ctx(), idle, scope.Daemon("a test"), launch.StartOptions{}), fault.WrongState, `network "idle" is not active`)
}

// TestStart_NamesTheMissingFile: a file that the host lacks is its fault, which clients get as a
// system error.
func TestStart_NamesTheMissingFile(t *testing.T) {
	d := newDaemonOf(t, true)
	code := filepath.Join(d.dir, "code.fd")
	ok(t, os.WriteFile(code, make([]byte, 1<<20), 0o600))
	for name, boot := range map[string]string{
		"kernel":      "<kernel>/nosuch</kernel>",
		"host-kernel": "<kernel>/usr/nosuch</kernel>",
		"initrd":      "<kernel>" + code + "</kernel><initrd>/nosuch</initrd>",
		"rom":         "<loader type='rom'>/nosuch</loader>",
		"host-rom":    "<loader type='rom'>/usr/nosuch</loader>",
		"template":    "<loader readonly='yes' type='pflash'>" + code + "</loader><nvram template='/nosuch'>" + d.dir + "/vars.fd</nvram>",
	} {
		g := d.define(strings.Replace(small(name), "</os>", boot+"</os>", 1))
		err := launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{})
		if !fault.Is(err, fault.NotFound) || fault.About(err) != fault.Host || !strings.Contains(err.Error(), "/nosuch: no such file") {
			t.Errorf("%s: %v (%v, %v)", name, err, fault.Of(err), fault.About(err))
		}
	}
	_, err := guest.Define(d.ctx(), d.Registry, scope.Daemon("a test"), strings.Replace(small("emulator"), "<devices>", "<devices><emulator>/nosuch</emulator>", 1), false)
	if !fault.Is(err, fault.NotFound) || fault.About(err) != fault.Host {
		t.Errorf("emulator: %v", err)
	}
}

// TestPlug_RefusalsSayWhatHelps: first that there is no such network, and then which slot or model
// would do.
func TestPlug_RefusalsSayWhatHelps(t *testing.T) {
	d := newDaemonOf(t, true)
	live := machine.Affect{Live: true}
	q35 := d.define(small("q35"))
	ok(t, launch.Start(d.ctx(), q35, scope.Daemon("a test"), launch.StartOptions{}))
	refused(t, hotplug.Attach(d.ctx(), q35, scope.Daemon("a test"), "<interface type='network'><source network='nosuch'/></interface>", live), fault.NotFound, `no network with name "nosuch"`)
	refused(t, hotplug.Attach(d.ctx(), q35, scope.Daemon("a test"), "<interface type='bridge'><source bridge='nosuch'/></interface>", live), fault.NotFound, `no network interface with name "nosuch"`)
	for _, dev := range []string{"<interface type='user'><model type='rtl8139'/></interface>", "<watchdog model='i6300esb'/>"} {
		err := hotplug.Attach(d.ctx(), q35, scope.Daemon("a test"), dev, live)
		refused(t, err, fault.NoCapacity, "pcie-to-pci-bridge")
		refused(t, err, fault.NoCapacity, "virtio model")
	}
	ok(t, hotplug.Attach(d.ctx(), q35, scope.Daemon("a test"), "<interface type='user'><model type='virtio'/></interface>", live))

	pc := d.define(strings.NewReplacer("'q35'", "'pc'", "<acpi/>", "").Replace(small("pc")))
	ok(t, launch.Start(d.ctx(), pc, scope.Daemon("a test"), launch.StartOptions{}))
	refused(t, hotplug.Attach(d.ctx(), pc, scope.Daemon("a test"), "<interface type='user'><model type='virtio'/></interface>", live), fault.Unsupported, "only with <acpi/>")
	path := filepath.Join(d.dir, "sda.raw")
	ok(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
	disk := "<disk type='file'><source file='" + path + "'/><target dev='sda' bus='scsi'/></disk>" // which brings a controller
	refused(t, hotplug.Attach(d.ctx(), pc, scope.Daemon("a test"), disk, live), fault.Unsupported, "cannot attach controller scsi0: a guest of machine type pc accepts PCI devices only with <acpi/>")
}
