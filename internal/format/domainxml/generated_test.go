package domainxml

import (
	"strings"
	"testing"
)

// TestGenerated_Paths: a definition that was dumped of a running guest can be
// defined at another host, or once more.
func TestGenerated_Paths(t *testing.T) {
	channel := func(path string) string {
		return "<channel type='unix'><source mode='bind' path='" + path + "'/><target type='virtio' name='org.qemu.guest_agent.0'/></channel>"
	}
	vnc := func(path string) string {
		return "<graphics type='vnc'><listen type='socket' socket='" + path + "'/></graphics>"
	}
	spice := func(path string) string {
		return "<graphics type='spice'><listen type='socket' socket='" + path + "'/></graphics>"
	}
	const run = "/run/lodge/guest/5e0d0cf9-77bb-4c6c-a2c5-2f8a8a7c8a1b"
	for name, c := range map[string]struct {
		device string
		gone   string // must not be in the dump
		stays  string
	}{
		"libvirt 1.3.3 and later":    {channel("/var/lib/libvirt/qemu/channel/target/domain-7-web/org.qemu.guest_agent.0"), "/var/lib", ""},
		"libvirt 1.2.19":             {channel("/var/lib/libvirt/qemu/channel/target/domain-web/org.qemu.guest_agent.0"), "/var/lib", ""},
		"libvirt 1.2.18":             {channel("/var/lib/libvirt/qemu/channel/target/web.org.qemu.guest_agent.0"), "/var/lib", ""},
		"libvirt 9.7 and later":      {channel("/run/libvirt/qemu/channel/7-web/org.qemu.guest_agent.0"), "/run", ""},
		"libvirt of a user":          {channel("/home/u/.config/libvirt/qemu/channel/target/domain-1-w/org.qemu.guest_agent.0"), "/home", ""},
		"a run of Lodge's":           {channel(run + "/channel0.sock"), "/run", ""},
		"a user's channel":           {channel("/srv/org.qemu.guest_agent.0"), "", "path='/srv/org.qemu.guest_agent.0'"},
		"another name":               {channel("/srv/domain-1-web/agent"), "", "path='/srv/domain-1-web/agent'"},
		"a client":                   {strings.Replace(channel(run+"/channel0.sock"), "bind", "connect", 1), "", "path='" + run},
		"libvirt's VNC":              {vnc("/var/lib/libvirt/qemu/domain-7-web/vnc.sock"), "sock", "<listen type='address'/>"},
		"libvirt's SPICE":            {spice("/var/lib/libvirt/qemu/domain-7-web/spice.sock"), ".sock", "<listen type='socket'/>"},
		"Lodge's VNC":                {vnc(run + "/own/vnc.sock"), ".sock", "<listen type='socket'/>"},
		"a user's VNC":               {vnc("/srv/vnc.sock"), "", "socket='/srv/vnc.sock'"},
		"an interface":               {"<interface type='bridge'><source bridge='b'/><target dev='vnet5'/></interface>", "vnet5", ""},
		"an interface of its user's": {"<interface type='ethernet'><target dev='vnet5' managed='no'/></interface>", "", "dev='vnet5'"},
		"a USB device that was found": {
			"<hostdev mode='subsystem' type='usb'><source autoAddress='yes'><vendor id='1'/><product id='2'/><address bus='3' device='4'/></source></hostdev>", "bus='3'", "id='0x0001'",
		},
	} {
		def, err := Parse(in(c.device, ""), Options{Host: testHost()})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		text, err := Format(def, Style{})
		if err != nil || c.gone != "" && strings.Contains(text, c.gone) || !strings.Contains(text, c.stays) {
			t.Errorf("%s: %v\n%s", name, err, text)
		}
	}
}

// TestGenerated_User: what Lodge shows of a running guest can be defined again.
func TestGenerated_User(t *testing.T) {
	def, err := Parse(in("", "<seclabel type='dynamic' model='dac' relabel='no'><label>+70007:+70007</label></seclabel>"), Options{Host: testHost()})
	if err != nil || len(def.SecLabels) > 0 {
		t.Errorf("the definition has labels %v: %v", def, err)
	}
}
