package guest_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/event"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

const (
	diskKey    = "22222222-2222-3333-4444-00000000000a"
	wrongKey   = "22222222-2222-3333-4444-00000000000b"
	passphrase = "a passphrase that is nowhere else"
)

// secret defines a secret and gives it a value.
func (d *daemon) secret(id, value string) {
	d.t.Helper()
	_, err := d.Secrets.Define(scope.Daemon("a test"), "<secret private='yes'><uuid>"+id+"</uuid></secret>", true)
	ok(d.t, err)
	ok(d.t, d.Secrets.SetValue(scope.Daemon("a test"), id, []byte(value)))
}

// locked makes an encrypted image that is opened quickly.
func (d *daemon) locked(name, format string) string {
	d.t.Helper()
	key, path := filepath.Join(d.t.TempDir(), "key"), filepath.Join(d.t.TempDir(), name)
	ok(d.t, os.WriteFile(key, []byte(passphrase), 0o600))
	args := []string{"create", "-q", "--object", "secret,id=k,file=" + key, "-f", "luks", "-o", "key-secret=k,iter-time=1", path, "4M"}
	if format == "qcow2" {
		args[5], args[7] = "qcow2", "encrypt.format=luks,encrypt.key-secret=k,encrypt.iter-time=1"
	}
	for {
		out, err := exec.CommandContext(d.t.Context(), "qemu-img", args...).CombinedOutput()
		if err == nil {
			return path
		}
		if !strings.Contains(string(out), "Unable to get accurate CPU usage") { // a matter of luck
			d.t.Fatalf("%v: %s", err, out)
		}
	}
}

func lockedDisk(path, format, target, bus, key string) string {
	return fmt.Sprintf(`<disk type='file' device='disk'><driver name='qemu' type='%s'/><source file='%s'><encryption format='luks'>
<secret type='passphrase' uuid='%s'/></encryption></source><target dev='%s' bus='%s'/></disk>`, format, path, key, target, bus)
}

// blocks asks QEMU what stands behind its devices, and which objects it has.
func (d *daemon) blocks(g *guest.Guest) string {
	d.t.Helper()
	blocks, err := g.MonitorCommand(d.ctx(), scope.Daemon("a test"), `{"execute":"query-block"}`, false)
	ok(d.t, err)
	objects, err := g.MonitorCommand(d.ctx(), scope.Daemon("a test"), `{"execute":"qom-list","arguments":{"path":"/objects"}}`, false)
	ok(d.t, err)
	return blocks + objects
}

// Promise: K5
func TestEncryption_Disks(t *testing.T) {
	d := newDaemon(t)
	d.secret(diskKey, passphrase)
	d.secret(wrongKey, "another")
	events := d.events.Reader()
	root, data, more := d.locked("root", "raw"), d.locked("data", "qcow2"), d.locked("more", "raw")
	g := d.define(small("vault", lockedDisk(root, "raw", "vda", "virtio", diskKey), lockedDisk(data, "qcow2", "sda", "sata", diskKey),
		"<graphics type='vnc' port='-1' autoport='yes' passwd='"+passphrase[:8]+"'/>", "<controller type='pci' index='8' model='pcie-root-port'/>"))

	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	opened := func() {
		t.Helper()
		said := d.blocks(g)
		for _, want := range []string{`"format": "luks"`, filepath.Base(root), filepath.Base(data)} {
			if !strings.Contains(said, want) && !strings.Contains(strings.ReplaceAll(said, ":", ": "), want) {
				t.Errorf("QEMU does not say %s: %s", want, said)
			}
		}
		if n := len(g.View().Active.Devices.Disks); strings.Count(said, `"drv":`) != n {
			t.Errorf("%d disks do not all have their images: %s", n, said)
		}
		// What qcow2 is opened with it needs again: see qemu.Unlock.
		if strings.Contains(said, "null-co") || strings.Count(said, `-key"`) > strings.Count(said, `"drv":"qcow2"`) {
			t.Errorf("a stand-in or a passphrase is left: %s", said)
		}
	}
	opened()
	refused(t, hotplug.Attach(d.ctx(), g, scope.Daemon("a test"), lockedDisk(more, "raw", "vdb", "virtio", wrongKey), machine.Affect{Live: true}), fault.Failed,
		"the value of secret "+wrongKey+" does not open disk vdb")
	ok(t, hotplug.Attach(d.ctx(), g, scope.Daemon("a test"), lockedDisk(more, "raw", "vdb", "virtio", diskKey), machine.Affect{Live: true}))
	opened()
	d.leaksNothing(g)
	ok(t, savestate.Dump(d.ctx(), g, scope.Daemon("a test"), filepath.Join(t.TempDir(), "dump"), savestate.DumpOptions{}))
	d.want(g, domain.Running, domain.ReasonUnpaused)
	opened()

	image := filepath.Join(t.TempDir(), "saved")
	ok(t, savestate.Save(d.ctx(), g, scope.Daemon("a test"), image, savestate.SaveOptions{}))
	until(t, events, event.Stopped, event.DetailSaved)
	if text, err := os.ReadFile(image); err != nil || bytes.Contains(text, []byte(passphrase)) {
		t.Errorf("the saved image holds the passphrase (%v)", err)
	}
	_, err := guest.Restore(d.ctx(), d.Registry, scope.Daemon("a test"), image, savestate.SaveOptions{})
	ok(t, err)
	d.want(g, domain.Running, domain.ReasonRestored)
	opened()
}

// leaksNothing looks for the passphrase everywhere but in the memory of QEMU.
func (d *daemon) leaksNothing(g *guest.Guest) {
	d.t.Helper()
	coded := base64.StdEncoding.EncodeToString([]byte(passphrase))
	look := func(where string, text []byte, err error) {
		d.t.Helper()
		if err != nil {
			d.t.Error(err)
		}
		if bytes.Contains(text, []byte(passphrase)) || bytes.Contains(text, []byte(coded)) {
			d.t.Errorf("%s holds the passphrase", where)
		}
	}
	proc := fmt.Sprintf("/proc/%d/", d.pid(g.Name()))
	for _, name := range []string{"cmdline", "environ"} {
		text, err := os.ReadFile(proc + name)
		look(proc+name, text, err)
		if name == "cmdline" && bytes.Contains(text, []byte(passphrase[:8])) {
			d.t.Error("the arguments hold the password of the display")
		}
	}
	look("the definition", []byte(xmlOf(d, g, false)), nil)
	if doc := xmlOf(d, g, false); strings.Contains(doc, passphrase[:8]) {
		d.t.Error("the definition shows the display's password to every client")
	}
	err := filepath.WalkDir(d.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		look(path, text, err)
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o044 != 0 && bytes.Contains(text, []byte(passphrase[:8])) {
			d.t.Errorf("%s may be read by others and holds the password of the display", path)
		}
		return nil
	})
	if err != nil {
		d.t.Error(err)
	}
}

func xmlOf(d *daemon, g *guest.Guest, secure bool) string {
	d.t.Helper()
	doc, err := domainxml.Format(g.View().Active, domainxml.Style{Active: true, Secure: secure, ID: g.View().ID})
	ok(d.t, err)
	return doc
}

// Disks that cannot be opened are refused before QEMU is started, each for its own reason.
// Promise: K6
func TestEncryption_CannotOpen(t *testing.T) {
	d := newDaemon(t)
	d.secret(wrongKey, "another")
	locked, clear := d.locked("locked", "raw"), filepath.Join(t.TempDir(), "clear")
	ok(t, os.WriteFile(clear, make([]byte, 1<<20), 0o600))
	start := func(name, disk string) error {
		g := d.define(small(name, disk))
		before := time.Now()
		err := launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{})
		if g.View().State != domain.ShutOff {
			t.Errorf("%s runs since %v", name, before)
		}
		return err
	}
	refused(t, start("wrong", lockedDisk(locked, "raw", "vda", "virtio", wrongKey)), fault.Failed, "does not open disk vda ("+locked+"): it is encrypted with another passphrase")
	refused(t, start("absent", lockedDisk(locked, "raw", "vda", "virtio", diskKey)), fault.NotFound, "no secret with matching uuid '"+diskKey+"'")
	refused(t, start("clear", lockedDisk(clear, "raw", "vda", "virtio", wrongKey)), fault.Invalid, "it is not a LUKS container")
	undeclared := strings.NewReplacer("<encryption format='luks'>", "", "</encryption>", "", "<secret type='passphrase' uuid='"+wrongKey+"'/>", "")
	qcow := d.locked("qcow", "qcow2")
	refused(t, start("undeclared", undeclared.Replace(lockedDisk(qcow, "qcow2", "vda", "virtio", wrongKey))), fault.Invalid, "name its secret in <encryption>")
}
