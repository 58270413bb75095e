package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/digitalocean/go-libvirt"
)

// Changes of the running guest and of its stored definition in one call. After an interruption both have the
// change, or neither has it.

const both = uint32(libvirt.DomainAffectLive | libvirt.DomainAffectConfig)

// pairs starts the guest, paused, with an image as a disk and a pinned processor.
func (c *crash) pairs() {
	c.machine()
	c.must(bind(0b10)(c))
}

func bind(to byte) func(c *crash) error {
	return func(c *crash) error { return c.l.DomainPinVcpuFlags(crashGuest, 0, []byte{to}, both) }
}

func setCPUShares(shares uint64) func(c *crash) error {
	return func(c *crash) error {
		return c.l.DomainSetSchedulerParametersFlags(crashGuest, []libvirt.TypedParam{{Field: "cpu_shares", Value: *libvirt.NewTypedParamValueUllong(shares)}}, both)
	}
}

func onCrash(action uint32) func(c *crash) error {
	return func(c *crash) error {
		const crash = 2
		return c.l.DomainSetLifecycleAction(crashGuest, crash, action, libvirt.DomainModificationImpact(both))
	}
}

func title(words libvirt.OptString) func(c *crash) error {
	return func(c *crash) error {
		return c.l.DomainSetMetadata(crashGuest, 1, words, nil, nil, libvirt.DomainModificationImpact(both))
	}
}

func throttle(rate uint64) func(c *crash) error {
	return func(c *crash) error {
		return c.l.DomainSetBlockIOTune(crashGuest, "sdb", []libvirt.TypedParam{{Field: "total_iops_sec", Value: *libvirt.NewTypedParamValueUllong(rate)}}, both)
	}
}

func balloon(mib uint64) func(c *crash) error {
	return func(c *crash) error { return c.l.DomainSetMemoryFlags(crashGuest, mib<<10, both) }
}

func attach(doc func(c *crash) string, where uint32) func(c *crash) error {
	return func(c *crash) error { return c.l.DomainAttachDeviceFlags(crashGuest, doc(c), where) }
}

func detach(doc func(c *crash) string, where uint32) func(c *crash) error {
	return func(c *crash) error { return c.l.DomainDetachDeviceFlags(crashGuest, doc(c), where) }
}

// keepingDefinition saves the definition before an action, so that restoreDefinition can restore it.
func keepingDefinition(do func(c *crash) error) func(c *crash) error {
	return func(c *crash) (err error) {
		if c.kept, err = c.l.DomainGetXMLDesc(crashGuest, libvirt.DomainXMLInactive|libvirt.DomainXMLSecure); err != nil {
			return err
		}
		return do(c)
	}
}

// restoreDefinition restores the definition and restarts the machine, because a paused guest
// does not release a device.
func restoreDefinition(c *crash) error {
	if _, err := c.l.DomainDefineXML(c.kept); err != nil {
		return err
	}
	return restartGuest(c)
}

func always(doc string) func(*crash) string { return func(*crash) string { return doc } }

func usbStickDoc(c *crash) string {
	return fmt.Sprintf(`<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='%s'/><target dev='sdb' bus='usb'/></disk>`,
		filepath.Join(c.dir, "stick.raw"))
}

func setLink(state string, where uint32) func(c *crash) error {
	return func(c *crash) error {
		return c.l.DomainUpdateDeviceFlags(crashGuest, fmt.Sprintf(`<interface type='network'><mac address='52:54:00:00:c4:01'/>
			<source network='lan'/><model type='virtio'/><link state='%s'/></interface>`, state), libvirt.DomainDeviceModifyFlags(where))
	}
}

func secondNIC(*crash) string {
	return `<interface type='network'><mac address='52:54:00:00:c4:02'/><source network='lan'/><model type='virtio'/></interface>`
}

func memoryModuleDoc(*crash) string {
	return `<memory model='dimm'><target><size unit='MiB'>128</size><node>0</node></target></memory>`
}

func processors(n, where uint32) func(c *crash) error {
	return func(c *crash) error { return c.l.DomainSetVcpusFlags(crashGuest, n, where) }
}

func addIOThread(id, where uint32) func(c *crash) error {
	return func(c *crash) error {
		return c.l.DomainAddIothread(crashGuest, id, libvirt.DomainModificationImpact(where))
	}
}

func pairActions() []action {
	display := func(password string) func(c *crash) error {
		return func(c *crash) error {
			return c.l.DomainUpdateDeviceFlags(crashGuest, fmt.Sprintf(`<graphics type='vnc' autoport='yes' passwd='%s'/>`, password), libvirt.DomainDeviceModifyFlags(both))
		}
	}
	return []action{
		{"pull the NIC's cable for good", setLink("down", both), setLink("up", both)},
		{"bind a processor", bind(0b01), bind(0b10)},
		{"weigh", setCPUShares(700), setCPUShares(512)},
		{"restart after crashes", onCrash(1), onCrash(0)},
		{"entitle", title(libvirt.OptString{"for good"}), title(nil)},
		{"change the display's password", display("second"), display("first")},
		{"plug in a disk for good", attach(usbStickDoc, both), detach(usbStickDoc, both)},
		{"throttle the disk", throttle(500), throttle(0)},
		{"unplug the disk for good", detach(usbStickDoc, both), func(c *crash) error {
			if err := attach(usbStickDoc, both)(c); err != nil {
				return err
			}
			return throttle(500)(c)
		}},
		{"plug in a NIC for good", keepingDefinition(attach(secondNIC, both)), restoreDefinition},
	}
}

// growthActions add iothreads, processors and memory to a guest. The processor comes last, after everything that a
// restart takes back: a restart makes it a processor that is present from the start.
func growthActions() []action {
	return []action{
		{"add an iothread for good", keepingDefinition(addIOThread(1, both)), restoreDefinition},
		{"plug in memory for good", keepingDefinition(attach(memoryModuleDoc, both)), restoreDefinition},
		{"add a processor for good", keepingDefinition(processors(2, both)), restoreDefinition},
		{"shrink the guest", balloon(100), balloon(176)},
	}
}

// sayMore describes what the kernel and QEMU report about a running guest, apart from its devices.
func (c *crash) sayMore(dom libvirt.Domain, say func(string, ...any)) error {
	const processors, bytes = 2, 1
	_, maps, err := c.l.DomainGetVcpus(dom, processors, bytes)
	if err != nil {
		return err
	}
	say("%s: processors may run on %v", dom.Name, maps)
	for _, group := range c.guestGroups() {
		if !strings.HasSuffix(group, uuidText(dom.UUID)) {
			continue
		}
		for _, knob := range []string{"cpu.shares", "cpu.weight", "devices.list"} {
			if text, err := os.ReadFile(filepath.Join(group, knob)); err == nil {
				say("%s %s: %s", group, knob, strings.Join(strings.Fields(string(text)), " "))
			}
		}
	}
	return nil
}
