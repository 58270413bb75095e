package guest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
	"github.com/lodge-kvm/lodge/internal/guest/statistics"
	"github.com/lodge-kvm/lodge/internal/host/resources"
	"github.com/lodge-kvm/lodge/internal/mechanism/agent"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemuprocess"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/event"
	"github.com/lodge-kvm/lodge/internal/word/scope"
	"github.com/lodge-kvm/lodge/internal/word/topology"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

const (
	takenUUID     = "11111111-2222-3333-4444-555555555555"
	takenEmulator = "/usr/bin/qemu-system-x86_64"
	// takenPID is a number that no kernel assigns, so signals to it reach no process.
	takenPID = 1<<22 + 1
)

// takenXML is a guest with something of all that a QEMU may tell of.
const takenXML = `<domain type='qemu' id='1'><name>a</name><uuid>` + takenUUID + `</uuid><memory>1048576</memory><currentMemory>524288</currentMemory>
<maxMemory slots='4'>4194304</maxMemory><vcpu current='2'>4</vcpu><iothreads>2</iothreads><os><type arch='x86_64' machine='pc-q35-7.2'>hvm</type></os><features><acpi/></features>
<cpu><numa><cell id='0' cpus='0-3' memory='524288'/></numa></cpu>
<devices><emulator>%s</emulator>
<controller type='pci' index='0' model='pcie-root'><alias name='pcie.0'/></controller>
<controller type='pci' index='1' model='pcie-root-port'><target chassis='1' port='0x1'/><alias name='pci.1'/><address type='pci' domain='0x0000' bus='0x00' slot='0x02' function='0x0'/></controller>
<controller type='pci' index='2' model='pcie-root-port'><target chassis='2' port='0x2'/><alias name='pci.2'/><address type='pci' domain='0x0000' bus='0x00' slot='0x03' function='0x0'/></controller>
<controller type='pci' index='3' model='pcie-root-port'><target chassis='3' port='0x3'/><alias name='pci.3'/><address type='pci' domain='0x0000' bus='0x00' slot='0x04' function='0x0'/></controller>
<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='/a' index='1'/><target dev='vda' bus='virtio'/><alias name='virtio-disk0'/></disk>
<disk type='file' device='cdrom'><driver name='qemu' type='raw'/><source file='%s' index='2'/><target dev='sda' bus='sata'/><readonly/><alias name='sata0-0-0'/></disk>
<interface type='user'><mac address='52:54:00:00:00:01'/><model type='virtio'/><alias name='net0'/></interface>
<serial type='pty'><source path='/dev/pts/9'/><target port='0'/><alias name='serial0'/></serial>
<channel type='unix'><source mode='bind' path='/nowhere/agent'/><target type='virtio' name='org.qemu.guest_agent.0' state='connected'/><alias name='channel0'/></channel>
<memory model='dimm'><target><size unit='MiB'>512</size><node>0</node></target><alias name='dimm0'/></memory>
<memballoon model='virtio'><stats period='5'/><alias name='balloon0'/></memballoon>
</devices></domain>`

// taken is a guest with a compromised QEMU and agent. They follow a script, and clients make requests during it.
type taken struct {
	*machine.Guest
	t    *testing.T
	dir  string
	run  *machine.Instance
	kept string // the definition that was looked at last

	mu      sync.Mutex
	answers map[string]string // by command; "": none is given
	conn    net.Conn

	asked, answered atomic.Int32
	returned        map[string]int // how often each resource was returned to the host
}

// well is what an honest QEMU says.
var well = map[string]string{
	"query-status":    `{"status":"running","running":true,"singlestep":false}`,
	"query-chardev":   `[{"label":"charchannel0","filename":"unix","frontend-open":true},{"label":"charserial0","filename":"pty:/dev/pts/9","frontend-open":true}]`,
	"qom-list":        `[{"name":"virtio-disk0","type":"child<x>"},{"name":"sata0-0-0","type":"x"},{"name":"net0","type":"x"},{"name":"dimm0","type":"x"}]`,
	"query-balloon":   `{"actual":536870912}`,
	"query-block":     `[{"qdev":"/machine/peripheral/virtio-disk0/virtio-backend","io-status":"ok","inserted":{"node-name":"libvirt-1-format","image":{"filename":"/a","virtual-size":4}}},{"qdev":"sata0-0-0","tray_open":false,"inserted":{"node-name":"libvirt-2-format","image":{"filename":"/b","virtual-size":4}}}]`,
	"query-cpus-fast": `[{"cpu-index":0,"thread-id":4194305},{"cpu-index":1,"thread-id":4194306}]`,
	"query-iothreads": `[{"id":"iothread1","thread-id":4194305,"poll-max-ns":1}]`,
	"query-hotpluggable-cpus": `[{"type":"c","props":{"socket-id":1,"core-id":0},"vcpus-count":1},{"type":"c","props":{"socket-id":0,"core-id":1},"vcpus-count":1,"qom-path":"/b"},` +
		`{"type":"c","props":{"socket-id":0,"core-id":0},"vcpus-count":1,"qom-path":"/a"}]`,
	"query-blockstats":     `[{"qdev":"virtio-disk0","stats":{"wr_bytes":1}}]`,
	"query-fdsets":         `[{"fdset-id":2,"fds":[{"fd":3,"opaque":"image2"}]}]`,
	"query-memory-devices": `[{"type":"dimm","data":{"id":"dimm0","slot":1,"addr":4294967296}}]`,
	"query-migrate":        `{"status":"cancelled"}`,
	"qom-get":              `{"stats":{"stat-free-memory":1,"stat-disk-caches":18446744073709551615},"last-update":1}`,

	"guest-get-users":              `[{"user":"u","domain":"d","login-time":1.5}]`,
	"guest-get-fsinfo":             `[{"name":"vda1","mountpoint":"/","type":"ext4","total-bytes":1,"disk":[{"bus-type":"virtio","pci-controller":{"bus":0}}]}]`,
	"guest-get-osinfo":             `{"id":"debian","name":"x"}`,
	"guest-get-timezone":           `{"zone":"UTC","offset":0}`,
	"guest-get-host-name":          `{"host-name":"h"}`,
	"guest-get-time":               `1`,
	"guest-get-vcpus":              `[{"logical-id":0,"online":true,"can-offline":false},{"logical-id":1,"online":true,"can-offline":true}]`,
	"guest-set-vcpus":              `1`,
	"guest-fsfreeze-freeze":        `1`,
	"guest-network-get-interfaces": `[{"name":"eth0","hardware-address":"52:54:00:00:00:01","ip-addresses":[{"ip-address-type":"ipv4","ip-address":"10.0.0.1","prefix":24}]}]`,
}

// requests are what clients may want of the guest meanwhile.
var requests = map[string]func(context.Context, *taken) error{
	"suspend": func(ctx context.Context, g *taken) error { return Suspend(ctx, g.Guest, scope.Daemon("a test")) },
	"resume":  func(ctx context.Context, g *taken) error { return Resume(ctx, g.Guest, scope.Daemon("a test")) },
	"reset":   func(ctx context.Context, g *taken) error { return Reset(ctx, g.Guest, scope.Daemon("a test")) },
	"shutdown": func(ctx context.Context, g *taken) error {
		return Shutdown(ctx, g.Guest, scope.Daemon("a test"), ShutdownACPI)
	},
	"reboot": func(ctx context.Context, g *taken) error {
		return Reboot(ctx, g.Guest, scope.Daemon("a test"), ShutdownDefault)
	},
	"wake":    func(ctx context.Context, g *taken) error { return Wake(ctx, g.Guest, scope.Daemon("a test")) },
	"destroy": func(ctx context.Context, g *taken) error { return Destroy(ctx, g.Guest, scope.Daemon("a test"), false) },
	"detach": func(ctx context.Context, g *taken) error {
		return hotplug.Detach(ctx, g.Guest, scope.Daemon("a test"), "<disk><target dev='vda'/></disk>", machine.Affect{Live: true})
	},
	"plug-net": func(ctx context.Context, g *taken) error {
		return hotplug.Attach(ctx, g.Guest, scope.Daemon("a test"), "<interface type='user'><mac address='52:54:00:00:00:02'/><model type='virtio'/></interface>", machine.Affect{Live: true})
	},
	"plug-rng": func(ctx context.Context, g *taken) error {
		return hotplug.Attach(ctx, g.Guest, scope.Daemon("a test"), "<rng model='virtio'><backend model='builtin'/></rng>", machine.Affect{Live: true})
	},
	"plug-dimm": func(ctx context.Context, g *taken) error {
		return hotplug.Attach(ctx, g.Guest, scope.Daemon("a test"), "<memory model='dimm'><target><size unit='MiB'>256</size><node>0</node></target></memory>", machine.Affect{Live: true})
	},
	"plug-disk": func(ctx context.Context, g *taken) error {
		return hotplug.Attach(ctx, g.Guest, scope.Daemon("a test"), "<disk type='file'><driver name='qemu' type='raw'/><source file='"+filepath.Join(g.dir, "disk")+"'/><target dev='vdb' bus='virtio'/></disk>", machine.Affect{Live: true})
	},
	"let-net0": func(ctx context.Context, g *taken) error {
		return hotplug.DetachAlias(ctx, g.Guest, scope.Daemon("a test"), "net0", machine.Affect{Live: true})
	},
	"let-dimm0": func(ctx context.Context, g *taken) error {
		return hotplug.DetachAlias(ctx, g.Guest, scope.Daemon("a test"), "dimm0", machine.Affect{Live: true})
	},
	"eject": func(ctx context.Context, g *taken) error {
		return hotplug.Update(ctx, g.Guest, scope.Daemon("a test"), drive(""), machine.Affect{Live: true}, false)
	},
	"insert": func(ctx context.Context, g *taken) error {
		return hotplug.Update(ctx, g.Guest, scope.Daemon("a test"), drive(g.medium()), machine.Affect{Live: true}, true)
	},
	"memory": func(ctx context.Context, g *taken) error {
		return hotplug.SetMemory(ctx, g.Guest, scope.Daemon("a test"), 256<<20, machine.Affect{Live: true})
	},
	"vcpus": func(ctx context.Context, g *taken) error {
		return hotplug.SetVCPUs(ctx, g.Guest, scope.Daemon("a test"), 3, hotplug.VCPUOptions{Affect: machine.Affect{Live: true}})
	},
	"tune": func(ctx context.Context, g *taken) error {
		return hotplug.Tune(ctx, g.Guest, scope.Daemon("a test"), machine.Affect{Live: true}, slower)
	},
	"stats": func(ctx context.Context, g *taken) error { _, err := statistics.Stats(ctx, g.Guest, 0); return err },
	"block": func(ctx context.Context, g *taken) error {
		_, err := statistics.GetBlockInfo(ctx, g.Guest, scope.Daemon("a test"), "vda")
		return err
	},
	"errors": func(ctx context.Context, g *taken) error { _, err := statistics.DiskErrors(ctx, g.Guest); return err },
	"resize": func(ctx context.Context, g *taken) error {
		return hotplug.ResizeDisk(ctx, g.Guest, scope.Daemon("a test"), "vda", 8)
	},
	"command": func(ctx context.Context, g *taken) error {
		_, err := g.MonitorCommand(ctx, scope.Daemon("a test"), `{"execute":"query-status"}`, false)
		return err
	},
	"dump": func(ctx context.Context, g *taken) error {
		return savestate.Dump(ctx, g.Guest, scope.Daemon("a test"), filepath.Join(g.dir, "dump"), savestate.DumpOptions{})
	},
	"abort": func(ctx context.Context, g *taken) error { return AbortJob(ctx, g.Guest, scope.Daemon("a test")) },
	"users": func(ctx context.Context, g *taken) error {
		return g.heard(provision.Users(ctx, g.Guest, scope.Daemon("a test")))
	},
	"filesystem": func(ctx context.Context, g *taken) error {
		return g.heard(provision.FileSystems(ctx, g.Guest, scope.Daemon("a test")))
	},
	"osinfo": func(ctx context.Context, g *taken) error {
		return g.heard(provision.OSInfo(ctx, g.Guest, scope.Daemon("a test")))
	},
	"timezone": func(ctx context.Context, g *taken) error { return g.zone(ctx) },
	"hostname": func(ctx context.Context, g *taken) error {
		return g.heard(provision.AgentHostname(ctx, g.Guest, scope.Daemon("a test")))
	},
	"online": func(ctx context.Context, g *taken) error {
		return SetAgentVCPUs(ctx, g.Guest, scope.Daemon("a test"), 1)
	},
	"addresses": func(ctx context.Context, g *taken) error {
		return g.heard(hotplug.Addresses(ctx, g.Guest, scope.Daemon("a test"), hotplug.ByAgent))
	},
	"freeze": func(ctx context.Context, g *taken) error {
		_, err := provision.Freeze(ctx, g.Guest, scope.Daemon("a test"), nil)
		return err
	},
	"say": func(ctx context.Context, g *taken) error {
		_, err := provision.AgentCommand(ctx, g.Guest, scope.Daemon("a test"), `{"execute":"guest-get-time"}`, 0)
		return err
	},
}

func drive(source string) string {
	return `<disk type='file' device='cdrom'><driver name='qemu' type='raw'/>` + source + `<target dev='sda' bus='sata'/><readonly/></disk>`
}

func slower(d *domain.Definition) error {
	if len(d.Devices.Disks) > 0 {
		d.Devices.Disks[0].Tune = &device.IOTune{ReadIOPS: 9}
	}
	return nil
}

// heard wants what an agent told to be words, and not too many.
func (g *taken) heard(told any, err error) error {
	g.words(reflect.ValueOf(told))
	return err
}

func (g *taken) words(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		if text := v.String(); len(text) > provision.MaxPrintable || !utf8.ValidString(text) || strings.Contains(text, "\x00") {
			g.t.Errorf("the agent has told %d bytes: %.40q", len(text), text)
		}
	case reflect.Slice:
		if v.Len() > provision.MaxAgentNames {
			g.t.Errorf("the agent has told of %d", v.Len())
		}
		for i := range v.Len() {
			g.words(v.Index(i))
		}
	case reflect.Map:
		if v.Len() > provision.MaxAgentNames {
			g.t.Errorf("the agent has told of %d", v.Len())
		}
		for _, key := range v.MapKeys() {
			g.words(key)
			g.words(v.MapIndex(key))
		}
	case reflect.Struct:
		for _, field := range v.Fields() {
			g.words(field)
		}
	}
}

func (g *taken) zone(ctx context.Context) error {
	name, ahead, err := provision.Timezone(ctx, g.Guest, scope.Daemon("a test"))
	if ahead.Abs() > 24*time.Hour {
		g.t.Errorf("it is %v ahead", ahead)
	}
	return g.heard(name, err)
}

func (g *taken) medium() string { return "<source file='" + filepath.Join(g.dir, "medium") + "'/>" }

// FuzzTakenOver lets a compromised QEMU and agent send anything between the requests of clients: lines of the
// lives below in any order, and similar ones. A line of JSON is sent unchanged. A command with JSON sets the
// answer to that command from then on (or an error, after a "!"). A word is a client's request, or an event.
//
// Every request gets an answer, and none reports an internal error. The guest is never assumed to have ended while
// its process lives. Clients and the next daemon can read its records. At its end all its resources are released,
// once.
// Promise: F4, X6
func FuzzTakenOver(f *testing.F) {
	var known []string
	for _, life := range lives {
		var order []byte
		for line := range strings.SplitSeq(life, "\n") {
			at := slices.Index(known, line)
			if at < 0 {
				at, known = len(known), append(known, line)
			}
			order = append(order, byte(at))
		}
		f.Add(order, "")
	}
	f.Add([]byte{255, 254, 0, 255}, "query-status {\"status\":null}\n{\"event\":\"DEVICE_DELETED\",\"data\":{\"device\":\"sata0-0-0\"}}")
	root := f.TempDir()
	reg := takenHost(f, root)
	f.Fuzz(func(t *testing.T, order []byte, others string) {
		also := strings.Split(others, "\n")
		synctest.Test(t, func(t *testing.T) {
			g := takeOver(t, root, reg)
			for _, at := range order[:min(len(order), 40)] {
				if n := int(at); n < len(known) {
					g.play(known[n])
				} else {
					g.play(also[(255-n)%len(also)])
				}
				synctest.Wait()
				g.look()
			}
			g.end()
		})
	})
}

// lives are what may happen to a guest. New lines go behind the others: kept inputs name
// them by their numbers.
var lives = []string{
	`{"event":"STOP","timestamp":{"seconds":1,"microseconds":1}}
{"event":"RESUME","timestamp":{"seconds":1,"microseconds":1}}
{"event":"SUSPEND"}
{"event":"WAKEUP"}
{"event":"SUSPEND_DISK"}
{"event":"RESET","data":{"guest":true,"reason":"guest-reset"}}
{"event":"BLOCK_IO_ERROR","data":{"device":"","node-name":"libvirt-1-format","operation":"write","action":"stop","nospace":true,"reason":"No space left on device"}}
{"event":"STOP"}
cut
query-status {"status":"io-error","running":false}
query-block [{"qdev":"virtio-disk0","io-status":"nospace"}]
back
wait`,
	`save
cut
query-migrate {"status":"active"}
back
wait
query-migrate {"status":"none"}
cut
back`,
	`detach
{"event":"DEVICE_UNPLUG_GUEST_ERROR","data":{"device":"virtio-disk0","path":"/machine/peripheral/virtio-disk0"}}
detach
blockdev-del !Node is in use
{"event":"DEVICE_DELETED","data":{"device":"virtio-disk0","path":"/machine/peripheral/virtio-disk0"}}
{"event":"DEVICE_DELETED","data":{"device":"virtio-disk0"}}
{"event":"DEVICE_DELETED","data":{"device":"net0"}}
let-dimm0
{"event":"DEVICE_DELETED","data":{"device":"dimm0"}}
{"event":"DEVICE_DELETED","data":{"device":"balloon0"}}
{"event":"DEVICE_DELETED","data":{"device":"channel0"}}
wait
blockdev-del {}
{"event":"RESUME"}`,
	`eject
{"event":"DEVICE_TRAY_MOVED","data":{"device":"","id":"sata0-0-0","tray-open":true}}
insert
query-block [{"qdev":"sata0-0-0","inserted":{"node-name":"libvirt-3-format"}}]
blockdev-insert-medium
insert
wait
cut
blockdev-insert-medium {}
back
let-net0
cut
qom-list []
back`,
	`{"event":"BALLOON_CHANGE","data":{"actual":18446744073709551615}}
{"event":"RTC_CHANGE","data":{"offset":-9223372036854775808,"qom-path":"/x"}}
{"event":"VSERPORT_CHANGE","data":{"id":"channel0","open":true}}
{"event":"WATCHDOG","data":{"action":"pause"}}
{"event":"STOP"}
{"event":"VNC_CONNECTED","data":{"server":{"host":"h","service":"5900","family":"ipv4","auth":"none"},"client":{"host":"h","service":"1","family":"ipv4"}}}
{"event":"SPICE_DISCONNECTED","data":{"server":{"host":"h","port":"1","family":"ipv4"},"client":{"host":"h","port":"1","family":"unix"}}}
memory
vcpus
tune
stats
block
errors
resize
command
query-balloon {"actual":1}
query-cpus-fast [{"cpu-index":4096,"thread-id":4194305},{"cpu-index":0,"thread-id":4194305},{"cpu-index":0,"thread-id":4194306}]
query-hotpluggable-cpus [{},{},{},{},{}]
vcpus
stats
cut
back`,
	`users
filesystem
osinfo
timezone
hostname
online
addresses
freeze
say
guest-get-vcpus [{"logical-id":5000}]
online
guest-get-users !no
users
guest-network-get-interfaces [{"name":"eth0","ip-addresses":null},null]
addresses
guest-get-time nonsense
say
users
guest-get-timezone {"zone":"UTC","offset":9000000000}
timezone
guest-get-osinfo {"\u0000":"\ud800"}
osinfo
guest-get-users [{"user":"\u0000"}]
users`,
	`policy destroy destroy coredump-restart
{"event":"GUEST_PANICKED","data":{"action":"pause"}}
{"event":"STOP"}
wait
{"event":"GUEST_PANICKED","data":{"action":"pause"}}
{"event":"SHUTDOWN","data":{"guest":true,"reason":"guest-reset"}}`,
	`policy restart destroy preserve
reboot
{"event":"SHUTDOWN","data":{"guest":true,"reason":"guest-shutdown"}}
{"event":"GUEST_PANICKED"}
cut
query-status {"status":"shutdown","running":false}
back
shutdown
destroy
suspend`,
	`suspend
stop
query-status
resume
dump
abort
wait
{"QMP":{}}
{"return":{},"id":77}
{"error":{"class":"GenericError","desc":"d"},"id":3}
query-status {"status":"guest-panicked"}
wait
back
}} nonsense
wait`,
	`query-hotpluggable-cpus [{"qom-path":"/a"},{"qom-path":"/b"},{"qom-path":"/c"},{"qom-path":"/d"},{"qom-path":"/e"},{"qom-path":"/f"}]
vcpus
device_del {}
vcpus
wait
vcpus
cut
back
memory`,
	`plug-net
plug-rng
plug-dimm
plug-disk
device_add !no
plug-net
plug-rng
plug-dimm
plug-disk
device_add {}
{"event":"DEVICE_DELETED","data":{"device":"net1"}}
{"event":"DEVICE_DELETED","data":{"device":"rng0"}}
object-add !no
plug-rng
plug-dimm
netdev_add !no
plug-net
query-memory-devices [{"type":"dimm","data":{"id":"dimm1","slot":9999,"addr":-1}}]
object-add {}
plug-dimm
device_add
plug-rng
cut
wait
back
device_add {}
qom-list []
plug-net
cut
back`,
}

// takenHost is what does not change from one guest to the next.
func takenHost(f testing.TB, root string) machine.Config {
	stat := fmt.Sprintf("%d (qemu) S 1 7 7 0 -1 0 0 0 0 0 5 5 0 0 20 0 2 0 100 1000000 200%s\n", takenPID, strings.Repeat(" 0", 30))
	for path, text := range map[string]string{
		fmt.Sprintf("proc/%d/stat", takenPID):               stat,
		fmt.Sprintf("proc/%[1]d/task/%[1]d/stat", takenPID): stat,
		"medium":             "medium",
		"disk":               "disk",
		"data/core/old.core": "",
	} {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			f.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			f.Fatal(err)
		}
	}
	s, err := store.Open(filepath.Join(root, "store"))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = s.Close() })
	inventory, err := resources.NewInventory(kernel.Root{})
	if err != nil {
		f.Fatal(err)
	}
	// Probes use a store of their own. The goroutine that writes a probe's result could also write the next
	// change, and would then send to a test's bubble from outside.
	probes, err := store.Open(filepath.Join(root, "probes"))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = probes.Close() })
	emulators, err := resources.NewEmulators(probes, takenEmulator, slog.New(slog.DiscardHandler))
	if err != nil {
		f.Fatal(err)
	}
	if _, err := emulators.Get(f.Context(), takenEmulator); err != nil {
		f.Log("media cannot be changed: ", err)
	}
	return machine.Config{
		DataDir: filepath.Join(root, "data"), RunDir: filepath.Join(root, "run"), Store: s, Emulators: emulators,
		Ledger: resources.NewLedger(inventory), Cgroups: kernel.OpenCgroups(kernel.At(root), ""), Kernel: kernel.At(root),
	}
}

// bugs are what a guest's loop contains, and logs.
type bugs struct {
	slog.Handler
	t *testing.T
}

func (bugs) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelError }

func (b bugs) WithAttrs([]slog.Attr) slog.Handler { return b }

func (b bugs) Handle(_ context.Context, r slog.Record) error {
	if !strings.HasPrefix(r.Message, "bug in") {
		return nil
	}
	b.t.Error(r.Message)
	r.Attrs(func(a slog.Attr) bool { b.t.Log(a); return true })
	return nil
}

// takeOver creates a running guest in a bubble. Its process cannot be inspected or signalled.
func takeOver(t *testing.T, root string, c machine.Config) *taken {
	c.Events, c.Log = event.NewLog(), slog.New(bugs{slog.DiscardHandler, t})
	reg := newRegistry(c)
	doc := fmt.Sprintf(takenXML, takenEmulator, filepath.Join(root, "medium"))
	def, err := domainxml.Parse(doc, domainxml.Options{Active: true})
	if err != nil {
		t.Fatal(err)
	}
	g := &taken{t: t, dir: root, answers: map[string]string{}, returned: map[string]int{}}
	c.Ledger.Restore(takenUUID, provision.Demand(def), statistics.Need(reg, def))
	g.Guest = newGuest(reg, "a", takenUUID)
	dir := reg.GuestDir(takenUUID)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	rec := machine.RunRecord{Name: "a", UUID: takenUUID, ID: 1, XML: doc, PID: takenPID, NICs: []machine.HeldNIC{{Alias: "net0", IfName: "vnet0"}}, LastNode: 2}
	r := machine.NewInstance(rec, dir, c.Kernel, g.Log)
	r.Definition, r.Process = def, released(t)
	r.PushRelease("run directory", func(ctx context.Context) error { g.returned["dir"]++; return r.RemoveDir(ctx) })
	r.PushRelease("reservation", func(context.Context) error { c.Ledger.Release(takenUUID); return nil })
	r.PushRelease("interface vnet0", func(context.Context) error { g.returned["nic"]++; return nil })
	r.Guest = g.Guest
	if err := reg.SetOperations(r, nil); err != nil {
		t.Fatal(err)
	}
	g.run, g.Instance = r, r
	g.State = lifecycle.State{Phase: domain.Running, Reason: domain.ReasonBooted}
	reg.GuestsByName["a"], reg.GuestsByUUID[takenUUID] = g.Guest, g.Guest
	reg.SetID(g.Guest, 1)
	g.Live.Store(r)
	r.Connect(g.connect())
	g.Publish()
	g.WriteInstance()
	startLoop(reg, g.Guest)
	return g
}

// released is a process that is watched no more: it cannot be seen to end, nor be signalled.
func released(t *testing.T) *qemuprocess.Process {
	own, err := kernel.Root{}.Process(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	p, err := qemuprocess.Adopt(os.Getpid(), own.Start)
	if err != nil {
		t.Fatal(err)
	}
	p.Release()
	return p
}

// connect makes a connection to its monitor.
func (g *taken) connect() *qmp.Session {
	ours, theirs := net.Pipe()
	g.mu.Lock()
	g.conn = theirs
	g.mu.Unlock()
	go func() {
		fmt.Fprintln(theirs, `{"QMP":{"version":{"qemu":{"major":7,"minor":2,"micro":0},"package":""},"capabilities":[]}}`)
		g.serve(theirs)
	}()
	s, err := qmp.New(context.Background(), ours, g.Log)
	if err != nil {
		g.t.Fatal(err)
	}
	return s
}

// serve answers the requests on a connection.
func (g *taken) serve(conn net.Conn) {
	defer conn.Close()
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		var asked struct {
			Execute   string
			ID        json.RawMessage
			Arguments struct{ ID json.RawMessage }
		}
		if json.Unmarshal(bytes.Trim(lines.Bytes(), "\xff"), &asked) != nil {
			continue
		}
		answer := g.answer(asked.Execute)
		switch {
		case asked.Execute == "guest-sync-delimited":
			answer = fmt.Sprintf("\xff{\"return\": %s}", asked.Arguments.ID)
		case answer == "":
			continue
		case answer[0] == '!':
			answer = fmt.Sprintf(`{"error":{"class":"GenericError","desc":%q}`, answer[1:])
		default:
			answer = `{"return":` + answer
		}
		switch {
		case asked.ID != nil:
			answer += `,"id":` + string(asked.ID) + "}"
		case asked.Execute != "guest-sync-delimited":
			answer += "}"
		}
		fmt.Fprintln(conn, answer)
	}
}

func (g *taken) answer(command string) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if answer, told := g.answers[command]; told {
		return answer
	}
	if answer, known := well[command]; known {
		return answer
	}
	return "{}"
}

// play does what a line of the script says.
func (g *taken) play(line string) {
	word, rest, more := strings.Cut(line, " ")
	g.mu.Lock()
	conn := g.conn
	g.mu.Unlock()
	switch do := requests[word]; {
	case do != nil:
		g.attend()
		g.asked.Add(1)
		go func() {
			ctx, stop := context.WithTimeout(context.Background(), patience)
			defer stop()
			if err := do(ctx, g); fault.Is(err, fault.Internal) {
				g.t.Errorf("%s: %v", word, err)
			}
			g.answered.Add(1)
		}()
	case word == "cut":
		_ = conn.Close()
	case word == "back":
		if g.run.LostAt.Load() != nil {
			go passSession(g.Guest, g.run, g.connect())
		}
	case word == "save": // an earlier daemon began one
		_ = g.Change(context.Background(), scope.Daemon("a test"), "", func() error {
			if !g.run.Ops.HasClass(operation.Move) {
				cutOffSave(g.Guest)
			}
			return nil
		})
	case word == "wait":
		pass(time.Minute)
	case word == "policy":
		if w := strings.Fields(rest); len(w) == 3 {
			_ = g.Change(context.Background(), scope.Daemon("a test"), "", func() error {
				g.State.Policy = lifecycle.Policy{OnPoweroff: w[0], OnReboot: w[1], OnCrash: w[2]}
				return nil
			})
		}
	case strings.HasPrefix(line, "{") || strings.HasPrefix(line, "}"):
		go fmt.Fprintln(conn, line) // it is read at the daemon's pace
	case more || strings.Contains(word, "-"):
		g.mu.Lock()
		g.answers[word] = rest
		g.mu.Unlock()
	}
}

// attend has the agent there, if it was dropped.
func (g *taken) attend() {
	ours, theirs := net.Pipe()
	s := agent.New(ours)
	if g.run.Agent.LoadOrStore(s) == s {
		go g.serve(theirs)
		return
	}
	s.Close()
	_ = theirs.Close()
}

// patience is how long a client waits at most.
const patience = 2 * time.Minute

// pass has time pass in the bubble.
func pass(d time.Duration) { <-time.After(d) }

// look reads the guest's records as clients and the next daemon do.
func (g *taken) look() {
	v := g.View()
	if v.Active == nil || v.State == domain.ShutOff || v.State == domain.Crashed {
		g.t.Errorf("it is %s (%s), and its process lives", v.State, v.Reason)
		return
	}
	if d := v.Active; d.VCPUs.Current == 0 || d.VCPUs.Current > d.VCPUs.Max || d.CurrentMemory == 0 || d.CurrentMemory > d.Memory {
		g.t.Errorf("it is said to have %d of %d vCPUs, and %d of %d bytes", d.VCPUs.Current, d.VCPUs.Max, d.CurrentMemory, d.Memory)
		return
	}
	text, err := domainxml.Format(v.Active, domainxml.Style{Active: true, Secure: true, ID: v.ID})
	if err != nil {
		g.t.Errorf("its definition cannot be shown: %v", err)
		return
	}
	if text == g.kept {
		return
	}
	g.kept = text
	if _, err := domainxml.Parse(text, domainxml.Options{Active: true}); err != nil {
		g.t.Errorf("%s\ncannot be read again: %v", text, err)
		return
	}
	rec, err := machine.ReadRecord(g.run.Dir)
	if err != nil {
		g.t.Error(err)
		return
	}
	if _, err := domainxml.Parse(rec.XML, domainxml.Options{Active: true}); err != nil {
		g.t.Errorf("no other daemon adopts it: %v", err)
		return
	}
}

// demands are what the guest takes of the host, with a module that was being plugged in when its QEMU told
// nonsense: that may have it.
func (g *taken) demands() (all topology.Reservation) {
	_ = g.Change(context.Background(), scope.Daemon("a test"), "", func() error {
		all = provision.Demand(g.run.Definition)
		for _, op := range g.run.Ops.Operations() {
			if a, is := op.Work().(*hotplug.AttachOp); is && a.Reserved != nil && !a.Defined {
				all = all.Plus(*a.Reserved)
			}
		}
		return nil
	})
	return all
}

// end ends the process, and checks that nothing is left.
func (g *taken) end() {
	pass(patience + time.Second)
	if asked, answered := g.asked.Load(), g.answered.Load(); answered < asked {
		g.t.Errorf("%d of %d requests are not answered", asked-answered, asked)
	}
	if held, has := fmt.Sprint(g.Reg.Ledger.Held()[takenUUID]), fmt.Sprint(g.demands()); held != has {
		g.t.Errorf("the books say that it has %s, and its definition %s", held, has)
	}
	_ = g.conn.Close()
	pass(patience) // work of its own goes on until the next monitor is given up
	_ = g.Change(context.Background(), scope.Daemon("a test"), "", func() error {
		if g.CurrentJob != nil {
			g.t.Errorf("its %s job continues without a monitor", g.CurrentJob.Kind)
		}
		handleExit(g.Guest)
		return nil
	})
	g.run.KillNow()
	pass(patience)
	select {
	case <-g.Ended:
	default:
		g.t.Fatalf("it has not ended, and is %s", g.View().State)
	}
	if g.returned["dir"] != 1 || g.returned["nic"] != 1 {
		g.t.Errorf("its resources were released so often: %v", g.returned)
	}
	if _, err := os.Stat(g.run.Dir); err == nil {
		g.t.Error("its run directory is left")
	}
	if held := g.Reg.Ledger.Held(); len(held) > 0 {
		g.t.Errorf("the books say that it still has %v", held)
	}
	g.Reg.Stop(nil)
	g.Reg.Loops.Wait()
	told := g.Reg.Events.ReaderAfter(0)
	for told.Position() < g.Reg.Events.Newest() {
		e, _, err := told.Next(context.Background())
		if err != nil {
			g.t.Fatal(err)
		}
		if size := len(fmt.Sprintf("%+v", e.Payload)); size > 8<<10 {
			g.t.Errorf("a %T of %d bytes is kept", e.Payload, size)
		}
	}
}

// A QEMU that names a terminal in megabytes has none: no daemon would read that again. Nor has one that names
// another place than the kernel's: clients would be shown it, and the daemon look there.
// Promise: I1
func TestDescribe_LongPTYPath(t *testing.T) {
	for _, path := range []string{strings.Repeat("/x", xmltree.MaxSize/2), "/net/elsewhere/1", "/dev/pts/../sda", "/dev/pts/ptmx", "/dev/pts/"} {
		testTerminal(t, path)
	}
}

func testTerminal(t *testing.T, path string) {
	synctest.Test(t, func(t *testing.T) {
		g := &taken{t: t, answers: map[string]string{}}
		g.Guest = newGuest(newRegistry(machine.Config{Log: slog.New(slog.DiscardHandler)}), "a", takenUUID)
		def, err := domainxml.Parse(fmt.Sprintf(takenXML, takenEmulator, "/medium"), domainxml.Options{Active: true})
		if err != nil {
			t.Fatal(err)
		}
		l := launch.Launch{Guest: g.Guest, Instance: machine.NewInstance(machine.RunRecord{}, t.TempDir(), kernel.Root{}, g.Log)}
		l.Instance.Definition = def
		g.answers["query-chardev"] = `[{"label":"charserial0","filename":"pty:` + path + `"}]`
		l.Instance.Connect(g.connect())
		defer l.Instance.Session.Load().Close()
		if err := l.ReadBack(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := domainxml.Parse(l.Instance.XML, domainxml.Options{Active: true}); err != nil || def.Devices.Serials[0].Backend.Path != "/dev/pts/9" {
			t.Errorf("no other daemon reads this (%v), or a terminal at %.40s is believed", err, def.Devices.Serials[0].Backend.Path)
		}
	})
}
