package domainxml

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

// testHost is a host with fixed defaults.
func testHost() *Host {
	return &Host{
		Canonical: func(machine string) string {
			switch machine {
			case "pc":
				return "pc-i440fx-7.2"
			case "q35":
				return "pc-q35-7.2"
			}
			return machine
		},
		Emulator: "/usr/bin/qemu-system-x86_64",
		CPUModel: "qemu64",
		Random:   bytes.NewReader(bytes.Repeat([]byte{0xab, 0xcd, 0xef, 0x01}, 100)),
	}
}

func same(t *testing.T, got, want *domain.Definition) {
	t.Helper()
	if reflect.DeepEqual(got, want) {
		return
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(topology.CPUSet.Equal)); diff != "" {
		t.Errorf("definition (-want +got):\n%s", diff)
	}
}

// Golden files: testdata/define/NAME.out is the dump of NAME.xml after it is
// defined. UPDATE=1 writes them again.
func TestDefine(t *testing.T) {
	inputs, err := filepath.Glob("testdata/define/*.xml")
	if err != nil || len(inputs) < 40 {
		t.Fatalf("%d inputs, %v", len(inputs), err)
	}
	for _, input := range inputs {
		t.Run(strings.TrimSuffix(filepath.Base(input), ".xml"), func(t *testing.T) {
			doc, err := os.ReadFile(input)
			if err != nil {
				t.Fatal(err)
			}
			def, err := Parse(string(doc), Options{Submitted: true, Host: testHost()})
			if err != nil {
				t.Fatal(err)
			}
			got, err := Format(def, Style{Secure: true})
			if err != nil {
				t.Fatal(err)
			}
			golden := strings.TrimSuffix(input, ".xml") + ".out"
			if os.Getenv("UPDATE") != "" {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("document (-want +got):\n%s", diff)
			}
			again, err := Parse(got, Options{})
			if err != nil {
				t.Fatal(err)
			}
			same(t, again, def)
			// The dump is complete: defining it again changes only the order, because added
			// devices join their kind.
			def.Devices.SortDisks()
			def.Devices.SortControllers()
			completed, err := Parse(got, Options{Validate: true, Host: &Host{Random: bytes.NewReader(nil)}})
			if err != nil {
				t.Fatal(err)
			}
			same(t, completed, def)
		})
	}
}

// in puts devices or other XML into an otherwise valid guest.
func in(devices, rest string) string {
	return `<domain type='kvm'><name>a</name><memory>1048576</memory><os><type>hvm</type></os>` +
		rest + `<devices>` + devices + `</devices></domain>`
}

func TestParse_Refusals(t *testing.T) {
	const disk = `<disk><source file='/a'/><target dev='vda'/></disk>`
	for name, c := range map[string]struct {
		doc     string
		kind    fault.Kind
		subject fault.Subject
		text    string
	}{
		"not XML":              {"domain", fault.Invalid, fault.XML, "text outside"},
		"other document":       {"<network/>", fault.Invalid, fault.XML, "<domain>"},
		"no name":              {"<domain type='kvm'/>", fault.Invalid, fault.XML, "no name"},
		"slash in name":        {"<domain type='kvm'><name>a/b</name></domain>", fault.Invalid, fault.XML, "slash"},
		"no type":              {"<domain><name>a</name></domain>", fault.Invalid, fault.XML, "type"},
		"other type":           {"<domain type='xen'/>", fault.Unsupported, fault.Config, `"xen"`},
		"no memory":            {"<domain type='kvm'><name>a</name><os><type>hvm</type></os></domain>", fault.Invalid, fault.XML, "no memory"},
		"no os type":           {"<domain type='kvm'><name>a</name><memory>1</memory><os><type/></os></domain>", fault.Invalid, fault.XML, "hvm"},
		"other arch":           {"<domain type='qemu'><os><type arch='s390x'>hvm</type></os></domain>", fault.Unsupported, fault.Config, "s390x"},
		"bad uuid":             {"<domain type='kvm'><name>a</name><uuid>x</uuid></domain>", fault.Invalid, fault.XML, "UUID"},
		"bad number":           {in("", "<vcpu>two</vcpu>"), fault.Invalid, fault.XML, `vcpu: "two"`},
		"zero vcpus":           {in("", "<vcpu>0</vcpu>"), fault.Invalid, fault.XML, "at least one"},
		"too many vcpus":       {in("", "<vcpu>100000</vcpu>"), fault.Invalid, fault.XML, "100000"},
		"current above max":    {in("", "<vcpu current='3'>2</vcpu>"), fault.Unsupported, fault.Config, "3 current"},
		"overflowing memory":   {in("", "<memtune><hard_limit unit='EiB'>99</hard_limit></memtune>"), fault.Invalid, fault.XML, "too much"},
		"more when rounded":    {strings.Replace(in("", ""), "<memory", "<memory unit='b'>9223372036854775807</memory><memory", 1), fault.Invalid, fault.XML, "too much memory"},
		"far holes":            {in("<controller type='pci' model='pcie-root'><pcihole64 unit='b'>9223372036854774785</pcihole64></controller>", ""), fault.Invalid, fault.XML, "too much memory"},
		"modules without end":  {in("", "<maxMemory slots='1' unit='b'>9223372036854774785</maxMemory>"), fault.Invalid, fault.XML, "too much memory"},
		"unknown unit":         {in("", "<memtune><hard_limit unit='furlong'>9</hard_limit></memtune>"), fault.Invalid, fault.XML, "furlong"},
		"bad cpu list":         {in("", "<vcpu cpuset='1-'>2</vcpu>"), fault.Invalid, fault.XML, "cpuset"},
		"topology mismatch":    {in("", "<vcpu>3</vcpu><cpu><topology sockets='1' cores='2' threads='1'/></cpu>"), fault.Unsupported, fault.Config, "2 vcpus"},
		"topology that wraps":  {in("", "<vcpu>1</vcpu><cpu><topology sockets='3' cores='12297829382473034411' threads='1'/></cpu>"), fault.Invalid, fault.XML, "each from 1 to"},
		"bad switch":           {in("<controller type='scsi'><driver ioeventfd='yes'/></controller>", ""), fault.Invalid, fault.XML, "devices/controller/driver/@ioeventfd"},
		"bad mac":              {in("<interface type='user'><mac address='52:54:00:1'/></interface>", ""), fault.Invalid, fault.XML, "MAC"},
		"multicast mac":        {in("<interface type='user'><mac address='53:54:00:00:00:01'/></interface>", ""), fault.Invalid, fault.XML, "multicast"},
		"bad pci slot":         {in("<panic><address type='pci' bus='0' slot='0x20'/></panic>", ""), fault.Invalid, fault.XML, "PCI address"},
		"two disks one target": {in(disk+disk, ""), fault.Invalid, fault.XML, "vda"},
		"clashing drives": {
			in(`<disk><source file='/a'/><target dev='sda' bus='sata'/></disk><disk><source file='/b'/><target dev='sdc' bus='sata'/>`+
				`<address type='drive' controller='0' bus='0' target='0' unit='0'/></disk>`, ""),
			fault.Unsupported, fault.Config, "sda and sdc",
		},
		"no target":         {in("<disk><source file='/a'/></disk>", ""), fault.Invalid, fault.XML, "target"},
		"empty disk":        {in("<disk><target dev='vda'/></disk>", ""), fault.Invalid, fault.XML, "no source"},
		"boot twice":        {in(`<disk><source file='/a'/><target dev='vda'/><boot order='1'/></disk><interface type='user'><boot order='1'/></interface>`, ""), fault.Unsupported, fault.Config, "order 1"},
		"network disk":      {in(disk+"<disk type='network'><source protocol='nbd' name='x'/><target dev='vdb'/></disk>", ""), fault.Unsupported, fault.Config, "devices/disk[2]/@type"},
		"page per vq":       {in("<interface type='user'><driver name='qemu' page_per_vq='on'/></interface>", ""), fault.Unsupported, fault.Config, "devices/interface/driver/@page_per_vq"},
		"shared memory":     {in("<shmem name='x'><model type='ivshmem-plain'/></shmem>", ""), fault.Unsupported, fault.Config, "devices/shmem"},
		"several at once":   {in("<iommu model='intel'/><filesystem type='mount'><source dir='/a'/><target dir='b'/></filesystem>", ""), fault.Unsupported, fault.Config, "devices/iommu, devices/filesystem"},
		"virtio-mem":        {in("<memory model='virtio-mem'><target><size>1024</size><node>0</node></target></memory>", ""), fault.Unsupported, fault.Config, "virtio-mem"},
		"module of no cell": {in("<memory model='dimm'><target><size>1024</size></target></memory>", ""), fault.Invalid, fault.XML, "needs a node"},
		"user of a source":  {in("<disk><source file='/a'><seclabel model='dac' relabel='yes'><label>x</label></seclabel></source><target dev='vda'/></disk>", ""), fault.Invalid, fault.XML, "seclabel"},
		"label of a layer":  {in("<disk><source file='/a'><seclabel model='selinux' relabel='no'><label>x</label></seclabel></source><target dev='vda'/></disk>", ""), fault.Invalid, fault.XML, "no label"},
		"label of a port":   {in("<serial type='file'><source path='/a'><seclabel model='selinux' relabel='no'/></source></serial>", ""), fault.Unsupported, fault.Config, "seclabel"},
		"qemu capabilities": {`<domain type='kvm' xmlns:qemu='` + qemuSpace + `'><name>a</name><memory>1</memory><os><type>hvm</type></os><qemu:capabilities><qemu:add capability='x'/></qemu:capabilities></domain>`, fault.Unsupported, fault.Config, "capabilities"},
		"spelt iothreads":   {in("", "<iothreads>1</iothreads><iothreadids><iothread id='5'/></iothreadids>"), fault.Unsupported, fault.Config, "iothreadids"},
		"slots that repeat": {in(`<channel type='null'><target type='virtio' name='a'/><address type='virtio-serial' controller='0' bus='0' port='1'/></channel><channel type='null'><target type='virtio' name='b'/><address type='virtio-serial' controller='0' bus='0' port='1'/></channel>`, ""), fault.Invalid, fault.XML, "virtio-serial 0:0:1"},
		"far controller":    {in("<disk><source file='/a'/><target dev='sda'/><address type='drive' controller='4000000000' bus='0' target='0' unit='0'/></disk>", ""), fault.Invalid, fault.XML, "controller 4000000000"},
		"too many devices":  {in(strings.Repeat("<hub type='usb'/>", MaxDevices+1), ""), fault.Invalid, fault.XML, "devices are more"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse(c.doc, Options{Host: testHost()})
			if err == nil {
				t.Fatal("accepted")
			}
			if fault.Of(err) != c.kind || fault.About(err) != c.subject || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%v about %v: %v", fault.Of(err), fault.About(err), err)
			}
		})
	}
}

func TestParse_UnknownElements(t *testing.T) {
	doc := in("<disk glow='on'><source file='/a'/><target dev='vda'/></disk>", "<shiny/><description/>")
	if _, err := Parse(doc, Options{Host: testHost()}); err != nil {
		t.Fatal(err)
	}
	_, err := Parse(doc, Options{Host: testHost(), Validate: true})
	if fault.Of(err) != fault.Invalid || fault.About(err) != fault.XML ||
		!strings.HasSuffix(err.Error(), "unknown shiny, devices/disk/@glow") {
		t.Fatalf("%v about %v: %v", fault.Of(err), fault.About(err), err)
	}
}

func TestFormat_Passwords(t *testing.T) {
	def, err := Parse(in("<graphics type='vnc' passwd='hush'/>", ""), Options{Host: testHost()})
	if err != nil {
		t.Fatal(err)
	}
	for _, style := range []Style{{}, {Active: true}, {Secure: true}} {
		text, err := Format(def, style)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(text, "hush") != style.Secure {
			t.Errorf("style %+v gives\n%s", style, text)
		}
	}
}

// Promise: I6
func TestActive_ReadsBack(t *testing.T) {
	def := &domain.Definition{
		Virt: "kvm", Name: "a", Memory: 1 << 30, VCPUs: domain.VCPUs{Max: 1, Current: 1},
		SecLabels: []domain.SecLabel{
			{Type: "dynamic", Model: "dac", Relabel: device.Off, Label: "+70007:+70007"},
			{Type: "dynamic", Model: "selinux", Relabel: device.On, Label: "u:r:t:s0:c1,c2", ImageLabel: "u:r:i:s0:c1,c2"},
		},
		Devices: device.Set{
			Disks: []*device.Disk{{
				Info: device.Info{Alias: "virtio-disk0"}, Device: "disk", Format: "qcow2", Target: "vda", Bus: "virtio",
				Source:      &device.DiskSource{File: "/a", Index: 2},
				BackingSaid: true, Backing: []device.BackingLayer{{Source: &device.DiskSource{File: "/b", Index: 1}, Format: "raw"}, {Terminator: true}},
			}},
			NICs:     []*device.NIC{{Info: device.Info{Alias: "net0"}, Type: "network", Network: "default", Bridge: "virbr0", Target: "vnet0"}},
			Consoles: []*device.Char{{Role: device.Console, TargetType: "serial", PortSaid: true, Backend: device.Backend{Type: "pty", Path: "/dev/pts/3"}}},
			Channels: []*device.Char{{Role: device.Channel, TargetType: "virtio", Name: "g", State: "connected", Backend: device.Backend{Type: "unix", Mode: "bind", Path: "/s"}}},
			Graphics: []*device.Graphics{{Type: "vnc", Port: 5901, AutoPort: device.On}},
			VSock:    &device.VSock{Model: "virtio", Auto: device.On, CID: 3},
		},
	}
	text, err := Format(def, Style{Active: true, ID: 4})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"<domain type='kvm' id='4'>", "<source file='/a' index='2'/>", "<backingStore type='file' index='1'>",
		"<source network='default' bridge='virbr0'/>", "<target dev='vnet0'/>", "<alias name='net0'/>",
		"<console type='pty' tty='/dev/pts/3'>", "state='connected'", "port='5901' autoport='yes'", "<cid auto='yes' address='3'/>", "<label>+70007:+70007</label>",
		"<label>u:r:t:s0:c1,c2</label>", "<imagelabel>u:r:i:s0:c1,c2</imagelabel>",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	again, err := Parse(text, Options{Active: true})
	if err != nil {
		t.Fatal(err)
	}
	same(t, again, def)

	before := def.Clone()
	inactive, err := Format(def, Style{})
	if err != nil {
		t.Fatal(err)
	}
	for _, gone := range []string{"id=", "index=", "virbr0", "vnet0", "alias", "/dev/pts", "connected", "5901", "address='3'", "+70007", "c1,c2"} {
		if strings.Contains(inactive, gone) {
			t.Errorf("%s is still in\n%s", gone, inactive)
		}
	}
	same(t, def, before)
}

// The chain of a running guest is shown with its numbers; a definition shows only the chain that it was given. A job
// that is about to change the chain is shown, too, and ignored in submitted documents.
func TestActive_BackingChains(t *testing.T) {
	images := func(said bool) *device.Disk {
		return &device.Disk{
			Info: device.Info{Alias: "virtio-disk0"}, Device: "disk", Format: "qcow2", Target: "vda", Bus: "virtio",
			Source: &device.DiskSource{File: "/a", Index: 1},
			Backing: []device.BackingLayer{
				{Source: &device.DiskSource{File: "/b", Index: 2}, Format: "vmdk"},
				{Source: &device.DiskSource{Block: "/dev/c", Index: 3}, Format: "raw"},
				{Terminator: true},
			},
			BackingSaid: said,
			Mirror:      &device.Mirror{Job: "active-commit", Ready: "yes", Format: "raw", Source: &device.DiskSource{Block: "/dev/c", Index: 3}},
		}
	}
	const chain = `  <source file='/a' index='1'/>
  <backingStore type='file' index='2'>
    <format type='vmdk'/>
    <source file='/b'/>
    <backingStore type='block' index='3'>
      <format type='raw'/>
      <source dev='/dev/c'/>
      <backingStore/>
    </backingStore>
  </backingStore>
  <mirror type='block' job='active-commit' ready='yes'>
    <format type='raw'/>
    <source dev='/dev/c' index='3'/>
  </mirror>
`
	text, err := FormatDevice(images(false), Style{Active: true})
	if err != nil || !strings.Contains(text, chain) {
		t.Fatalf("%v, no\n%s in\n%s", err, chain, text)
	}
	again, err := ParseDevice(text, Options{Active: true})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(images(true), again); diff != "" { // a reader cannot tell who wrote it
		t.Errorf("read back (-want +got):\n%s", diff)
	}
	for _, said := range []bool{false, true} {
		def := &domain.Definition{Virt: "kvm", Name: "a", Memory: 1 << 30, Devices: device.Set{Disks: []*device.Disk{images(said)}}}
		text, err := Format(def, Style{})
		if err != nil || strings.Contains(text, "index=") || strings.Contains(text, "mirror") || strings.Contains(text, "<backingStore type='block'>") != said {
			t.Errorf("said is %v: %v\n%s", said, err, text)
		}
	}
	d, err := ParseDevice(strings.Replace(text, "vmdk", "raw", 1), Options{Submitted: true})
	if err != nil || d.(*device.Disk).Mirror != nil {
		t.Errorf("a client may say that a job runs, or not give what it was shown: %v", err)
	}
}

func TestParseDevice_Alone(t *testing.T) {
	for _, doc := range []string{
		"<disk type='file' device='disk'>\n  <driver name='qemu' type='qcow2'/>\n  <source file='/a'/>\n  <target dev='vdb' bus='virtio'/>\n</disk>\n",
		"<interface type='bridge'>\n  <mac address='52:54:00:01:02:03'/>\n  <source bridge='br0'/>\n  <model type='virtio'/>\n</interface>\n",
		"<controller type='scsi' index='1' model='virtio-scsi'/>\n",
		"<serial type='pty'/>\n",
		"<channel type='unix'>\n  <target type='virtio' name='x'/>\n</channel>\n",
		"<hostdev mode='subsystem' type='usb' managed='yes'>\n  <source>\n    <vendor id='0x1234'/>\n    <product id='0x0001'/>\n  </source>\n</hostdev>\n",
		"<rng model='virtio'>\n  <backend model='random'>/dev/urandom</backend>\n</rng>\n",
		"<vsock model='virtio'>\n  <cid auto='no' address='7'/>\n</vsock>\n",
		"<redirdev bus='usb' type='spicevmc'/>\n",
		"<watchdog model='i6300esb' action='reset'/>\n",
		"<input type='tablet' bus='usb'/>\n",
		"<memballoon model='virtio'>\n  <stats period='5'/>\n</memballoon>\n",
	} {
		d, err := ParseDevice(doc, Options{Validate: true})
		if err != nil {
			t.Errorf("%v for\n%s", err, doc)
			continue
		}
		got, err := FormatDevice(d, Style{})
		if err != nil || got != doc {
			t.Errorf("%v, got\n%swant\n%s", err, got, doc)
		}
	}
	for doc, text := range map[string]string{
		"<filesystem/>": "device <filesystem>",
		"<disk><source file='/a'/><target dev='vda'/><geometry cyls='1' heads='1' secs='1'/></disk>": "geometry",
	} {
		if _, err := ParseDevice(doc, Options{}); fault.Of(err) != fault.Unsupported || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", doc, err)
		}
	}
}

func TestParseDevice_ControllerWithoutIndex(t *testing.T) {
	d, err := ParseDevice("<controller type='scsi' model='virtio-scsi'/>", Options{})
	if err != nil {
		t.Fatal(err)
	}
	if c := d.(*device.Controller); c.Index != NoIndex {
		t.Errorf("index %d", c.Index)
	}
}

func TestCompleteDevice(t *testing.T) {
	d, err := ParseDevice("<interface type='network'><source network='n'/></interface>", Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := CompleteDevice(d, "q35", testHost()); err != nil {
		t.Fatal(err)
	}
	want := &device.NIC{Type: "network", Network: "n", MAC: "52:54:00:ab:cd:ef", Model: "rtl8139"}
	if !reflect.DeepEqual(d, device.Device(want)) {
		t.Errorf("got %+v", d)
	}
}

// Every field of the model must be in some golden document. Otherwise a
// field that is not written would go unnoticed.
func TestGoldenDocuments_CoverEveryField(t *testing.T) {
	inputs, err := filepath.Glob("testdata/define/*.xml")
	if err != nil {
		t.Fatal(err)
	}
	said := map[string]bool{}
	for _, input := range inputs {
		doc, err := os.ReadFile(input)
		if err != nil {
			t.Fatal(err)
		}
		def, err := Parse(string(doc), Options{Active: true, Host: testHost()})
		if err != nil {
			t.Fatal(err)
		}
		collect(reflect.ValueOf(def), said)
	}
	delete(said, "device.Audio.Info") // has no element
	for field, ok := range said {
		if !ok {
			t.Errorf("no document says %s", field)
		}
	}
}

// collect marks the fields of structs that are met, and whether any is not zero.
func collect(v reflect.Value, said map[string]bool) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			collect(v.Elem(), said)
		}
	case reflect.Slice:
		for i := range v.Len() {
			collect(v.Index(i), said)
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[topology.CPUSet]() {
			return
		}
		for i := range v.NumField() {
			f := v.Type().Field(i)
			name := v.Type().String() + "." + f.Name
			said[name] = said[name] || !v.Field(i).IsZero()
			collect(v.Field(i), said)
		}
	default:
	}
}

func FuzzParse(f *testing.F) {
	inputs, err := filepath.Glob("testdata/define/*.xml")
	if err != nil {
		f.Fatal(err)
	}
	for _, input := range inputs {
		doc, err := os.ReadFile(input)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(doc))
	}
	f.Fuzz(func(t *testing.T, doc string) {
		def, err := Parse(doc, Options{Active: true})
		if err != nil {
			if k := fault.Of(err); k != fault.Invalid && k != fault.Unsupported {
				t.Fatalf("%v: %v", k, err)
			}
			return
		}
		roundTrip(t, def, true)
		def, err = Parse(doc, Options{Host: testHost()})
		if err == nil {
			roundTrip(t, def, false)
		}
	})
}

func roundTrip(t *testing.T, def *domain.Definition, active bool) {
	text, err := Format(def, Style{Active: active, Secure: true})
	if err != nil {
		t.Fatal(err)
	}
	again, err := Parse(text, Options{Active: active, Validate: true})
	if err != nil {
		t.Fatalf("cannot read back: %v\n%s", err, text)
	}
	same(t, again, def)
}

func BenchmarkDefineWith16Disks(b *testing.B) {
	var disks strings.Builder
	for i := range 16 {
		letter := string(rune('a' + i))
		disks.WriteString("<disk type='file' device='disk'><driver name='qemu' type='qcow2' cache='none'/>" +
			"<source file='/i/" + letter + "'/><target dev='vd" + letter + "' bus='virtio'/></disk>")
	}
	doc := in(disks.String(), "")
	for b.Loop() {
		def, err := Parse(doc, Options{Host: &Host{}})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := Format(def, Style{}); err != nil {
			b.Fatal(err)
		}
	}
}
