package qemu

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/word/device"
)

// A machine without ACPI releases a device without the guest's help as long as no guest
// uses the device. So plugging and unplugging can be tested without a guest.
const plugHost = `<domain type='qemu'>
  <name>plug</name>
  <uuid>00000000-1111-4222-8333-444444440001</uuid>
  <memory unit='MiB'>64</memory>
  <vcpu>1</vcpu>
  <os><type arch='x86_64' machine='q35'>hvm</type></os>
  <devices>
    <controller type='scsi' index='0' model='virtio-scsi'/>
    <controller type='virtio-serial' index='0'/>
    <controller type='usb' index='0' model='qemu-xhci' ports='8'/>
    <disk type='file' device='cdrom'><driver name='qemu' type='raw'/><source file='/images/first.raw'/><target dev='sda' bus='sata'/></disk>
    <disk type='file' device='cdrom'><target dev='sdb' bus='usb'/></disk>
    <disk type='file' device='cdrom'><target dev='sdc' bus='scsi'/></disk>
    <disk type='file' device='floppy'><target dev='fda' bus='fdc'/></disk>
    <graphics type='vnc' autoport='yes' passwd='secret'/>
  </devices>
</domain>`

var pluggable = map[string]string{
	"virtio disk": `<disk type='file'><driver name='qemu' type='qcow2' cache='none' copy_on_read='on'/><source file='/images/a.qcow2'/><backingStore type='file'><format type='raw'/><source file='/images/b.raw'/><backingStore/></backingStore><target dev='vdb' bus='virtio'/></disk>`,
	"scsi disk":   `<disk type='file'><driver name='qemu' type='raw'/><source file='/images/c.raw'/><target dev='sdd' bus='scsi'/></disk>`,
	"usb disk":    `<disk type='file'><driver name='qemu' type='raw'/><source file='/images/d.raw'/><target dev='sde' bus='usb'/></disk>`,
	"user nic":    `<interface type='user'><mac address='52:54:00:00:00:01'/><model type='virtio'/></interface>`,
	"tap nic":     `<interface type='bridge'><mac address='52:54:00:00:00:02'/><source bridge='br0'/><model type='virtio'/><driver queues='2'/></interface>`,
	"e1000e":      `<interface type='user'><mac address='52:54:00:00:00:03'/><model type='e1000e'/></interface>`,
	"channel":     `<channel type='unix'><target type='virtio' name='plugged.0'/></channel>`,
	"file":        `<channel type='file'><source path='/images/log' append='on'/><target type='virtio' name='plugged.1'/></channel>`,
	"tcp":         `<channel type='tcp'><source mode='bind' host='127.0.0.1' service='0'/><protocol type='telnet'/><target type='virtio' name='plugged.2'/></channel>`,
	"udp":         `<channel type='udp'><source mode='connect' host='127.0.0.1' service='9'/><target type='virtio' name='plugged.3'/></channel>`,
	"pty":         `<channel type='pty'><target type='virtio' name='plugged.4'/></channel>`,
	"usb serial":  `<serial type='null'><target type='usb-serial'/></serial>`,
	"rng":         `<rng model='virtio'><backend model='random'>/dev/urandom</backend></rng>`,
	"egd":         `<rng model='virtio'><backend model='egd' type='unix'><source mode='bind' path='/images/egd.sock'/></backend></rng>`,
	"usb mouse":   `<input type='mouse' bus='usb'/>`,
	"keyboard":    `<input type='keyboard' bus='virtio'/>`,
	"scsi":        `<controller type='scsi' index='1' model='virtio-scsi'/>`,
	"redirdev":    `<redirdev bus='usb' type='unix'><source mode='bind' path='/images/redir.sock'/></redirdev>`,
	"usb device":  `<hostdev mode='subsystem' type='usb'><source><vendor id='0x1234'/><product id='0x5678'/></source></hostdev>`,
}

// Every kind of device that can be plugged in is plugged in, appears in the machine, is
// unplugged, and leaves nothing behind.
func TestPlug(t *testing.T) {
	g := startLive(t, plugHost, liveCapabilities(t))
	events := g.Events()
	before := g.inventory(t)
	names := make([]string, 0, len(pluggable))
	for name := range pluggable {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		for range 2 { // the second time finds the names of the first free
			dev := g.plug(t, name)
			if dev == nil {
				break
			}
			request, after, err := Unplug(dev)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			g.run(t, name, request)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			for gone := false; !gone; {
				select {
				case e := <-events:
					gone = e.Name == "DEVICE_DELETED" && strings.Contains(string(e.Data), `"device"`)
				case <-ctx.Done():
					t.Fatalf("%s: does not go away", name)
				}
			}
			cancel()
			for _, step := range after { // the plug has removed its descriptors already, so remove-fd may fail
				if err := g.do(t, step); err != nil && step.Command != "remove-fd" {
					t.Fatalf("%s: %s: %v", name, step.Command, err)
				}
			}
			if diff := cmp.Diff(before, g.inventory(t)); diff != "" {
				t.Errorf("%s leaves something behind (-before +after):\n%s", name, diff)
			}
		}
	}
}

// plug plugs a device in; nil means that it needs something that this host does not have.
func (g *liveGuest) plug(t *testing.T, name string) device.Device {
	t.Helper()
	dev := g.prepare(t, pluggable[name])
	if dev == nil {
		return nil
	}
	steps, err := Plug(g.plan, dev)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	g.run(t, name, steps...)
	return dev
}

// prepare completes a device and makes the files that it needs.
func (g *liveGuest) prepare(t *testing.T, doc string) device.Device {
	t.Helper()
	doc = strings.ReplaceAll(doc, "/images/", g.dir+"/")
	dev, err := domainxml.ParseDevice(doc, domainxml.Options{})
	if err != nil {
		t.Fatal(err)
	}
	def := g.plan.Definition
	if err := domainxml.CompleteDevice(dev, def.OS.Machine, &domainxml.Host{}); err != nil {
		t.Fatal(err)
	}
	if err := CompleteDevice(def, dev, g.plan.Capabilities, true); err != nil {
		t.Fatal(err)
	}
	switch d := dev.(type) {
	case *device.Disk:
		a := attachment(d)
		makeImages(t, a)
		g.plan.Disks[d.Alias] = a
	case *device.NIC:
		if d.Type != "user" {
			if os.Geteuid() != 0 {
				return nil
			}
			g.plan.NICs[d.Alias] = &device.NICAttachment{Tap: makeTap(t, int(max(d.Queues, 1)))}
		}
	}
	return dev
}

func (g *liveGuest) run(t *testing.T, name string, steps ...Step) {
	t.Helper()
	for _, s := range steps {
		if err := g.do(t, s); err != nil {
			t.Fatalf("%s: %s: %v", name, s.Command, err)
		}
	}
}

func (g *liveGuest) do(t *testing.T, s Step) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if s.File != nil {
		return g.ExecuteFD(ctx, s.File, s.Command, s.Args, nil)
	}
	return g.Execute(ctx, s.Command, s.Args, nil)
}

// inventory lists the parts of the machine.
func (g *liveGuest) inventory(t *testing.T) []string {
	t.Helper()
	var all []string
	ask := func(command string, args, into any, names func()) {
		if err := g.Execute(t.Context(), command, args, into); err != nil {
			t.Fatal(err)
		}
		names()
	}
	var nodes []struct {
		Name string `json:"node-name"`
	}
	ask("query-named-block-nodes", nil, &nodes, func() {
		for _, n := range nodes {
			all = append(all, "node "+n.Name)
		}
	})
	var chardevs []struct{ Label string }
	ask("query-chardev", nil, &chardevs, func() {
		for _, c := range chardevs {
			all = append(all, "chardev "+c.Label)
		}
	})
	for _, path := range []string{"/machine/peripheral", "/objects"} {
		var objects []struct{ Name string }
		ask("qom-list", map[string]any{"path": path}, &objects, func() {
			for _, o := range objects {
				all = append(all, path+" "+o.Name)
			}
		})
	}
	slices.Sort(all)
	return all
}

// If the plugging of a device fails, everything that was made for it is removed.
func TestPlug_Undo(t *testing.T) {
	g := startLive(t, plugHost, liveCapabilities(t))
	before := g.inventory(t)
	for _, name := range []string{"virtio disk", "user nic", "channel", "egd", "tap nic"} {
		dev := g.prepare(t, pluggable[name])
		if dev == nil {
			continue
		}
		steps, err := Plug(g.plan, dev)
		if err != nil {
			t.Fatal(err)
		}
		last := len(steps) - 1
		steps[last].Args = append(steps[last].Args.(properties), property{"no-such-property", true})
		g.run(t, name, steps[:last]...)
		if err := g.do(t, steps[last]); err == nil {
			t.Fatalf("%s: a wrong property was taken", name)
		}
		for i := last - 1; i >= 0; i-- {
			if err := g.do(t, *steps[i].Undo); err != nil && steps[i].Command != "getfd" {
				t.Errorf("%s: undo of %s: %v", name, steps[i].Command, err)
			}
		}
		if diff := cmp.Diff(before, g.inventory(t)); diff != "" {
			t.Errorf("%s leaves something behind (-before +after):\n%s", name, diff)
		}
	}
}

// Media are inserted and ejected, in drives of every bus, and the old ones are closed.
func TestChangeMedia(t *testing.T) {
	g := startLive(t, plugHost, liveCapabilities(t))
	for _, target := range []string{"sda", "sdb", "sdc", "fda"} {
		i := slices.IndexFunc(g.plan.Definition.Devices.Disks, func(d *device.Disk) bool { return d.Target == target })
		for _, file := range []string{"one.raw", "two.raw", "", "three.raw", ""} {
			before := g.plan.Definition.Devices.Disks[i]
			after := *before
			after.Source = nil
			delete(g.plan.Disks, before.Alias)
			if file != "" {
				after.Source = &device.DiskSource{File: filepath.Join(g.dir, target+file)}
				g.plan.Disks[after.Alias] = attachment(&after)
				makeImages(t, attachment(&after))
			}
			steps, err := ChangeMedia(g.plan, before, &after, false)
			if err != nil {
				t.Fatal(err)
			}
			g.run(t, target, steps...)
			if got := g.medium(t, before.Alias); got != after.Source.Path() {
				t.Errorf("%s holds %q after putting in %q", target, got, file)
			}
			g.plan.Definition.Devices.Disks[i] = &after
		}
	}
	for _, name := range g.inventory(t) {
		if strings.HasPrefix(name, "node ") {
			t.Errorf("%s is left", name)
		}
	}
}

func (g *liveGuest) medium(t *testing.T, alias string) string {
	t.Helper()
	var blocks []struct {
		QDev     string
		Inserted struct{ File string }
	}
	if err := g.Execute(t.Context(), "query-block", nil, &blocks); err != nil {
		t.Fatal(err)
	}
	for _, b := range blocks {
		if strings.Contains(b.QDev, alias) {
			return b.Inserted.File
		}
	}
	t.Fatalf("no drive %s", alias)
	return ""
}
