package qemu

import (
	"fmt"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemucaps"
)

// shell is a guest with room for more: after the processors, and among the
// devices.
const shell = `<domain type='%s'>
  <name>refused</name>
  <uuid>00000000-1111-4222-8333-444444440001</uuid>
  <memory unit='MiB'>64</memory>
  %s
  <os><type arch='x86_64' machine='%s'>hvm</type></os>
  <devices>%s</devices>
</domain>`

const disk = `<disk type='file' device='%s'><driver name='qemu' type='%s' %s/><source file='/images/a'/><target dev='%s' bus='%s'/></disk>`

// A definition that cannot be built is refused, with the name of the unsupported part.
// Promise: A3, A21
func TestComplete_Refused(t *testing.T) {
	c := testCapabilities(t)
	q35 := func(devices string) string { return fmt.Sprintf(shell, "qemu", "", "q35", devices) }
	top := func(elements string) string { return fmt.Sprintf(shell, "qemu", elements, "q35", "") }
	on := func(machine, devices string) string { return fmt.Sprintf(shell, "qemu", "", machine, devices) }
	for doc, names := range map[string]string{
		on("isapc", `<interface type='user'><mac address='52:54:00:00:00:01'/><model type='virtio'/></interface>`): "isapc has no PCI bus",
		on("pc-q35-99", ""): `machine type "pc-q35-99"`,
		on("x-remote", ""):  `machine type "x-remote"`,
		on("microvm", `<interface type='user'><mac address='52:54:00:00:00:01'/><model type='e1000'/></interface>`): "no PCI bus for a interface",
		on("microvm", `<input type='mouse' bus='ps2'/>`):                                                            "no ps2 bus",
		top(`<memoryBacking><source type='file'/></memoryBacking>`):                                                 "memoryBacking/source/@type file",
		top(`<vcpu>400</vcpu>`): "takes 288 vcpus, not 400",
		top(`<cpu mode='custom' match='exact'><model>NoSuchCPU</model></cpu>`):                                                                 `no CPU model "NoSuchCPU"`,
		top(`<cpu mode='custom' match='strict'><model>qemu64</model></cpu>`):                                                                   `CPU match "strict"`,
		top(`<cpu mode='custom' match='exact' check='full'><model>EPYC-Rome</model></cpu>`):                                                    "needs features that this host cannot give",
		top(`<clock offset='utc'><timer name='pit' tickpolicy='merge'/></clock>`):                                                              `tick policy "merge"`,
		top(`<clock offset='utc'><timer name='rtc' tickpolicy='catchup'><catchup threshold='1'/></timer></clock>`):                             "catchup limits",
		q35(fmt.Sprintf(disk, "disk", "raw", "io='native'", "vda", "virtio")):                                                                  "io native needs cache none",
		q35(fmt.Sprintf(disk, "disk", "raw", "", "hda", "ide")):                                                                                "IDE controller",
		q35(fmt.Sprintf(disk, "disk", "raw", "iothread='3'", "vda", "virtio")):                                                                 "iothread 3",
		q35(fmt.Sprintf(disk, "disk", "raw", "iothread='1'", "sda", "sata")):                                                                   "no queues and iothreads",
		q35(fmt.Sprintf(disk, "cdrom", "raw", "", "vda", "virtio")):                                                                            "no cdrom drives on bus virtio",
		q35(fmt.Sprintf(disk, "lun", "raw", "", "vda", "virtio")):                                                                              "device lun",
		q35(`<disk type='file'><driver name='qemu' type='raw'/><source file='/images/a'/><target dev='vda' bus='virtio'/><transient/></disk>`): "transient",
		q35(`<interface type='user'><mac address='52:54:00:00:00:01'/><model type='vhost-vdpa'/></interface>`):                                 `model "vhost-vdpa"`,
		q35(`<video><model type='virtio'><acceleration accel3d='yes'/></model></video>`):                                                       "no device virtio-vga-gl",
		q35(`<graphics type='vnc'/><graphics type='vnc'/>`):                                                                                    "only one display of type vnc",
		q35(`<graphics type='vnc' websocket='5799'><listen type='socket'/></graphics>`):                                                        "a websocket beside a socket",
		q35(`<graphics type='vnc' passwd='ninechars'/>`):                                                                                       "VNC password is 9 characters long, only 8 permitted",
		q35(`<graphics type='spice' tlsPort='5999' autoport='no'/>`):                                                                           "spice over TLS",
		q35(`<watchdog model='i6300esb' action='dump'/>`):                                                                                      `action "dump"`,
		q35(`<watchdog model='diag288' action='reset'/>`):                                                                                      `model "diag288"`,
		on("pc", `<watchdog model='itco' action='reset'/>`):                                                                                    "only machine type q35",
		q35(`<controller type='usb' model='none'/><input type='tablet' bus='usb'/>`):                                                           "no USB controller",
		q35(`<controller type='scsi' model='buslogic'/>`):                                                                                      `model "buslogic"`,
		q35(`<channel type='unix'><target type='guestfwd' address='10.0.2.1' port='1'/></channel>`):                                            "guestfwd",
		fmt.Sprintf(shell, "qemu", "<features><hyperv><vendor_id state='on' value='a,b'/></hyperv></features>", "q35", ""):                     "without commas",
		fmt.Sprintf(shell, "qemu", "<sysinfo type='fwcfg'><entry name='etc/e820'>x</entry></sysinfo>", "q35", ""):                              "begin with opt/",
		strings.Replace(q35(""), "</os>", "<kernel>/images/k</kernel><initrd>/images/a,/images/b</initrd></os>", 1):                            "a comma in its path",
	} {
		_, err := understand(doc, c)
		if err == nil || !strings.Contains(err.Error(), names) {
			t.Errorf("%q is not refused for %q: %v", doc, names, err)
		}
		if kind := fault.Of(err); err != nil && kind != fault.Unsupported && kind != fault.Invalid && kind != fault.NoCapacity {
			t.Errorf("%v is %s", err, kind)
		}
	}
}

// A guest that libvirt accepts but cannot start is accepted too, and its start reports what to do.
func TestArguments_RefusedAtStart(t *testing.T) {
	c := testCapabilities(t)
	const numa = `<maxMemory slots='2' unit='MiB'>512</maxMemory><vcpu current='1'>2</vcpu><cpu mode='custom' match='exact'><model>qemu64</model><numa><cell id='0' cpus='0-1' memory='65536' unit='KiB'/></numa></cpu>`
	for doc, names := range map[string]string{
		fmt.Sprintf(shell, "qemu", numa, "q35", `<memory model='dimm'><target><size unit='MiB'>64</size><node>0</node></target></memory>`):                                     "<features><acpi/></features>",
		fmt.Sprintf(shell, "qemu", `<cpu mode='host-passthrough'/>`, "q35", ""):                                                                                                "host-passthrough needs domain type kvm",
		fmt.Sprintf(shell, "qemu", "", "pc", `<disk type='file' device='cdrom'><target dev='hda' bus='ide'/><address type='drive' controller='0' bus='0' unit='2'/></disk>`):   "units 0 and 1",
		fmt.Sprintf(shell, "qemu", "", "q35", `<disk type='file' device='cdrom'><target dev='sda' bus='sata'/><address type='drive' controller='0' bus='0' unit='6'/></disk>`): "units 0 to 5",
		fmt.Sprintf(shell, "qemu", "", "q35", strings.Repeat(`<serial type='pty'/>`, 5)):                                                                                       "use pci-serial",
	} {
		def, err := understand(doc, c)
		if err != nil {
			t.Errorf("%q cannot be defined: %v", doc, err)
			continue
		}
		AssignAliases(def)
		if _, err := Arguments(testPlan(def, c, t.TempDir())); !fault.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), names) {
			t.Errorf("the start is not refused for %q: %v", names, err)
		}
	}
}

// A binary for i686 serves guests of that architecture only, and one for x86_64 both.
func TestArchitectures(t *testing.T) {
	for binary, runs := range map[string][2]bool{"i386": {true, false}, "x86_64": {true, true}, "aarch64": {false, false}} {
		c := &qemucaps.Capabilities{Arch: binary}
		if got := [2]bool{c.Runs("i686"), c.Runs("x86_64")}; got != runs {
			t.Errorf("a binary for %s runs i686 and x86_64: %v", binary, got)
		}
	}
}

// A host that cannot run guests of a type reports the reason.
func TestArguments_UnusableAccelerator(t *testing.T) {
	c := testCapabilities(t)
	c.Accelerators[0].Usable, c.Accelerators[0].Reason = false, "the trial guest did not run"
	_, err := understand(fmt.Sprintf(shell, "kvm", "", "q35", ""), c)
	if !fault.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), "the trial guest did not run") {
		t.Errorf("%v", err)
	}
}

// The trial for i686 is a short one: KVM counts for such guests only where the whole
// trial has passed.
func TestAdoptFailures(t *testing.T) {
	broken := &qemucaps.Capabilities{Accelerators: []qemucaps.Accelerator{{Name: "kvm", Reason: "it interprets"}, {Name: "tcg", Usable: true}}}
	c := &qemucaps.Capabilities{Arch: "i386", Accelerators: []qemucaps.Accelerator{{Name: "kvm", Usable: true, HostCPU: true}, {Name: "tcg", Usable: true}}}
	c.AdoptFailures(broken)
	if kvm := c.Accelerator("kvm"); kvm.Usable || kvm.HostCPU || kvm.Reason != "it interprets" {
		t.Errorf("KVM is %+v", kvm)
	}
	if !c.Accelerator("tcg").Usable {
		t.Error("emulation is not")
	}
}
