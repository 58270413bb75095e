package domainxml

import (
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/device"
)

// defined returns the dump of a guest with some devices after it was defined.
func defined(t *testing.T, devices, rest string) string {
	t.Helper()
	d, err := Parse(in(devices, rest), Options{Host: testHost()})
	if err != nil {
		t.Fatalf("%s%s: %v", devices, rest, err)
	}
	text, err := Format(d, Style{})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestLeftOut_Types(t *testing.T) {
	for devices, want := range map[string]string{
		"<interface/>": "<interface type='user'>",
		"<interface><source network='ignored'/></interface>": "<interface type='user'>",
		"<serial/>":  "<serial type='pty'>",
		"<console/>": "<console type='pty'>",
		"<console><target type='virtio'/></console>": "<console type='pty'>",
		"<parallel/>": "<parallel type='pty'>",
		"<channel><target type='virtio' name='a'/></channel>":               "<channel type='pty'>",
		"<disk><target dev='xvda' bus='virtio'/><source file='/x'/></disk>": "<target dev='xvda' bus='virtio'/>",
	} {
		if text := defined(t, devices, ""); !strings.Contains(text, want) {
			t.Errorf("%s is shown as\n%s", devices, text)
		}
	}
	for devices, says := range map[string]string{
		"<serial type=''/>":     "devices/serial: attribute type is missing",
		"<redirdev bus='usb'/>": "devices/redirdev: attribute type is missing",
		"<graphics/>":           "devices/graphics: attribute type is missing",
		"<disk><target dev='xvda'/><source file='/x'/></disk>": "say bus='virtio'",
	} {
		if _, err := Parse(in(devices, ""), Options{Host: testHost()}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", devices, err)
		}
	}
}

func TestLeftOut_TerminalOfTheFirstConsoleOnly(t *testing.T) {
	d, err := Parse(in("<console tty='/dev/pts/1'><source path='/dev/pts/1'/><target type='virtio' port='0'/></console><console><source path='/dev/pts/2'/><target type='virtio' port='1'/></console>", ""), Options{Active: true})
	if err != nil {
		t.Fatal(err)
	}
	text, err := Format(d, Style{Active: true})
	if err != nil || strings.Count(text, "tty=") != 1 || !strings.Contains(text, "tty='/dev/pts/1'") {
		t.Errorf("%v\n%s", err, text)
	}
}

func TestLabels_WithoutEffect(t *testing.T) {
	const keep = "<seclabel model='dac' type='none' relabel='no'/>"
	for _, devices := range []string{
		"<disk device='cdrom' type='file'><source file='' startupPolicy='optional'>" + keep + "</source><target bus='sata' dev='sdc'/><readonly/></disk>",
		"<disk device='cdrom' type='file'><source>" + keep + "</source><target bus='sata' dev='sdc'/><readonly/></disk>",
		"<disk device='floppy' type='file'><source startupPolicy='requisite'>" + keep + "</source><target bus='fdc' dev='fda'/></disk>",
		"<disk type='file'><source file='/x'>" + keep + "</source><target bus='sata' dev='sda'/></disk>",
		"<disk type='file'><source file='/x'><seclabel model='selinux' labelskip='yes'/></source><target bus='sata' dev='sda'/></disk>",
		"<serial type='file'><source path='/x'>" + keep + "</source></serial>",
		"<channel type='unix'><source mode='bind' path='/x'>" + keep + "</source><target type='virtio' name='a'/></channel>",
	} {
		if text := defined(t, devices, ""); strings.Contains(text, "labelskip") {
			t.Errorf("%s is shown as\n%s", devices, text)
		}
	}
	for _, devices := range []string{
		"<serial type='file'><source path='/x'><seclabel model='selinux' relabel='no'/></source></serial>",
		"<serial type='file'><source path='/x'><seclabel model='dac' relabel='yes'><label>a:b</label></seclabel></source></serial>",
	} {
		if _, err := Parse(in(devices, ""), Options{Host: testHost()}); !fault.Is(err, fault.Unsupported) && !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", devices, err)
		}
	}
}

func TestSysInfo_GivesTheUUID(t *testing.T) {
	const id = "c7a5fdbd-edaf-9455-926a-d65c16db1809"
	d, err := Parse(in("", "<sysinfo type='smbios'><system><entry name='uuid'>"+id+"</entry></system></sysinfo>"), Options{Host: testHost()})
	if err != nil || d.UUID != id {
		t.Errorf("the UUID is %v, %v", d, err)
	}
}

func TestMAC_OctetsOfOneDigit(t *testing.T) {
	d, err := ParseDevice("<interface type='user'><mac address='0:0:6c:28:30:d5'/></interface>", Options{})
	if err != nil || d.(*device.NIC).MAC != "00:00:6c:28:30:d5" {
		t.Errorf("%+v, %v", d, err)
	}
}
