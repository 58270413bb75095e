package qemu

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemucaps"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

func shelled(t *testing.T, machine, devices string) (*domain.Definition, *qemucaps.Capabilities) {
	t.Helper()
	c := testCapabilities(t)
	def, err := understand(fmt.Sprintf(shell, "qemu", "", machine, devices), c)
	if err != nil {
		t.Fatal(err)
	}
	return def, c
}

func joining(t *testing.T, def *domain.Definition, c *qemucaps.Capabilities, doc string, live bool) (device.Device, error) {
	t.Helper()
	dev, err := domainxml.ParseDevice(doc, domainxml.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := domainxml.CompleteDevice(dev, def.OS.Machine, &domainxml.Host{}); err != nil {
		t.Fatal(err)
	}
	return dev, CompleteDevice(def, dev, c, live)
}

// A guest without a CPU model gets the machine's model by name, so that it has
// the same one under a later QEMU.
func TestComplete_MachineAndCPU(t *testing.T) {
	def, _ := shelled(t, "q35", "")
	if def.OS.Machine != "pc-q35-7.2" || def.CPU.Mode != "custom" || def.CPU.Model != "qemu64" || def.CPU.Check != "none" {
		t.Errorf("%s %+v", def.OS.Machine, def.CPU)
	}
}

// Devices get libvirt's aliases, and a user's own are kept.
func TestAliases(t *testing.T) {
	def, _ := shelled(t, "pc", `
		<disk type='file'><driver name='qemu' type='raw'/><source file='/a'/><target dev='vdc' bus='virtio'/></disk>
		<disk type='file'><driver name='qemu' type='raw'/><source file='/b'/><target dev='hdb' bus='ide'/></disk>
		<disk type='file'><driver name='qemu' type='raw'/><source file='/c'/><target dev='sdb' bus='usb'/><alias name='ua-stick'/></disk>
		<interface type='user'><alias name='ua-uplink'/></interface>
		<interface type='user'/>
		<serial type='pty'/>
		<console type='pty'><target type='virtio'/></console>`)
	AssignAliases(def)
	var got []string
	for _, d := range def.Devices.All() {
		got = append(got, d.Common().Alias)
	}
	want := []string{
		"virtio-disk2", "ide0-0-1", "ua-stick", "usb", "pci.0", "ide", "virtio-serial0", "ua-uplink", "net0", "serial0",
		"serial0", "console1", "input0", "input1", "", "balloon0",
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("aliases (-want +got):\n%s", diff)
	}
	if n := def.Devices.Disks[0].Source.Index; n == 0 || n == def.Devices.Disks[1].Source.Index {
		t.Errorf("disks are numbered %d and %d", n, def.Devices.Disks[1].Source.Index)
	}
}

func TestCheckAliases_Refused(t *testing.T) {
	c := testCapabilities(t)
	for _, alias := range []string{"ua-a,b", "ua-" + strings.Repeat("x", 100), "ua-a/../b", "ua-\n"} {
		doc := fmt.Sprintf(shell, "qemu", "", "q35", "<interface type='user'><alias name='"+alias+"'/></interface>")
		if _, err := understand(doc, c); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %v", alias, err)
		}
	}
	two := strings.Repeat("<interface type='user'><alias name='ua-a'/></interface>", 2)
	if _, err := understand(fmt.Sprintf(shell, "qemu", "", "q35", two), c); !fault.Is(err, fault.Invalid) {
		t.Errorf("two of one name: %v", err)
	}
}

// A device that is added to a stored definition brings the controllers that it needs. It
// is not in the definition before it is added.
func TestCompleteDevice_Config(t *testing.T) {
	def, c := shelled(t, "q35", "")
	disk, err := joining(t, def, c, `<disk type='file'><driver name='qemu' type='raw'/><source file='/a'/><target dev='sda' bus='scsi'/></disk>`, false)
	if err != nil {
		t.Fatal(err)
	}
	if len(def.Devices.Disks) != 0 || disk.Common().Address != (device.Drive{}) || def.Devices.Controller("scsi", 0) == nil {
		t.Errorf("%d disks, at %v", len(def.Devices.Disks), disk.Common().Address)
	}
	channel, err := joining(t, def, c, `<channel type='unix'><target type='virtio' name='a'/></channel>`, false)
	if err != nil || channel.Common().Address != (device.VirtioSerial{Port: 1}) || def.Devices.Controller("virtio-serial", 0) == nil {
		t.Errorf("channel at %v, %v", channel.Common().Address, err)
	}
	usb, err := joining(t, def, c, `<controller type='usb' model='qemu-xhci'/>`, false)
	if err != nil || usb.(*device.Controller).Index != 1 || def.Devices.Controller("usb", 1) != nil {
		t.Errorf("controller %+v, %v", usb, err)
	}
	for _, dev := range []device.Device{disk, channel, usb} {
		if err := def.Devices.Add(dev); err != nil {
			t.Fatal(err)
		}
	}
	once := def.Clone()
	if err := Complete(def, c); err != nil || cmp.Diff(once.Devices, def.Devices) != "" {
		t.Errorf("%v %s", err, cmp.Diff(once.Devices, def.Devices))
	}
}

// A device that is plugged into a running guest gets a free address and an alias. Nothing
// else is added to the guest for it.
func TestCompleteDevice_Live(t *testing.T) {
	def, c := shelled(t, "q35", `<controller type='virtio-serial'/><controller type='pci' index='9' model='pcie-root-port'/>`)
	AssignAliases(def)
	before := def.Clone()
	for range 6 { // of the nine ports the USB controller, the channels and the balloon have three
		nic, err := joining(t, def, c, `<interface type='user'><model type='virtio'/></interface>`, true)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before.Devices, def.Devices); diff != "" {
			t.Fatal(diff)
		}
		if nic.Common().Alias != fmt.Sprintf("net%d", len(def.Devices.NICs)) {
			t.Errorf("named %s", nic.Common().Alias)
		}
		if err := def.Devices.Add(nic); err != nil {
			t.Fatal(err)
		}
		before = def.Clone()
	}
	for doc, kind := range map[string]fault.Kind{
		`<interface type='user'><model type='virtio'/></interface>`:                                                              fault.NoCapacity,
		`<disk type='file'><driver name='qemu' type='raw'/><source file='/a'/><target dev='sda' bus='scsi'/></disk>`:             fault.WrongState,
		`<channel type='unix'><target type='virtio' name='a'/><address type='virtio-serial' controller='3' port='1'/></channel>`: fault.WrongState,
		`<controller type='virtio-serial' index='0'/>`:                                                                           fault.Invalid,
	} {
		if _, err := joining(t, def, c, doc, true); !fault.Is(err, kind) {
			t.Errorf("%s: %v", doc, err)
		}
	}
}

// Passwords are sent to QEMU over its monitor, and expire when the definition says.
func TestPasswords(t *testing.T) {
	for want, g := range map[string]*device.Graphics{
		`[]`: {Type: "vnc"},
		`[set_password {"protocol":"vnc","password":"p\"w"} expire_password {"protocol":"vnc","time":"never"}]`:                                {Type: "vnc", Password: `p"w`},
		`[set_password {"protocol":"vnc","password":""} expire_password {"protocol":"vnc","time":"now"}]`:                                      {Type: "vnc", HasPassword: true},
		`[set_password {"protocol":"spice","password":"x","connected":"disconnect"} expire_password {"protocol":"spice","time":"1709208000"}]`: {Type: "spice", Password: "x", Connected: "disconnect", PasswordValidTo: "2024-02-29T12:00:00"},
		`[set_password {"protocol":"spice","password":"x"} expire_password {"protocol":"spice","time":"now"}]`:                                 {Type: "spice", Password: "x", PasswordValidTo: "tomorrow"},
	} {
		if got := fmt.Sprint(said(t, Passwords(g))); got != want {
			t.Errorf("%s, not %s", got, want)
		}
	}
}

func said(t *testing.T, steps []Step) []string {
	t.Helper()
	all := []string{}
	for _, s := range steps {
		text, err := json.Marshal(s.Args)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, s.Command, string(text))
	}
	return all
}

// Settings that arguments cannot or must not hold are made before the guest runs. No
// password is among the arguments.
func TestAfterStart(t *testing.T) {
	def, c := shelled(t, "q35", `
		<disk type='file'><driver name='qemu' type='raw'/><source file='/a'/><target dev='vda' bus='virtio'/><iotune><total_iops_sec>9</total_iops_sec></iotune></disk>
		<interface type='user'><mac address='52:54:00:00:00:01'/><model type='virtio'/><link state='down'/></interface>
		<graphics type='vnc' passwd='topsecre' autoport='yes'/>
		<memballoon model='virtio'><stats period='7'/></memballoon>`)
	def.CurrentMemory = 32 << 20
	AssignAliases(def)
	p := testPlan(def, c, "/run/g")
	p.Listeners = map[string][]*os.File{"vnc": {os.Stdin, os.Stdin}}
	got := said(t, AfterStart(p))
	want := []string{
		"set_password", `{"protocol":"vnc","password":"topsecre"}`,
		"expire_password", `{"protocol":"vnc","time":"never"}`,
		"getfd", `{"fdname":"lodge-listener-0"}`,
		"getfd", `{"fdname":"lodge-listener-1"}`,
		"display-update", `{"type":"vnc","addresses":[{"type":"fd","str":"lodge-listener-0"},{"type":"fd","str":"lodge-listener-1"}]}`,
		"set_link", `{"name":"net0","up":false}`,
		"block_set_io_throttle", `{"id":"/machine/peripheral/virtio-disk0/virtio-backend","bps":0,"bps_rd":0,"bps_wr":0,"iops":9,"iops_rd":0,"iops_wr":0}`,
		"qom-set", `{"path":"/machine/peripheral/balloon0","property":"guest-stats-polling-interval","value":7}`,
		"balloon", `{"value":33554432}`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
	command, err := Arguments(p)
	if err != nil || strings.Contains(lines(command), "topsecre") {
		t.Errorf("the password is among the arguments, or %v", err)
	}
	p.Incoming = true
	if slices.Contains(said(t, AfterStart(p)), "balloon") {
		t.Error("a restored guest's balloon is changed")
	}
}

// A device that cannot be plugged is refused by name, and so is unplugging it.
func TestUnplug_Refused(t *testing.T) {
	for names, dev := range map[string]device.Device{
		"a graphics cannot be plugged":      &device.Graphics{Type: "vnc"},
		"disks on bus ide":                  &device.Disk{Device: "disk", Bus: "ide"},
		"cdrom drives cannot be plugged":    &device.Disk{Device: "cdrom", Bus: "scsi"},
		"serials of target type isa-serial": &device.Char{Role: device.Serial, TargetType: "isa-serial"},
		"controllers of type pci":           &device.Controller{Type: "pci"},
		"watchdogs of model itco":           &device.Watchdog{Model: "itco"},
		"input devices on bus ps2":          &device.Input{Bus: "ps2"},
		"a sound cannot be plugged":         &device.Sound{Model: "ich9"},
		"a tpm cannot be plugged":           &device.TPM{},
	} {
		_, _, err := Unplug(dev)
		_, other := Plug(&Plan{Definition: &domain.Definition{}, Capabilities: &qemucaps.Capabilities{}}, dev)
		if !fault.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), names) || !fault.Is(other, fault.Unsupported) {
			t.Errorf("%s: %v, %v", names, err, other)
		}
	}
	p := &Plan{Definition: &domain.Definition{}, Capabilities: &qemucaps.Capabilities{}}
	if _, err := ChangeMedia(p, &device.Disk{Device: "disk"}, &device.Disk{Device: "disk"}, true); !fault.Is(err, fault.Unsupported) {
		t.Errorf("a disk's medium: %v", err)
	}
}
