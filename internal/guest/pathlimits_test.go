package guest_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
	"github.com/lodge-kvm/lodge/internal/word/scope/scopetest"
)

// fencedIn is a folder, a client that is held to it, and a secret beside it.
func (d *daemon) fencedIn() (folder, secret string, client scope.Scope) {
	d.t.Helper()
	folder, secret = filepath.Join(d.dir, "images"), filepath.Join(d.dir, "secret")
	ok(d.t, os.Mkdir(folder, 0o755))
	ok(d.t, os.WriteFile(secret, make([]byte, 1<<20), 0o600))
	return folder, secret, scope.Daemon("a test").Within([]string{folder})
}

func tool(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "qemu-img", args...).CombinedOutput(); err != nil {
		t.Fatalf("qemu-img %v: %v\n%s", args, err, out)
	}
}

func diskOf(kind, path, more string) string {
	return "<disk type='file' device='disk'><driver name='qemu' type='" + kind + "'/><source file='" + path + "'/><target dev='vda' bus='virtio'/>" + more + "</disk>"
}

func again(doc string, g *guest.Guest) string {
	return strings.Replace(doc, "<name>", "<uuid>"+g.UUID+"</uuid><name>", 1)
}

// A client may go on to use what its guest was given by others, and not in another way: a
// raw disk has in it whatever the guest wrote.
// Promise: A3
func TestPathLimits_OtherFormat(t *testing.T) {
	d := newDaemon(t)
	_, secret, client := d.fencedIn()
	given := filepath.Join(d.dir, "given.raw")
	tool(t, "create", "-q", "-f", "qcow2", "-b", secret, "-F", "raw", given)
	g := d.define(small("given", diskOf("raw", given, "")))
	_, err := guest.Define(d.ctx(), d.Registry, client, again(small("given", diskOf("raw", given, "")), g), false)
	ok(t, err)
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{Paused: true}))
	ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
	_, err = guest.Define(d.ctx(), d.Registry, client, again(small("given", diskOf("qcow2", given, "")), g), false)
	ok(t, err)
	refused(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}), fault.Denied, given)

	shared := filepath.Join(d.dir, "shared.raw")
	ok(t, os.WriteFile(shared, make([]byte, 1<<20), 0o600))
	g = d.define(small("reader", diskOf("raw", shared, "<readonly/>")))
	_, err = guest.Define(d.ctx(), d.Registry, client, again(small("reader", diskOf("raw", shared, "")), g), false)
	ok(t, err)
	refused(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}), fault.Denied, shared)
}

// A change that the running guest does not take leaves the stored disk where it was held.
// Promise: A3
func TestPathLimits_FailedChange(t *testing.T) {
	d := newDaemon(t)
	folder, secret, client := d.fencedIn()
	own := filepath.Join(folder, "own.iso")
	ok(t, os.WriteFile(own, make([]byte, 1<<20), 0o600))
	drive := func(path string) string {
		return "<disk type='file' device='cdrom'><driver name='qemu' type='raw'/><source file='" + path + "'/><target dev='sda' bus='sata'/></disk>"
	}
	g, err := guest.Define(d.ctx(), d.Registry, client, small("changer", drive(own)), false)
	ok(t, err)
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{Paused: true}))
	both := machine.Affect{Live: true, Config: true}
	refused(t, hotplug.Update(d.ctx(), g, client, drive(filepath.Join(folder, "nowhere.iso")), both, false), fault.NotFound, "nowhere.iso")
	ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
	ok(t, os.Remove(own))
	ok(t, os.Symlink(secret, own))
	refused(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}), fault.Denied, secret)
	d.reopen(func() {})
	refused(t, launch.Start(d.ctx(), d.again(g), scope.Daemon("a test"), launch.StartOptions{}), fault.Denied, secret)
}

// A disk is plugged into the running guest only. It comes back with the save image, and the client's path rules
// still hold for it, whichever client starts the guest.
// Promise: A3
func TestPathLimits_SavedGuest(t *testing.T) {
	d := newDaemon(t)
	folder, secret, client := d.fencedIn()
	own := filepath.Join(folder, "own.qcow2")
	tool(t, "create", "-q", "-f", "qcow2", own, "1M")
	g := d.define(small("saved"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	ok(t, hotplug.Attach(d.ctx(), g, client, diskOf("qcow2", own, ""), machine.Affect{Live: true}))
	ok(t, savestate.ManagedSave(d.ctx(), g, client, savestate.SaveOptions{}))
	tool(t, "rebase", "-u", "-f", "qcow2", "-b", secret, "-F", "raw", own)
	refused(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}), fault.Denied, secret)
	d.define(again(small("saved"), g)) // which has no such disk
	refused(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}), fault.Denied, secret)
	ok(t, savestate.RemoveManagedSave(d.ctx(), g, scope.Daemon("a test")))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
}

// The same for a disk in a definition with which the guest ran once.
// Promise: A3
func TestPathLimits_RanWithOtherDefinition(t *testing.T) {
	d := newDaemon(t)
	folder, secret, client := d.fencedIn()
	own := filepath.Join(folder, "own.qcow2")
	tool(t, "create", "-q", "-f", "qcow2", own, "1M")
	for _, how := range []string{"persistent", "transient", "restarted"} {
		name := "saved-" + how
		define := func() {
			_ = d.define(strings.Replace(small(name), "<name>", "<uuid>22222222-2222-3333-4444-000000000001</uuid><name>", 1))
		}
		if how == "persistent" {
			define()
		}
		g, err := guest.Create(d.ctx(), d.Registry, client, strings.Replace(small(name, diskOf("qcow2", own, "")), "<name>", "<uuid>22222222-2222-3333-4444-000000000001</uuid><name>", 1), launch.StartOptions{})
		ok(t, err)
		if how == "restarted" {
			d.reopen(func() {})
			g = d.again(g)
		}
		if how != "persistent" { // no sooner than it runs
			define()
		}
		ok(t, savestate.ManagedSave(d.ctx(), g, scope.Daemon("a test"), savestate.SaveOptions{}))
		tool(t, "rebase", "-u", "-f", "qcow2", "-b", secret, "-F", "raw", own)
		refused(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}), fault.Denied, secret)
		d.reopen(func() {})
		g = d.again(g)
		refused(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}), fault.Denied, secret)
		ok(t, guest.Undefine(d.ctx(), g, scope.Daemon("a test"), guest.UndefineOptions{ManagedSave: true}))
		tool(t, "rebase", "-u", "-f", "qcow2", "-b", "", own)
	}
}

// The same for a disk that is attached while the guest is redefined.
// Promise: A3
func TestPathLimits_RedefinedDuringStart(t *testing.T) {
	d := newDaemon(t)
	folder, secret, client := d.fencedIn()
	own := filepath.Join(folder, "own.qcow2")
	tool(t, "create", "-q", "-f", "qcow2", own, "1M")
	g := d.define(small("saved"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	pid := d.pid("saved")
	ok(t, syscall.Kill(pid, syscall.SIGSTOP))
	told := make(chan error, 1)
	go func() {
		told <- hotplug.Attach(d.ctx(), g, client, diskOf("qcow2", own, ""), machine.Affect{Live: true})
	}()
	eventually(t, "an attach under way", func() bool { return g.Job().Kind == domain.JobModify })
	_, err := guest.Define(d.ctx(), d.Registry, scope.Daemon("a test"), again(small("saved"), g), false)
	ok(t, err)
	ok(t, syscall.Kill(pid, syscall.SIGCONT))
	ok(t, <-told)
	ok(t, savestate.ManagedSave(d.ctx(), g, scope.Daemon("a test"), savestate.SaveOptions{}))
	tool(t, "rebase", "-u", "-f", "qcow2", "-b", secret, "-F", "raw", own)
	refused(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}), fault.Denied, secret)
}

// The same for a disk of a guest with a definition that the store has lost.
// Promise: A3
func TestPathLimits_AdoptedGuest(t *testing.T) {
	d := newDaemon(t)
	folder, secret, client := d.fencedIn()
	own := filepath.Join(folder, "own.qcow2")
	tool(t, "create", "-q", "-f", "qcow2", own, "1M")
	g, err := guest.Define(d.ctx(), d.Registry, client, small("found", diskOf("qcow2", own, "")), false)
	ok(t, err)
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	d.reopen(func() { ok(t, os.Remove(store.Path(filepath.Join(d.dir, "data")))) })
	g = d.again(g)
	ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
	tool(t, "rebase", "-u", "-f", "qcow2", "-b", secret, "-F", "raw", own)
	refused(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}), fault.Denied, secret)
}

// So does one of a definition that came along with the save.
// Promise: A3
func TestPathLimits_RedefinedSave(t *testing.T) {
	d := newDaemon(t)
	folder, secret, client := d.fencedIn()
	own, before := filepath.Join(folder, "own.qcow2"), filepath.Join(folder, "before.qcow2")
	tool(t, "create", "-q", "-f", "qcow2", own, "1M")
	tool(t, "create", "-q", "-f", "qcow2", before, "1M")
	g := d.define(small("saved", diskOf("qcow2", before, "")))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	text, err := domainxml.Format(g.View().Active, domainxml.Style{Secure: true})
	ok(t, err)
	ok(t, savestate.ManagedSave(d.ctx(), g, client, savestate.SaveOptions{XML: strings.Replace(text, before, own, 1)}))
	tool(t, "rebase", "-u", "-f", "qcow2", "-b", secret, "-F", "raw", own)
	refused(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}), fault.Denied, secret)
}

// So does what a character device writes to, which the daemon empties as root.
// Promise: A3
func TestPathLimits_FilesOfSavedGuest(t *testing.T) {
	d := newDaemonOf(t, true)
	folder, precious, client := d.fencedIn()
	way := filepath.Join(folder, "way")
	ok(t, os.Mkdir(way, 0o755))
	port := "<channel type='file'><source path='" + filepath.Join(way, filepath.Base(precious)) + "'/><target type='virtio' name='org.test.0'/></channel>"
	g := d.define(small("saved", "<controller type='virtio-serial'/>"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	ok(t, hotplug.Attach(d.ctx(), g, client, port, machine.Affect{Live: true}))
	d.define(again(small("saved", "<controller type='virtio-serial'/>"), g)) // which has no such port
	ok(t, savestate.ManagedSave(d.ctx(), g, scope.Daemon("a test"), savestate.SaveOptions{}))
	ok(t, os.RemoveAll(way))
	ok(t, os.Symlink(d.dir, way))
	refused(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}), fault.Denied, way)
	d.reopen(func() {})
	refused(t, launch.Start(d.ctx(), d.again(g), scope.Daemon("a test"), launch.StartOptions{}), fault.Denied, way)
	if info, err := os.Stat(precious); err != nil || info.Size() == 0 {
		t.Errorf("what the link led to is now %v (%v)", info, err)
	}
}

// A client that may write a folder names a path in it. The path, or a folder above it, later becomes a symbolic
// link. The daemon may write everywhere, and must still not follow the link.
// Promise: A3
func TestPathLimits_LinksNotFollowed(t *testing.T) {
	d := newDaemonOf(t, true)
	folder, _, client := d.fencedIn()
	others := filepath.Join(d.dir, "of-others")
	ok(t, os.Mkdir(others, 0o755))
	precious := filepath.Join(others, "precious")
	ok(t, os.WriteFile(precious, []byte("precious"), 0o600))
	ok(t, os.Mkdir(filepath.Join(folder, "deep"), 0o755))
	plain, deep := filepath.Join(folder, "port.log"), filepath.Join(folder, "deep/precious")
	logged := filepath.Join(folder, "logged")
	for path, link := range map[string][2]string{plain: {precious, plain}, logged: {precious, logged}, deep: {others, filepath.Dir(deep)}} {
		port := "<serial type='file'><source path='" + path + "'/></serial>"
		if path == logged {
			port = "<serial type='null'><log file='" + path + "'/></serial>"
		}
		g, err := guest.Define(d.ctx(), d.Registry, client, small("port", port), false)
		ok(t, err)
		ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
		ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
		ok(t, os.RemoveAll(link[1]))
		ok(t, os.Symlink(link[0], link[1]))
		refused(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}), fault.Denied, path)
		ok(t, guest.Undefine(d.ctx(), g, scope.Daemon("a test"), guest.UndefineOptions{}))
	}
	template := filepath.Join(folder, "template")
	ok(t, os.WriteFile(template, []byte("variables"), 0o600))
	firmware := "<loader readonly='yes' type='pflash'>" + template + "</loader><nvram template='" + template + "'>" + deep + ".vars</nvram></os>"
	g, err := guest.Define(d.ctx(), d.Registry, client, strings.Replace(small("uefi"), "</os>", firmware, 1), false)
	ok(t, err)
	refused(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}), fault.Denied, deep)
	copied := filepath.Join(folder, "copied")
	ok(t, os.WriteFile(copied, []byte("variables"), 0o600))
	firmware = "<loader readonly='yes' type='pflash'>" + template + "</loader><nvram template='" + copied + "'>" + folder + "/vars</nvram></os>"
	g, err = guest.Define(d.ctx(), d.Registry, client, strings.Replace(small("copying"), "</os>", firmware, 1), false)
	ok(t, err)
	ok(t, os.Remove(copied))
	ok(t, os.Symlink(precious, copied))
	refused(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}), fault.Denied, copied)
	g = d.define(small("dumped"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	refused(t, savestate.Dump(d.ctx(), g, client, deep, savestate.DumpOptions{Memory: "elf"}), fault.Denied, deep)
	refused(t, savestate.Save(d.ctx(), g, client, deep, savestate.SaveOptions{}), fault.Denied, deep)
	if text, err := os.ReadFile(precious); err != nil || string(text) != "precious" {
		t.Errorf("what a link led to has %d bytes, %v", len(text), err)
	}
	if entries, err := os.ReadDir(others); err != nil || len(entries) != 1 {
		t.Errorf("other files are there: %v, %v", entries, err)
	}
}

// A file that one client has named is opened where that one is held to, although another names it too
// that is held to other folders, which the file does not lie in.
// Promise: A3
func TestPathLimits_SamePathAgain(t *testing.T) {
	d := newDaemonOf(t, true)
	folder, _, client := d.fencedIn()
	others, precious := filepath.Join(d.dir, "of-others"), filepath.Join(d.dir, "precious")
	other := scope.Daemon("a test").Within([]string{others})
	ok(t, os.Mkdir(others, 0o755))
	ok(t, os.WriteFile(precious, []byte("precious"), 0o600))
	port := func(path, number string, more ...string) string {
		return "<channel type='file'><source path='" + path + "'/><target type='virtio' name='org.test." + number + "'/>" + strings.Join(more, "") + "</channel>"
	}
	const bus = "<controller type='virtio-serial'/>"
	// Paths in the stored definition, and paths named for the running guest.
	stored := filepath.Join(folder, "stored")
	g, err := guest.Define(d.ctx(), d.Registry, client, small("stored", bus, port(stored, "0")), false)
	ok(t, err)
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	ok(t, hotplug.Attach(d.ctx(), g, other, port(stored, "1", "<log file='"+others+"/log'/>"), machine.Affect{Live: true})) // and something of its own
	ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
	// Of what the running guest has, and is stored.
	live := filepath.Join(folder, "live")
	h := d.define(small("live", bus))
	ok(t, launch.Start(d.ctx(), h, scope.Daemon("a test"), launch.StartOptions{}))
	ok(t, hotplug.Attach(d.ctx(), h, client, port(live, "0"), machine.Affect{Live: true}))
	_, err = guest.Define(d.ctx(), d.Registry, other, again(small("live", bus, port(live, "0")), h), false)
	ok(t, err)
	ok(t, guest.Destroy(d.ctx(), h, scope.Daemon("a test"), false))
	for path, of := range map[string]*guest.Guest{stored: g, live: h} {
		ok(t, os.Remove(path))
		ok(t, os.Symlink(precious, path))
		refused(t, launch.Start(d.ctx(), of, scope.Daemon("a test"), launch.StartOptions{}), fault.Denied, path)
	}
}

// A socket is made where the client that named it is held to, although a folder above it
// becomes a link: the daemon who makes it may write everywhere.
// Promise: A3
func TestPathLimits_SocketBehindLink(t *testing.T) {
	for what, device := range map[string]string{
		"port":    "<serial type='unix'><source mode='bind' path='PATH'/></serial>",
		"display": "<graphics type='vnc'><listen type='socket' socket='PATH'/></graphics>",
	} {
		t.Run(what, func(t *testing.T) {
			d := newDaemonOf(t, true)
			folder, _, client := d.fencedIn()
			others, way := filepath.Join(d.dir, "of-others"), filepath.Join(folder, "way")
			ok(t, os.Mkdir(others, 0o755))
			ok(t, os.Mkdir(way, 0o755))
			path := filepath.Join(way, "socket")
			doc := small(what, strings.ReplaceAll(device, "PATH", path))
			g, err := guest.Define(d.ctx(), d.Registry, client, doc, false)
			ok(t, err)
			ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{Paused: true}))
			if info, err := os.Stat(path); err != nil || info.Mode().Type() != os.ModeSocket {
				t.Errorf("there is no socket: %v, %v", info, err)
			}
			ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
			if entries, err := os.ReadDir(way); err != nil || len(entries) != 0 {
				t.Errorf("after the end there are %v, %v", entries, err)
			}
			ok(t, os.Remove(way))
			ok(t, os.Symlink(others, way))
			refused(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}), fault.Denied, path) // whichever client starts it
			_, err = guest.Create(d.ctx(), d.Registry, client, small(what+"2", strings.ReplaceAll(device, "PATH", path)), launch.StartOptions{})
			refused(t, err, fault.Denied, path)
			if entries, err := os.ReadDir(others); err != nil || len(entries) != 0 {
				t.Errorf("behind the link there are %v, %v", entries, err)
			}
			// A client without rules may follow links.
			g = d.define(small("free", strings.ReplaceAll(device, "PATH", path)))
			ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{Paused: true}))
			ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
		})
	}
}

// Files that QEMU reads while it creates the machine must be regular. With a pipe QEMU would wait for a writer,
// and the start would block a slot that other starts need.
func TestStart_Pipe(t *testing.T) {
	for _, isolated := range []bool{true, false} {
		d := newDaemonOf(t, isolated)
		folder, _, client := d.fencedIn()
		at := map[string]string{"pipe": filepath.Join(folder, "pipe"), "socket": filepath.Join(folder, "socket"), "device": filepath.Join(folder, "device"), "folder": folder}
		ok(t, errors.Join(unix.Mkfifo(at["pipe"], 0o666), unix.Mknod(at["device"], unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5)))))
		socket, err := new(net.ListenConfig).Listen(t.Context(), "unix", at["socket"])
		ok(t, err)
		defer socket.Close()
		kernel := filepath.Join(folder, "kernel")
		ok(t, os.WriteFile(kernel, make([]byte, 4096), 0o600))
		for use, os := range map[string]string{
			"kernel": "<kernel>%s</kernel>", "initrd": "<kernel>" + kernel + "</kernel><initrd>%s</initrd>", "dtb": "<kernel>" + kernel + "</kernel><dtb>%s</dtb>",
			"rom": "<loader type='rom'>%s</loader>", "flash": "<loader type='pflash' readonly='yes'>%s</loader><nvram>" + kernel + "</nvram>",
			"variables": "<loader type='pflash' readonly='yes'>" + kernel + "</loader><nvram>%s</nvram>",
			"template":  "<loader type='pflash' readonly='yes'>" + kernel + "</loader><nvram template='%s'>" + folder + "/vars</nvram>",
		} {
			for kind, path := range at {
				doc := strings.Replace(small(use+"-"+kind), "</type>", "</type>"+strings.ReplaceAll(os, "%s", path), 1)
				g, err := guest.Define(d.ctx(), d.Registry, client, doc, false)
				ok(t, err)
				ctx, stop := context.WithTimeout(d.ctx(), 20*time.Second)
				refused(t, launch.Start(ctx, g, client, launch.StartOptions{}), fault.Invalid, path+": it is neither a file nor a block device")
				stop()
			}
		}
	}
}

// What bounds a client is asked of what the client makes of the running guest, too.
// Promise: A12
func TestTune_WithinQuota(t *testing.T) {
	d := newDaemon(t)
	g := d.define(small("weighed"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{Paused: true}))
	client := scopetest.Client(scopetest.Limits{Guest: func(_ string, def *domain.Definition, _ uint64) error {
		if def.Tune.Shares > 1024 {
			return fault.New(fault.Denied, fault.Call, "too heavy")
		}
		return nil
	}})
	for _, a := range []machine.Affect{{Live: true}, {Config: true}, {Live: true, Config: true}} {
		refused(t, hotplug.Tune(d.ctx(), g, client, a, func(def *domain.Definition) error { def.Tune.Shares = 2048; return nil }), fault.Denied, "too heavy")
	}
	if v := g.View(); v.Active.Tune.Shares != 0 || v.Inactive.Tune.Shares != 0 {
		t.Errorf("it weighs %d, and will %d", v.Active.Tune.Shares, v.Inactive.Tune.Shares)
	}
	client = scopetest.Client(scopetest.Limits{Guest: func(_ string, def *domain.Definition, _ uint64) error {
		if len(def.Devices.NICs) > 0 {
			return fault.New(fault.NoCapacity, fault.Call, "no more interfaces")
		}
		return nil
	}})
	for _, a := range []machine.Affect{{Live: true}, {Config: true}, {Live: true, Config: true}} {
		refused(t, hotplug.Attach(d.ctx(), g, client, "<interface type='user'><model type='virtio'/></interface>", a), fault.NoCapacity, "no more interfaces")
	}
}

// What QEMU reads into its own memory is no more than the guest has: a file of holes alone would
// otherwise take as much of the host's as its client likes, whatever the rules give.
func TestPathLimits_FilesReported(t *testing.T) {
	d := newDaemonOf(t, true)
	folder, _, client := d.fencedIn()
	entries, each := "", filepath.Join(folder, "each")
	for n := range 4 {
		entries += fmt.Sprintf("<entry name='opt/org.test/%d' file='%s'/>", n, each)
	}
	g, err := guest.Define(d.ctx(), d.Registry, client, strings.Replace(small("told"), "<features>", "<sysinfo type='fwcfg'>"+entries+"</sysinfo><features>", 1), false)
	ok(t, err)
	ok(t, errors.Join(os.WriteFile(each, nil, 0o600), os.Truncate(each, 16<<20+1)))
	refused(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}), fault.Invalid, "may have 64 MiB together")
	ok(t, os.Truncate(each, 16<<20))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{Paused: true}))
}

// The owner of a folder puts a link in the place of a guest's variables. Errors must not reveal the link's target.
func TestPathLimits_LinkRevealsNothing(t *testing.T) {
	d := newDaemon(t)
	folder := filepath.Join(d.dir, "alice")
	ok(t, errors.Join(os.Mkdir(folder, 0o755), os.WriteFile(filepath.Join(d.dir, "secret"), nil, 0o600)))
	vars := filepath.Join(folder, "vars")
	g := d.define(strings.Replace(small("asked"), "</type>", "</type><loader type='pflash' readonly='yes'>/usr/share/OVMF/OVMF_CODE_4M.fd</loader><nvram template='/usr/share/OVMF/OVMF_VARS_4M.fd'>"+vars+"</nvram>", 1))
	var said []string
	for _, to := range []string{"secret", "none"} {
		ok(t, errors.Join(os.Symlink("../"+to, vars), os.Lchown(vars, 4242, 4242), os.Chown(folder, 4242, 4242)))
		err := launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{Paused: true})
		refused(t, err, fault.Denied, "user 4242 made it")
		said = append(said, err.Error())
		ok(t, os.Remove(vars))
	}
	if said[0] != said[1] {
		t.Errorf("it is told which of the two is there: %q", said)
	}
}

// The owner of the folder with a guest's device path must not lead the guest to another device of the host.
// Promise: X11
func TestPathLimits_LinkToDevice(t *testing.T) {
	d := newDaemonOf(t, true)
	folder := filepath.Join(d.dir, "alice")
	disk, port := filepath.Join(d.dir, "disk"), filepath.Join(folder, "port")
	ok(t, errors.Join(os.Mkdir(folder, 0o755), unix.Mknod(disk, unix.S_IFBLK|0o600, int(unix.Mkdev(7, 0))), os.Symlink("../disk", port)))
	doc := "<serial type='dev'><source path='" + port + "'/><target type='usb-serial' port='1'/></serial>"
	xhci := "<controller type='usb' model='qemu-xhci'/>"
	live, g := machine.Affect{Live: true}, d.define(small("led", xhci, doc))
	bare := d.define(small("bare", xhci))
	ok(t, errors.Join(os.Lchown(port, 4242, 4242), launch.Start(d.ctx(), bare, scope.Daemon("a test"), launch.StartOptions{Paused: true})))
	refused(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{Paused: true}), fault.Denied, "user 4242 made it")
	refused(t, hotplug.Attach(d.ctx(), bare, scope.Daemon("a test"), doc, live), fault.Denied, "user 4242 made it")
	ok(t, errors.Join(os.Lchown(port, 0, 0), os.Remove(disk), unix.Mknod(disk, unix.S_IFCHR|0o600, int(unix.Mkdev(10, 229)))))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{Paused: true}))
	ok(t, hotplug.Attach(d.ctx(), bare, scope.Daemon("a test"), doc, live))
}
