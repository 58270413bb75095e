package authz

import (
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/control/fleet"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/host/network"
	"github.com/lodge-kvm/lodge/internal/host/secret"
	"github.com/lodge-kvm/lodge/internal/host/volume"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/event"
	"github.com/lodge-kvm/lodge/internal/word/scope"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

func definitionOf(t *testing.T, os, devices string) *domain.Definition {
	t.Helper()
	def, err := domainxml.Parse("<domain type='qemu'><name>build-1</name><memory>1024</memory><os><type arch='x86_64' machine='q35'>hvm</type>"+os+"</os><devices>"+devices+"</devices></domain>",
		domainxml.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return def
}

// builder is a client with rights to a guest whose disk is shared with others and lies outside all of the
// client's places.
func builder(t *testing.T) (*Authorizer, Principal, Resource) {
	t.Helper()
	r, err := ParseRules("access.yaml", []byte(strings.Replace(strings.ReplaceAll(example, `"pool:build", `, ""), "volumes]", "save]", 1)))
	if err != nil {
		t.Fatal(err)
	}
	g := &Authorizer{}
	g.rules.Store(r)
	on := NewGuest("build-1", "", nil)
	on.member = fleet.Member{View: &guest.View{Name: "build-1", Inactive: definitionOf(t, "", `
		<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='/srv/base.raw'/><target dev='vda' bus='virtio'/><readonly/></disk>
		<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='/srv/own.raw'/><target dev='vdb' bus='virtio'/></disk>
		<serial type='file'><source path='/var/log/build-1.log'/></serial>
		<serial type='unix'><source mode='connect' path='/run/service'/></serial>
		<interface type='network'><source network='default'/><target dev='tap9'/></interface>
		<interface type='network'><source network='mixed'/><port isolated='no'/></interface>
		<channel type='unix'><source mode='bind' path='/run/lodge/agent'/><target type='virtio' name='org.qemu.guest_agent.0'/></channel>
		<graphics type='vnc' autoport='yes'><listen type='address' address='10.1.2.3'/></graphics>`)}}
	return g, user1(1002), on
}

// A client's guest may keep its uses but not change their kind: it must not write what it shares for reading,
// and its own writes must not be parsed as an image header. Files that all guests read belong to the host.
//
// Promise: A3
func TestDocument_PathsByUse(t *testing.T) {
	g, who, on := builder(t)
	places := g.rules.Load().allowedUsesFor(g, who, Define, on)
	places.existing = g.currentUses(on)
	places.Places = append(places.Places, "/dev/serial", "/dev/shm")
	disk := func(kind, path, more string) string {
		return "<disk type='file' device='disk'><driver name='qemu' type='" + kind + "'/><source file='" + path + "'/><target dev='vda' bus='virtio'/>" + more + "</disk>"
	}
	agent := func(channel string) string {
		return channel + "<target type='virtio' name='org.qemu.guest_agent.0'/></channel>"
	}
	for _, c := range []struct {
		what, os, devices string
		want              bool
	}{
		{"a disk of its own places", "", disk("qcow2", "/srv/build/a", ""), true},
		{"the disk that it shares, to read", "", disk("raw", "/srv/base.raw", "<readonly/>"), true},
		{"the disk that it shares, to write", "", disk("raw", "/srv/base.raw", ""), false},
		{"its disk, as it was", "", disk("raw", "/srv/own.raw", ""), true},
		{"its disk, with a header that it wrote", "", disk("qcow2", "/srv/own.raw", ""), false},
		{"its disk as what its console is written to", "", "<serial type='file'><source path='/srv/base.raw'/></serial>", false},
		{"its console, as it was", "", "<serial type='file'><source path='/var/log/build-1.log'/></serial>", true},
		{"its console, as a socket that is made", "", "<serial type='unix'><source mode='bind' path='/var/log/build-1.log'/></serial>", false},
		{"its console, as a pipe", "", "<serial type='pipe'><source path='/var/log/build-1.log'/></serial>", false},
		{"a service that it calls", "", "<serial type='unix'><source mode='connect' path='/run/service'/></serial>", true},
		{"a service that it calls, in that one's place", "", "<serial type='unix'><source mode='bind' path='/run/service'/></serial>", false},
		{"its console as its disk", "", disk("raw", "/var/log/build-1.log", ""), false},
		{"the host's firmware", "<loader type='pflash' readonly='yes'>/usr/share/OVMF/OVMF_CODE.fd</loader><nvram template='/usr/share/OVMF/OVMF_VARS.fd'>/srv/build/vars</nvram>", "", true},
		{"the host's firmware, to write", "<loader type='pflash' readonly='no'>/usr/share/OVMF/OVMF_CODE.fd</loader>", "", false},
		{"the host's variables, to write", "<loader type='pflash' readonly='yes'>/usr/share/OVMF/OVMF_CODE.fd</loader><nvram>/usr/share/OVMF/OVMF_VARS.fd</nvram>", "", false},
		{"the host's firmware as a log", "", "<serial type='pty'><log file='/usr/share/OVMF/OVMF_CODE.fd'/></serial>", false},
		{"the host's QEMU as a console", "", "<serial type='file'><source path='/usr/bin/qemu-system-x86_64'/></serial>", false},
		{"the host's QEMU", "", "<emulator>/usr/bin/qemu-system-x86_64</emulator>", true},
		{"a program of its own", "", "<emulator>/srv/build/qemu</emulator>", false},
		{"random numbers of the host", "", "<rng model='virtio'><backend model='random'>/dev/urandom</backend></rng>", true},
		{"another device as random numbers", "", "<rng model='virtio'><backend model='random'>/dev/mem</backend></rng>", false},
		{"random numbers of a port of the host's", "", "<rng model='virtio'><backend model='egd' type='tcp'><source mode='bind' host='0.0.0.0' service='7777'/></backend></rng>", false},
		{"random numbers of a socket of its own places", "", "<rng model='virtio'><backend model='egd' type='unix'><source mode='connect' path='/srv/build/egd'/></backend></rng>", true},
		{"the host's TPM", "", "<tpm model='tpm-tis'><backend type='passthrough'><device path='/dev/tpm0'/></backend></tpm>", false},
		{"the host's TPM, unsaid", "", "<tpm model='tpm-tis'><backend type='passthrough'/></tpm>", false},
		{"a TPM of its own", "", "<tpm model='tpm-tis'><backend type='emulator'/></tpm>", true},
		{"a device that may be behind a link", "", "<serial type='dev'><source path='/srv/build/tty'/></serial>", false},
		{"a keyboard that may be", "", "<input type='evdev'><source dev='/srv/build/keys'/></input>", false},
		{"a device of a guest's input that may be", "", "<input type='passthrough' bus='virtio'><source evdev='/srv/build/keys'/></input>", false},
		{"a TPM that may be", "", "<tpm model='tpm-tis'><backend type='passthrough'><device path='/srv/build/tpm'/></backend></tpm>", false},
		{"a graphics adapter that may be", "", "<graphics type='spice'><gl enable='yes' rendernode='/srv/build/gl'/></graphics>", false},
		{"random numbers that may be", "", "<rng model='virtio'><backend model='random'>/dev/shm/random</backend></rng>", false},
		{"random numbers from nowhere", "", "<rng model='virtio'><backend model='random'>random</backend></rng>", false},
		{"a device of its own places", "", "<serial type='dev'><source path='/dev/serial/by-id/usb-1'/></serial>", true},
		{"the host's own network", "", "<interface type='user'><model type='virtio'/></interface>", false},
		{"a network as it isolates its ports", "", "<interface type='network'><source network='default'/><port isolated='yes'/></interface>", true},
		{"a network whose ports are to be isolated", "", "<interface type='network'><source network='default'/><port isolated='no'/></interface>", false},
		{"a network that is to have small packets", "", "<interface type='network'><source network='default'/><mtu size='100'/></interface>", false},
		{"its network, as it was", "", "<interface type='network'><source network='mixed'/><port isolated='no'/></interface>", true},
		{"a link that the host is to have", "", "<interface type='network'><source network='default'/><target dev='wg0'/></interface>", false},
		{"a link that is called as its guests", "", "<interface type='network'><source network='default'/><target dev='build-1-eth'/></interface>", true},
		{"a link as the daemon calls them", "", "<interface type='network'><source network='default'/><target dev='vnet7'/></interface>", true},
		{"its link, as it was", "", "<interface type='network'><source network='default'/><target dev='tap9'/></interface>", true},
		{"a display for its host", "", "<graphics type='vnc' autoport='yes' listen='127.0.0.1'><listen type='address' address='127.0.0.1'/></graphics>", true},
		{"a display that says no address", "", "<graphics type='spice' autoport='yes'/>", true},
		{"a display for every host", "", "<graphics type='vnc' port='5977' listen='0.0.0.0'/>", false},
		{"a display for every host, by listen element", "", "<graphics type='vnc' port='5977'><listen type='address' address='::'/></graphics>", false},
		{"a display for a network", "", "<graphics type='spice' autoport='yes'><listen type='network' network='default'/></graphics>", false},
		{"its display, as it was", "", "<graphics type='vnc' autoport='yes'><listen type='address' address='10.1.2.3'/></graphics>", true},
		{"the host's graphics adapter", "", "<graphics type='spice'><gl enable='yes' rendernode='/dev/dri/renderD128'/></graphics>", false},
		{"the host's graphics adapter, unsaid", "", "<graphics type='spice'><gl enable='yes'/></graphics>", false},
		{"variables that begin nowhere", "<loader type='pflash' readonly='yes'>/usr/share/OVMF/OVMF_CODE.fd</loader><nvram template='etc/shadow'>/srv/build/vars</nvram>", "", false},
		{"variables on a device by a relative path", "<loader type='pflash' readonly='yes'>/usr/share/OVMF/OVMF_CODE.fd</loader><nvram type='block'><source dev='dev/vda1'/></nvram>", "", false},
		{"variables on a device of its own places", "<loader type='pflash' readonly='yes'>/usr/share/OVMF/OVMF_CODE.fd</loader><nvram type='block'><source dev='/srv/build/vars'/></nvram>", "", true},
		{"firmware that begins nowhere", "<loader type='pflash' readonly='yes'>etc/shadow</loader>", "", false},
		{"a kernel that begins nowhere", "<kernel>etc/shadow</kernel>", "", false},
		{"a log that begins nowhere", "", "<serial type='pty'><log file='etc/passwd'/></serial>", false},
		{"a keyboard that begins nowhere", "", "<input type='evdev'><source dev='dev/input/event0'/></input>", false},
		{"a device of a guest's input that begins nowhere", "", "<input type='passthrough' bus='virtio'><source evdev='../../dev/input/event0'/></input>", false},
		{"a graphics adapter that begins nowhere", "", "<graphics type='spice'><gl enable='yes' rendernode='dev/dri/renderD128'/></graphics>", false},
		{"the agent's channel", "", agent("<channel type='unix'>"), true},
		{"the agent's channel, as it was", "", agent("<channel type='unix'><source mode='bind' path='/run/lodge/agent'/>"), true},
		{"the agent's channel at a socket of its own places", "", agent("<channel type='unix'><source mode='connect' path='/srv/build/agent'/>"), false},
		{"the agent's channel at a terminal", "", agent("<channel type='pty'>"), false},
		{"the agent's channel as udev reads its name", "", strings.Replace(agent("<channel type='unix'><source mode='connect' path='/srv/build/agent'/>"), "agent.0", "agent.0 ", 1), false},
		{"the agent's channel among others that udev reads", "", strings.Replace(agent("<channel type='pty'>"), "org.qemu", "x virtio-ports/org.qemu", 1), false},
		{"the agent's channel through the display", "", agent("<channel type='spicevmc'>"), false},
		{"another channel at a socket of its own places", "", strings.Replace(agent("<channel type='unix'><source mode='connect' path='/srv/build/agent'/>"), "org.qemu", "org.test", 1), true},
		{"a way up", "", disk("raw", "/srv/build/../base.raw", "<readonly/>"), false},
	} {
		root, err := normalized(definitionOf(t, c.os, c.devices))
		if err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		err = walker{places}.walk(nil, root)
		if (err == nil) != c.want || err != nil && !fault.Is(err, fault.Denied) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	for doc, want := range map[string]bool{ // devices without a guest
		disk("raw", "/srv/own.raw", ""):                       true,
		disk("qcow2", "/srv/own.raw", ""):                     false,
		disk("raw", "/srv/base.raw", ""):                      false,
		disk("raw", "/srv/base.raw", "<readonly/>"):           true,
		"<serial type='file'><source path='etc/x'/></serial>": false,
	} {
		root, err := xmltree.Parse(doc)
		if err != nil {
			t.Fatal(err)
		}
		if err := (walker{places}).walk(nil, root); (err == nil) != want {
			t.Errorf("%s: %v", doc, err)
		}
	}
}

// A call that writes to a named file may only do so in the client's places.
//
// Promise: A3
func TestPath_Write(t *testing.T) {
	g, who, on := builder(t)
	for path, want := range map[string][2]bool{ // to name, to write
		"/srv/build/image":             {true, true},
		"/srv/base.raw":                {true, false},
		"/var/log/build-1.log":         {false, false},
		"/usr/share/OVMF/OVMF_CODE.fd": {false, false},
		"/usr/bin/qemu-system-x86_64":  {false, false},
		"/dev/urandom":                 {false, false},
		"/srv/build/../base.raw":       {false, false},
		"/srv/other":                   {false, false},
	} {
		for i, writes := range []bool{false, true} {
			if err := g.CheckPath(who, Save, on, path, writes); (err == nil) != want[i] {
				t.Errorf("%s, written %v: %v", path, writes, err)
			}
		}
	}
}

// The right to query the host's capabilities does not run arbitrary programs.
//
// Promise: A1
func TestDocument_Program(t *testing.T) {
	g, who, _ := builder(t)
	for path, want := range map[string]bool{
		"/usr/bin/qemu-system-aarch64": true, "/srv/build/qemu": false, "/usr/bin/qemu-system-x/../env": false, "/bin/sh": false, "qemu": false,
	} {
		if err := g.CheckProgram(who, path); (err == nil) != want {
			t.Errorf("%s: %v", path, err)
		}
	}
	for _, free := range []Principal{user1(0), user1(1003)} {
		if err := g.CheckProgram(free, "/opt/qemu"); err != nil {
			t.Errorf("%s: %v", free, err)
		}
	}
	if err := (*Authorizer)(nil).CheckProgram(who, "/opt/qemu"); err != nil {
		t.Errorf("without rules: %v", err)
	}
}

// A client that defines networks can neither put guests on the host's links nor serve the host's files.
//
// Promise: A3
func TestDocument_NetworkOfHost(t *testing.T) {
	r, err := ParseRules("access.yaml", []byte(`
version: 1
rules:
  - name: netters
    who: user:1002
    may: [read, networks]
    networks: [lab]
    images: /srv/boot
`))
	if err != nil {
		t.Fatal(err)
	}
	g := &Authorizer{Config: Config{Networks: &network.Networks{}}, routeInto: func(p netip.Prefix, _ string) (string, error) {
		if p.Overlaps(netip.MustParsePrefix("10.20.0.0/16")) {
			return "eth0", nil
		}
		return "", nil
	}}
	g.rules.Store(r)
	for inside, want := range map[string]bool{
		"<ip address='10.9.0.1' prefix='24'/>":                            true,
		"<forward mode='nat'/><ip address='10.9.0.1' prefix='24'/>":       true,
		"<forward mode='bridge'/><bridge name='br0'/>":                    false,
		"<forward mode='passthrough'><interface dev='eth0'/></forward>":   false,
		"<bridge name='docker0'/><ip address='10.9.0.1' prefix='24'/>":    false,
		"<bridge name='virbr0-nic'/><ip address='10.9.0.1' prefix='24'/>": false,
		"<bridge name='virbr7'/><ip address='10.9.0.1' prefix='24'/>":     true,
		"<bridge name='lab'/><ip address='10.9.0.1' prefix='24'/>":        true,
		// The TFTP server follows links and may run as root.
		"<ip address='10.9.0.1' prefix='24'><tftp root='/srv/boot/x'/></ip>": false,
		"<ip address='10.9.0.1' prefix='24'><tftp root='/etc'/></ip>":        false,
		"<ip address='10.9.0.1' prefix='24'><tftp root='etc'/></ip>":         false,
		// Nor can it redirect the host's packets to a network.
		"<ip address='8.8.8.1' prefix='24'/>":                                                          false,
		"<ip address='10.9.0.1' prefix='4'/>":                                                          false,
		"<ip address='172.16.0.1' prefix='11'/>":                                                       false,
		"<ip address='2001:db8::1' prefix='64'/>":                                                      false,
		"<ip address='fd00:1:2::1' prefix='64'/>":                                                      true,
		"<ip address='172.20.0.1' prefix='16'/>":                                                       true,
		"<ip address='192.168.9.1' prefix='24'/>":                                                      true,
		"<ip address='10.20.30.1' prefix='24'/>":                                                       false,
		"<ip address='169.254.1.1' prefix='24'/>":                                                      false,
		"<ip address='fe80::1' prefix='64'/>":                                                          true,
		"<ip address='10.9.0.1' prefix='24'/><route address='0.0.0.0' prefix='0' gateway='10.9.0.2'/>": false,
		// Nor can guests appear as the host, or as root on it.
		"<forward mode='nat'><nat><port start='1024' end='2000'/></nat></forward><ip address='10.9.0.1' prefix='24'/>":                  true,
		"<forward mode='nat'><nat><port start='1' end='1023'/></nat></forward><ip address='10.9.0.1' prefix='24'/>":                     false,
		"<forward mode='nat'><nat><address start='192.168.1.7' end='192.168.1.7'/></nat></forward><ip address='10.9.0.1' prefix='24'/>": false,
		// If an element occurs twice, the parsed value counts.
		"<forward mode='nat'/><forward mode='bridge'/><bridge name='br0'/>": false,
		"</network><network><forward mode='bridge'/><bridge name='br0'/>":   false,
	} {
		_, err := g.CheckDocument(user1(1002), Networks, Resource{}, "<network><name>lab</name>"+inside+"</network>")
		if (err == nil) != want {
			t.Errorf("%s: %v", inside, err)
		}
	}
}

// A secret is a key: a client that has it used can decrypt other users' images. So it needs a rule that names
// the secret, by UUID or by usage, unless the guest already uses it.
//
// Promise: A11
func TestDocument_SecretsOfOthers(t *testing.T) {
	records, err := store.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = records.Close() })
	book, err := secret.Open(secret.Config{Store: records, Key: filepath.Join(t.TempDir(), "key"), Events: event.NewLog(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(book.Close)
	ids := map[string]string{}
	for _, volume := range []string{"/srv/build/mine", "/srv/others", "/srv/given", "/srv/had"} {
		d, err := book.Define(scope.Daemon("a test"), "<secret><usage type='volume'><volume>"+volume+"</volume></usage></secret>", true)
		if err != nil {
			t.Fatal(err)
		}
		ids[volume] = d.UUID
	}
	r, err := ParseRules("access.yaml", []byte(`
version: 1
rules:
  - name: builders
    who: user:1002
    may: [define, change, volumes]
    guests: build-*
    pools: build
    images: /srv/build
    secrets: ["/srv/build/*", "`+ids["/srv/given"]+`"]
  - name: others
    who: user:1003
    may: [define, change, volumes]
    guests: build-*
    pools: build
    images: /srv/build
  - name: owners
    who: user:1004
    may: all
`))
	if err != nil {
		t.Fatal(err)
	}
	g := &Authorizer{Config: Config{Secrets: book}}
	g.rules.Store(r)
	disk := func(key string) string {
		return "<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='/srv/build/a'><encryption format='luks'><secret type='passphrase' " + key +
			"/></encryption></source><target dev='vda' bus='virtio'/></disk>"
	}
	by := func(volume string) string { return "uuid='" + ids[volume] + "'" }
	guestOf := NewGuest("build-1", "", nil)
	guestOf.member = fleet.Member{View: &guest.View{Name: "build-1", Inactive: definitionOf(t, "", disk(by("/srv/had")))}}
	volume := func(key string) string {
		return "<volume><name>v</name><capacity>1</capacity><target><encryption format='luks'><secret type='passphrase' " + key + "/></encryption></target></volume>"
	}
	build := Resource{Kind: Pool, Name: "build"}
	builder, other, owner := user1(1002), user1(1003), user1(1004)
	for _, c := range []struct {
		what string
		who  Principal
		on   Resource
		doc  string
		want bool
	}{
		{"by what it is for", builder, guestOf, disk(by("/srv/build/mine")), true},
		{"named by what it is for", builder, guestOf, disk("usage='/srv/build/mine'"), true},
		{"by itself", builder, guestOf, disk(by("/srv/given")), true},
		{"one of others", builder, guestOf, disk(by("/srv/others")), false},
		{"one of others, spelt otherwise", builder, guestOf, disk("uuid='" + strings.ToUpper(ids["/srv/others"]) + "'"), false},
		{"its own, spelt otherwise", builder, guestOf, disk("uuid='" + strings.ReplaceAll(ids["/srv/given"], "-", "") + "'"), true},
		{"one of others, by what it is for", builder, guestOf, disk("usage='/srv/others'"), false},
		{"one for what is called like another", builder, guestOf, disk("usage='" + ids["/srv/given"] + "'"), false},
		{"one that is not there", builder, guestOf, disk("usage='/srv/build/later'"), false},
		{"what the guest has", other, guestOf, disk(by("/srv/had")), true},
		{"what the guest has not", other, guestOf, disk(by("/srv/build/mine")), false},
		{"a key of a TPM's state", builder, guestOf, "<tpm model='tpm-crb'><backend type='emulator'><encryption secret='" + ids["/srv/others"] + "'/></backend></tpm>", false},
		{"a volume", builder, build, volume(by("/srv/given")), true},
		{"a volume with one of others", builder, build, volume(by("/srv/others")), false},
		{"a volume of who has none", other, build, volume(by("/srv/given")), false},
		{"a client that may do everything", owner, guestOf, disk(by("/srv/others")), true},
		{"root", user1(0), guestOf, disk(by("/srv/others")), true},
	} {
		verb := Change
		if c.on.Kind == Pool {
			verb = Volumes
		}
		if _, err := g.CheckDocument(c.who, verb, c.on, c.doc); (err == nil) != c.want || err != nil && !fault.Is(err, fault.Denied) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}

// Volumes in a guest's marks are deleted with its tile, so naming them needs rights to them.
//
// Promise: A3
func TestDocument_MarksOfForeignVolumes(t *testing.T) {
	g, who, _ := builder(t)
	g.Config = Config{Guests: &guest.Registry{}, Pools: &volume.Pools{}}
	mark := func(pool string) string {
		return "<guest><label name='tile' value='shop/1'/><volume pool='" + pool + "' name='db.qcow2'/></guest>"
	}
	define := func(pool string) error {
		_, err := g.CheckDocument(who, Define, Resource{}, "<domain type='qemu'><name>build-1</name><metadata>"+
			strings.Replace(mark(pool), "<guest>", "<guest xmlns='"+fleet.Namespace+"'>", 1)+
			"</metadata><memory>1024</memory><os><type arch='x86_64' machine='q35'>hvm</type></os></domain>")
		return err
	}
	r, err := ParseRules("access.yaml", []byte(example))
	if err != nil {
		t.Fatal(err)
	}
	g.rules.Store(r)
	for pool, want := range map[string]bool{"build": true, "default": false} {
		if err := define(pool); (err == nil) != want || err != nil && !fault.Is(err, fault.Denied) {
			t.Errorf("a definition with a volume of pool %s: %v", pool, err)
		}
		marks, err := fleet.ReadMarks(strings.Replace(mark(pool), "<guest>", "<guest xmlns='"+fleet.Namespace+"'>", 1))
		if err != nil {
			t.Fatal(err)
		}
		if err := r.checkMarkedVolumes(who, marks); (err == nil) != want {
			t.Errorf("marks with a volume of pool %s: %v", pool, err)
		}
		on := NewGuest("build-1", "", nil)
		on.member.Marks = marks
		if err := r.checkMarkedVolumes(who, marks, on); err != nil {
			t.Errorf("marks as they were: %v", err)
		}
	}
}

// Marks are checked in their stored form, whatever prefix the client uses; no prefix hides them.
//
// Promise: A3
func TestMark_StoredPrefix(t *testing.T) {
	r, err := ParseRules("access.yaml", []byte("version: 1\nrules: [{name: some, who: \"user:1002\", may: [read, define], images: /srv/build}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	g := &Authorizer{Config: Config{Guests: &guest.Registry{}, Pools: &volume.Pools{}}}
	g.rules.Store(r)
	for _, c := range []struct {
		key, doc, want string
	}{
		{"k", "<guest xmlns:lodge='urn:x'><label name='a' value='b'/></guest>", ""},
		{"k", "<guest xmlns:lodge='urn:x' priority='-1'/>", "denied"},
		{"k", "<guest xmlns:lodge='urn:x'><volume pool='default' name='db.qcow2'/></guest>", "denied"},
		{"lodge", "<guest xmlns:lodge='urn:x' priority='-1'/>", "invalid"}, // it cannot be stored either
		{"lodge", "<guest priority='-1'/>", "denied"},
		{"", "", ""},
	} {
		got := ""
		err := g.CheckMarks(user1(1002), "u", c.key, c.doc)
		if err != nil {
			got = fault.Of(err).String()
		}
		if got != c.want {
			t.Errorf("%s under %q: %v", c.doc, c.key, err)
		}
	}
	// Marks that cannot be parsed may contain any label.
	if r, err = ParseRules("access.yaml", []byte("version: 1\nrules: [{name: most, who: \"user:1002\", may: [read, define], guests: \"!label=team:infra\"}]\n")); err != nil {
		t.Fatal(err)
	}
	g.rules.Store(r)
	for doc, want := range map[string]bool{"<guest><label name='team' value='web'/></guest>": true, "<guest priority='high'><label name='team' value='infra'/></guest>": false} {
		if err := g.CheckMarks(user1(1002), "u", "lodge", doc); (err == nil) != want || err != nil && !fault.Is(err, fault.Denied) {
			t.Errorf("%s: %v", doc, err)
		}
	}
}

// A client that gives the UUID of another's object does not learn the owner, unless it may see the object.
//
// Promise: A1
func TestDocument_UUIDOfInvisibleObject(t *testing.T) {
	r, err := ParseRules("access.yaml", []byte("version: 1\nrules:\n  - {name: poolers, who: \"user:1002\", may: [read, pools, networks], pools: mine, networks: mine}\n  - {name: lookers, who: \"user:1002\", may: read, pools: seen}\n"))
	if err != nil {
		t.Fatal(err)
	}
	for name, told := range map[string]bool{"secret": false, "seen": true} {
		err := r.checkExisting(user1(1002), Pools, Resource{Kind: Pool, Name: name}, "mine", "u")
		if !fault.Is(err, fault.Denied) || strings.Contains(err.Error(), name) != told {
			t.Errorf("the UUID of %s: %v", name, err)
		}
	}
	if err := r.checkExisting(user1(1002), Pools, Resource{Kind: Pool, Name: "mine"}, "other", "u"); err != nil {
		t.Errorf("one's own: %v", err)
	}

	st, err := store.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	pools, err := volume.Open(volume.Options{Store: st, Events: event.NewLog(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pools.Close(); _ = st.Close() })
	const id = "11111111-2222-3333-4444-55555555abcd"
	named := func(name, id string) string {
		return "<pool type='dir'><name>" + name + "</name><uuid>" + id + "</uuid><target><path>/srv/" + name + "</path></target></pool>"
	}
	if _, err := pools.Define(t.Context(), scope.Daemon("a test"), named("secret", id), false); err != nil {
		t.Fatal(err)
	}
	nets, err := network.Open(t.Context(), network.Config{Data: t.TempDir(), Run: t.TempDir(), Instance: "told", Store: st, Events: event.NewLog(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nets.Close)
	net := func(name, id string) string {
		return "<network><name>" + name + "</name><uuid>" + id + "</uuid><ip address='10.9.0.1' prefix='24'/></network>"
	}
	if _, err := nets.Define(t.Context(), scope.Daemon("a test"), net("secret", id), false); err != nil {
		t.Fatal(err)
	}
	g := &Authorizer{Config: Config{Pools: pools, Networks: nets}, routeInto: func(netip.Prefix, string) (string, error) { return "", nil }}
	g.rules.Store(r)
	docs := []string{net("mine", id), net("mine", strings.ToUpper(id))}
	for _, spelt := range []string{id, strings.ToUpper(id), strings.ReplaceAll(id, "-", ""), "{" + id + "}", " urn:uuid:" + id} {
		docs = append(docs, named("mine", spelt))
	}
	for _, doc := range docs {
		_, err := g.CheckDocument(user1(1002), Pools, Resource{}, doc)
		if !fault.Is(err, fault.Denied) || !strings.Contains(err.Error(), "another object has it") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", doc, err)
		}
	}
}

// A client that defines pools and volumes may do so in its own places, as directories only. Other pool types
// use the host's devices, volume groups or other hosts' exports.
//
// Promise: A3
func TestDocument_PoolOfHost(t *testing.T) {
	r, err := ParseRules("access.yaml", []byte("version: 1\nrules: [{name: poolers, who: \"user:1002\", may: [read, pools, volumes], pools: mine, images: /srv/mine}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	g := &Authorizer{Config: Config{Pools: &volume.Pools{}}}
	g.rules.Store(r)
	pool := func(kind, source, target string) string {
		return "<pool type='" + kind + "'><name>mine</name><source>" + source + "</source><target><path>" + target + "</path></target></pool>"
	}
	lower := func(path string) string {
		return "<volume><name>upper</name><capacity>1</capacity><target><format type='qcow2'/></target><backingStore><path>" + path + "</path><format type='raw'/></backingStore></volume>"
	}
	on := Resource{Kind: Pool, Name: "mine"}
	for _, c := range []struct {
		doc  string
		want bool
	}{
		{pool("dir", "", "/srv/mine"), true},
		{pool("dir", "", "/srv/mine/images"), true},
		{pool("dir", "", "/srv"), false},
		{pool("dir", "", "/srv/mine/../others"), false},
		{pool("dir", "", "/srv/mines"), false},
		{pool("dir", "", "srv/mine"), false},
		{pool("fs", "<device path='/srv/mine/disk'/>", "/srv/mine"), false},
		{pool("netfs", "<host name='files'/><dir path='/srv/mine'/>", "/srv/mine"), false},
		{pool("logical", "<name>vg0</name>", "/srv/mine"), false},
		{pool("logical", "<name>vg0</name>", "/dev/vg0"), false},
		{pool("disk", "<device path='/srv/mine/disk'/>", "/srv/mine"), false},
		{strings.Replace(pool("dir", "", "/srv/mine"), "</name>", "</name><name>others</name>", 1), false},
		{lower("/srv/mine/lower"), true},
		{lower("/srv/others/lower"), false},
		{lower("/srv/mine/../others/lower"), false},
		{lower("lower"), false},
	} {
		verb := Volumes
		if strings.HasPrefix(c.doc, "<pool") {
			verb = Pools
		}
		if _, err := g.CheckDocument(user1(1002), verb, on, c.doc); (err == nil) != c.want || err != nil && !fault.Is(err, fault.Denied) {
			t.Errorf("%s: %v", c.doc, err)
		}
	}
}

// A rule about all guests but one recognizes that one in every spelling of its UUID.
//
// Promise: A1
func TestDocument_UUIDSpellings(t *testing.T) {
	const id = "11111111-2222-3333-4444-55555555abcd"
	r, err := ParseRules("access.yaml", []byte("version: 1\nrules: [{name: most, who: \"user:1002\", may: [read, define], guests: \"!uuid="+id+"\"}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	g := &Authorizer{Config: Config{Guests: &guest.Registry{}, Pools: &volume.Pools{}}}
	g.rules.Store(r)
	for spelt, want := range map[string]bool{
		id: false, strings.ToUpper(id): false, strings.ReplaceAll(id, "-", ""): false, "{" + id + "}": false, strings.Replace(id, "1", "2", 1): true,
	} {
		_, err := g.CheckDocument(user1(1002), Define, Resource{}, "<domain type='qemu'><name>web</name><uuid>"+spelt+
			"</uuid><memory>1024</memory><os><type arch='x86_64' machine='q35'>hvm</type></os></domain>")
		if (err == nil) != want || err != nil && !fault.Is(err, fault.Denied) {
			t.Errorf("the UUID %q: %v", spelt, err)
		}
	}
}

// A restricted client cannot raise a guest's priority above that of others, by a definition or by marks. A
// priority that others gave the guest stays.
//
// Promise: A3
func TestRank_AboveOthers(t *testing.T) {
	g, who, on := builder(t)
	g.Config = Config{Guests: &guest.Registry{}, Pools: &volume.Pools{}}
	had := on
	had.member.Marks = &fleet.Marks{Priority: -5}
	for _, c := range []struct {
		what     string
		who      Principal
		had      Resource
		priority int
		want     bool
	}{
		{"as all have it", who, on, 0, true},
		{"behind others", who, on, 1000, true},
		{"before others", who, on, -1, false},
		{"as it was", who, had, -5, true},
		{"further behind", who, had, -1, true},
		{"further before", who, had, -6, false},
		{"root", user1(0), on, -1000, true},
	} {
		if err := g.CheckPriority(c.who, c.priority, c.had); (err == nil) != c.want || err != nil && !fault.Is(err, fault.Denied) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	_, err := g.CheckDocument(who, Define, Resource{}, "<domain type='qemu'><name>build-1</name><metadata><guest xmlns='"+fleet.Namespace+
		"' priority='-1'/></metadata><memory>1024</memory><os><type arch='x86_64' machine='q35'>hvm</type></os></domain>")
	if !fault.Is(err, fault.Denied) || !strings.Contains(err.Error(), "priority below 0") {
		t.Errorf("a definition: %v", err)
	}
}

// A restricted client cannot give a guest more shares of memory than usual. It may keep or lower those that others gave.
func TestShares_AboveUsual(t *testing.T) {
	g, who, on := builder(t)
	g.Config = Config{Guests: &guest.Registry{}, Pools: &volume.Pools{}}
	had := on
	had.member.Marks = &fleet.Marks{Memory: fleet.MemoryMarks{Shares: 3000}}
	for _, c := range []struct {
		what   string
		who    Principal
		had    Resource
		shares int
		want   bool
	}{
		{"none said", who, on, 0, true},
		{"the usual ones", who, on, fleet.UsualShares, true},
		{"more", who, on, fleet.UsualShares + 1, false},
		{"as it was", who, had, 3000, true},
		{"lower", who, had, 2000, true},
		{"higher", who, had, 3001, false},
		{"root", user1(0), on, 100000, true},
	} {
		if err := g.CheckShares(c.who, c.shares, c.had); (err == nil) != c.want || err != nil && !fault.Is(err, fault.Denied) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	_, err := g.CheckDocument(who, Define, Resource{}, "<domain type='qemu'><name>build-1</name><metadata><guest xmlns='"+fleet.Namespace+
		"'><memory shares='5000'/></guest></metadata><memory>1024</memory><os><type arch='x86_64' machine='q35'>hvm</type></os></domain>")
	if !fault.Is(err, fault.Denied) || !strings.Contains(err.Error(), "shares of memory") {
		t.Errorf("a definition: %v", err)
	}
}

// A restricted client cannot give a guest more weight than the default, by a definition or by a change. A
// weight that others gave the guest stays.
func TestWeigh_AboveDefault(t *testing.T) {
	g, who, on := builder(t)
	g.Config = Config{Guests: &guest.Registry{Config: guest.Config{Cgroups: &kernel.Cgroups{}}}, Pools: &volume.Pools{}}
	weighs := func(shares uint64, weight uint) *domain.Definition {
		return &domain.Definition{Name: "build-1", Tune: domain.CPUTune{Shares: shares}, Blkio: domain.BlkioTune{Weight: weight}}
	}
	had := NewGuest("build-1", "", nil)
	had.member = fleet.Member{View: &guest.View{Name: "build-1", Active: weighs(0, 600), Inactive: weighs(2048, 0)}}
	for _, c := range []struct {
		what string
		who  Principal
		had  Resource
		def  *domain.Definition
		want bool
	}{
		{"as all have it", who, on, weighs(0, 0), true},
		{"as all have it, and said", who, on, weighs(1024, 500), true},
		{"less", who, on, weighs(2, 100), true},
		{"more of processors", who, on, weighs(1025, 0), false},
		{"more of disks", who, on, weighs(0, 501), false},
		{"as it was", who, had, weighs(2048, 600), true},
		{"more than it was", who, had, weighs(2049, 600), false},
		{"root", user1(0), on, weighs(262144, 10000), true},
	} {
		if err := g.checkWeights(c.who, c.def, c.had); (err == nil) != c.want || err != nil && !fault.Is(err, fault.Denied) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	for _, tune := range []string{"<cputune><shares>4096</shares></cputune>", "<blkiotune><weight>1000</weight></blkiotune>"} {
		_, err := g.CheckDocument(who, Define, Resource{}, "<domain type='qemu'><name>build-1</name><memory>1024</memory>"+tune+
			"<os><type arch='x86_64' machine='q35'>hvm</type></os></domain>")
		if !fault.Is(err, fault.Denied) || !strings.Contains(err.Error(), "weights above the usual ones (1024 of processors, 500 of disks)") {
			t.Errorf("a definition with %s: %v", tune, err)
		}
	}
	if err := wants(t, g, 1002, Change, weighs(4096, 0)); !fault.Is(err, fault.Denied) {
		t.Errorf("a change: %v", err)
	}
}
