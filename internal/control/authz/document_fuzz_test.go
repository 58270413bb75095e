package authz

import (
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/control/fleet"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/host/network"
	"github.com/lodge-kvm/lodge/internal/host/volume"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// bounded are the rules of a client with many rights and few places.
const bounded = `
version: 1
rules:
  - name: builders
    who: user:1002
    may: [read, define, change, volumes, pools, networks]
    guests: build-*
    pools: build
    networks: lab
    images: /srv/build
`

// bounds are documents of a client; a guest is made around each device.
var bounds = []string{
	"<disk type='file' device='disk'><driver name='qemu' type='qcow2'/><source file='/srv/build/a'/><backingStore type='file'><format type='raw'/><source file='/srv/build/b'/></backingStore><target dev='vda' bus='virtio'/></disk>",
	"<disk type='file' device='cdrom'><driver name='qemu' type='raw'/><source file='/etc/shadow'/><target dev='sda' bus='sata'/></disk>",
	"<disk type='block' device='disk'><driver name='qemu' type='raw'/><source dev='/dev/sda'/><target dev='vda' bus='virtio'/></disk>",
	"<disk type='volume' device='disk'><driver name='qemu' type='raw'/><source pool='build' volume='v'/><target dev='vda' bus='virtio'/></disk>",
	"<interface type='network'><source network='lab'/><model type='virtio'/></interface>",
	"<interface type='bridge'><source bridge='br0'/></interface>",
	"<interface type='direct'><source dev='eth0' mode='bridge'/></interface>",
	"<serial type='unix'><source mode='bind' path='/srv/build/s'/><log file='/srv/build/l' append='on'/><target port='0'/></serial>",
	"<serial type='file'><source path='/etc/passwd'/></serial>",
	"<serial type='tcp'><source mode='connect' host='127.0.0.1' service='22'/><protocol type='raw'/></serial>",
	"<channel type='unix'><source mode='bind'/><target type='virtio' name='org.qemu.guest_agent.0'/></channel>",
	"<hostdev mode='subsystem' type='pci'><source><address domain='0' bus='1' slot='0' function='0'/></source></hostdev>",
	"<rng model='virtio'><backend model='random'>/dev/urandom</backend></rng>",
	"<rng model='virtio'><backend model='random'>/dev/sda</backend></rng>",
	"<tpm model='tpm-crb'><backend type='passthrough'><device path='/dev/tpm0'/></backend></tpm>",
	"<graphics type='vnc' socket='/srv/build/vnc'/>",
	"<graphics type='vnc'><listen type='socket' socket='../x'/></graphics>",
	"<emulator>/tmp/qemu</emulator>",
	"<input type='passthrough' bus='virtio'><source evdev='/dev/input/event0'/></input>",
	"<filesystem type='mount'><source dir='/'/><target dir='/x'/></filesystem>",
	"<memory model='nvdimm'><source><path>/srv/x</path></source><target><size unit='MiB'>1</size><node>0</node></target></memory>",
}

// FuzzDocument submits documents for a restricted client. Accepted ones name nothing of
// the host outside these places, checked by inspecting every word of the parsed definition.
//
// Promise: A3
func FuzzDocument(f *testing.F) {
	const head, tail = "<domain type='qemu'><name>build-1</name><memory>1024</memory><os><type arch='x86_64' machine='q35'>hvm</type>", "</domain>"
	for _, part := range bounds {
		f.Add(part)
		f.Add(head + "</os><devices>" + part + "</devices>" + tail)
	}
	for _, os := range []string{
		"<kernel>/srv/build/k</kernel><cmdline>/etc</cmdline>", "<loader readonly='yes' type='pflash'>/usr/share/OVMF/x</loader><nvram template='/etc/x'>/srv/build/n</nvram>",
		"<initrd>/srv/build/../x</initrd>", "<kernel>k</kernel>",
	} {
		f.Add(head + os + "</os>" + tail)
	}
	f.Add("<network><name>lab</name><forward mode='nat'/><ip address='10.9.0.1' prefix='24'><tftp root='/srv/build/x'/></ip></network>")
	f.Add("<network><name>lab</name><forward mode='bridge'/><bridge name='br0'/></network>")
	f.Add("<pool type='dir'><name>build</name><target><path>/srv/build/p</path></target></pool>")
	f.Add("<volume><name>v</name><capacity>1</capacity><backingStore><path>/etc/x</path></backingStore></volume>")
	rules, err := ParseRules("access.yaml", []byte(bounded))
	if err != nil {
		f.Fatal(err)
	}
	g := &Authorizer{Config: Config{Guests: &guest.Registry{}, Networks: &network.Networks{}, Pools: &volume.Pools{}}, routeInto: network.RouteInto}
	g.rules.Store(rules)
	had, err := domainxml.Parse(head+"</os><devices>"+bounds[1]+"</devices>"+tail, domainxml.Options{})
	if err != nil {
		f.Fatal(err)
	}
	on := NewGuest("build-1", "", nil)
	on.member = fleet.Member{View: &guest.View{Name: "build-1", Inactive: had}}
	f.Fuzz(func(t *testing.T, doc string) {
		root, err := xmltree.Parse(doc)
		if err != nil {
			return
		}
		verb, held := Define, on
		switch root.Name {
		case "domain":
			held = Resource{}
		case "network":
			verb, held = Networks, Resource{}
		case "pool":
			verb, held = Pools, Resource{}
		case "volume":
			verb, held = Volumes, Resource{Kind: Pool, Name: "build"}
		}
		made, err := g.CheckDocument(user1(1002), verb, held, doc)
		if err != nil {
			return
		}
		var understood any
		switch root.Name {
		case "domain":
			def, err := domainxml.Parse(doc, domainxml.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if def.Name != made.Name || !strings.HasPrefix(def.Name, "build-") {
				t.Fatalf("%q is %q", def.Name, made.Name)
			}
			withoutWords(def)
			for _, dev := range def.Devices.All() {
				keeps(t, doc, dev)
			}
			understood = def
		case "network":
			def, err := network.Parse(doc, false)
			if err != nil {
				t.Fatal(err)
			}
			if def.Name != "lab" || !def.Managed() || len(def.Options)+len(def.Routes) > 0 {
				t.Fatalf("%+v", def)
			}
			understood = def
		default:
			dev, err := domainxml.ParseDevice(doc, domainxml.Options{})
			if err != nil {
				return // it is refused later
			}
			keeps(t, doc, dev)
			understood = dev
		}
		look(t, doc, reflect.ValueOf(understood), "")
	})
}

// withoutWords removes texts for humans, and the guest kernel's command line.
func withoutWords(def *domain.Definition) {
	def.Title, def.Description, def.Metadata, def.OS.Cmdline = "", "", "", ""
}

// keeps checks that a device takes nothing of the host except files, and joins only the client's network.
func keeps(t *testing.T, doc string, dev device.Device) {
	switch d := dev.(type) {
	case *device.HostDevice:
		t.Fatalf("%s\nlets the client have a device of the host", doc)
	case *device.NIC:
		if d.Type != "network" || d.Network != "lab" && d.Network != "" { // one that names none is refused later
			t.Fatalf("%s\nlets the client join %s %q", doc, d.Type, d.Network)
		}
	}
}

// look finds values outside the client's places, anywhere in the definition.
func look(t *testing.T, doc string, v reflect.Value, at string) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			look(t, doc, v.Elem(), at)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				look(t, doc, v.Field(i), at+"."+v.Type().Field(i).Name)
			}
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			look(t, doc, v.Index(i), at)
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			look(t, doc, v.MapIndex(key), at+"["+key.String()+"]")
		}
	case reflect.String:
		path := v.String()
		if strings.HasPrefix(strings.TrimSpace(path), "/") && !allowed(path) {
			t.Fatalf("%s\nlets the client have %q as %s", doc, path, at)
		}
	}
}

func allowed(path string) bool {
	for _, glob := range append([]string{"/usr/bin/qemu-system-*", "/dev/random", "/dev/urandom", "/dev/hwrng"}, firmware...) {
		if fleet.Matches(glob, path) {
			return true
		}
	}
	return path == "/etc/shadow" || strings.HasPrefix(filepath.Clean(path), "/srv/build/") && filepath.Clean(path) == path
}
