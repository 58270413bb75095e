package guest_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
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
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/event"
	"github.com/lodge-kvm/lodge/internal/word/scope"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// domains is the kind of the records of persistent guests.
var domains = store.Kind{Name: "domain", Version: 1}

// reopen replaces the daemon by another. What a daemon that was killed would
// have left on disk is made meanwhile.
func (d *daemon) reopen(meanwhile func()) {
	d.t.Helper()
	d.close()
	meanwhile()
	d.open()
}

// again finds a guest in the present daemon.
func (d *daemon) again(g *guest.Guest) *guest.Guest {
	d.t.Helper()
	found, err := d.ByUUID(g.UUID)
	if err != nil {
		d.t.Fatal(err)
	}
	return found
}

// record reads a guest's run record.
func record(t *testing.T, g *guest.Guest) map[string]any {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(guest.RunDir(g), "run.json"))
	ok(t, err)
	var r map[string]any
	ok(t, json.Unmarshal(data, &r))
	return r
}

func writeRecord(t *testing.T, g *guest.Guest, r map[string]any) {
	t.Helper()
	data, err := json.Marshal(r)
	ok(t, err)
	ok(t, os.MkdirAll(guest.RunDir(g), 0o700))
	ok(t, os.WriteFile(filepath.Join(guest.RunDir(g), "run.json"), data, 0o600))
}

// operations are the records of the operations that are open on a running guest.
func operations(t *testing.T, g *guest.Guest) []string {
	t.Helper()
	records, err := filepath.Glob(filepath.Join(guest.RunDir(g), "operation-*"))
	ok(t, err)
	return records
}

// noOperation waits until no operation is open on a running guest.
func noOperation(t *testing.T, g *guest.Guest) {
	t.Helper()
	eventually(t, "no operation is open", func() bool { return len(operations(t, g)) == 0 })
}

// cutOff leaves the record of an operation that a daemon did not live to end.
func cutOff(t *testing.T, g *guest.Guest, kind string, payload map[string]any) {
	t.Helper()
	leaveRecord(t, g, kind, false, payload)
}

// completeSave leaves the record of a managed save that is complete.
func completeSave(t *testing.T, g *guest.Guest) {
	t.Helper()
	leaveRecord(t, g, "save", true, map[string]any{"Path": guest.ManagedSavePath(g), "WasRunning": true, "Managed": true})
}

func leaveRecord(t *testing.T, g *guest.Guest, kind string, decided bool, payload map[string]any) {
	t.Helper()
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	ok(t, err)
	record, err := json.Marshal(map[string]any{
		"ID": kind, "Kind": kind, "Version": 1, "Owner": g.UUID, "Boot": strings.TrimSpace(string(boot)), "Decided": decided, "Payload": payload,
	})
	ok(t, err)
	ok(t, os.WriteFile(filepath.Join(guest.RunDir(g), "operation-"+kind+".json"), record, 0o600))
}

// stored changes what the store keeps of a guest. The daemon must not run.
func (d *daemon) stored(g *guest.Guest, change func(map[string]any)) {
	d.t.Helper()
	s, err := store.Open(filepath.Join(d.dir, "data"))
	ok(d.t, err)
	var r map[string]any
	ok(d.t, s.Get(domains, g.UUID, &r))
	change(r)
	ok(d.t, s.Put(domains, g.UUID, r))
	ok(d.t, s.Close())
}

// eventually spins until something is so.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	late := time.After(30 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !so() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("not within half a minute: %s", what)
		}
	}
}

// reap waits for a process that is this test's child, unless a daemon has that watches it.
func reap(t *testing.T, pid int) {
	t.Helper()
	if _, err := syscall.Wait4(pid, nil, 0, nil); !errors.Is(err, syscall.ECHILD) {
		ok(t, err)
	}
}

func gone(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, os.ErrNotExist)
}

func TestAdoption_UndefinedStaysTransient(t *testing.T) {
	d := newDaemon(t)
	g := d.define(small("loose"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	ok(t, guest.Undefine(d.ctx(), g, scope.Daemon("a test"), guest.UndefineOptions{}))
	d.reopen(func() {})
	g = d.again(g)
	if g.View().Persistent {
		t.Error("the undefined guest is persistent again")
	}
	refused(t, guest.Undefine(d.ctx(), g, scope.Daemon("a test"), guest.UndefineOptions{}), fault.WrongState, "transient")
	ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
	if _, err := d.ByUUID(g.UUID); !fault.Is(err, fault.NotFound) {
		t.Errorf("it is still there after its end: %v", err)
	}
}

// Rules of access know a guest by its labels: one that others have been given while it ran stays theirs when
// it is undefined, under the next daemon, too.
// Promise: A1
func TestAdoption_UndefinedKeepsMarks(t *testing.T) {
	d := newDaemon(t)
	of := func(team string) string {
		return strings.Replace(small("given"), "<os>", "<metadata><x:own xmlns:x='urn:own'>"+team+"</x:own><l:guest xmlns:l='"+provision.MarksNamespace+"'><l:label name='team' value='"+team+"'/></l:guest></metadata><os>", 1)
	}
	g := d.define(of("a"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	d.define(strings.Replace(of("b"), "<memory", "<uuid>"+g.UUID+"</uuid><memory", 1))
	ok(t, guest.Undefine(d.ctx(), g, scope.Daemon("a test"), guest.UndefineOptions{}))
	for range 2 {
		metadata := g.View().Active.Metadata
		marks, _, err := xmltree.MetadataElement(metadata, provision.MarksNamespace)
		ok(t, err)
		root, err := xmltree.Parse(marks)
		ok(t, err)
		if label := root.Child("label").Attr("value"); g.View().Persistent || label != "b" || !strings.Contains(metadata, ">a</") {
			t.Errorf("it has the metadata %s", metadata)
		}
		d.reopen(func() {})
		g = d.again(g)
	}
}

func TestAdoption_DefinedWhileRunning(t *testing.T) {
	d := newDaemon(t)
	g := d.define(small("kept"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	d.reopen(func() {
		r := record(t, g)
		r["State"].(map[string]any)["Persistent"] = false
		writeRecord(t, g, r)
	})
	g = d.again(g)
	ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
	d.want(d.again(g), domain.ShutOff, domain.ReasonDestroyed)
	ok(t, guest.Undefine(d.ctx(), g, scope.Daemon("a test"), guest.UndefineOptions{}))
}

// Promise: G5
func TestQuarantine_NotStartedTwice(t *testing.T) {
	for name, damage := range map[string]string{"empty": "", "torn": `{"Name":"qu`, "another's": `{}`} {
		t.Run(name, func(t *testing.T) {
			d := newDaemon(t)
			g, other := d.define(small("quarantined")), d.define(small("other"))
			ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
			ok(t, launch.Start(d.ctx(), other, scope.Daemon("a test"), launch.StartOptions{}))
			pid := d.pid("quarantined")
			d.reopen(func() { ok(t, os.WriteFile(filepath.Join(guest.RunDir(g), "run.json"), []byte(damage), 0o600)) })
			d.want(d.again(other), domain.Running, domain.ReasonBooted)
			g = d.again(g)
			if m := strings.Join(g.View().Messages, "\n"); !strings.Contains(m, "quarantined") {
				t.Errorf("no message reports it: %q", m)
			}
			refused(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}), fault.Busy, "still works")
			ok(t, syscall.Kill(pid, 0)) // and left alone

			ok(t, syscall.Kill(pid, syscall.SIGKILL))
			reap(t, pid)
			ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
			if m := g.View().Messages; len(m) > 0 {
				t.Errorf("it is well and still said to be: %q", m)
			}
		})
	}
}

// A guest without any record in the store is still shown, and its name is not given to another guest.
// Promise: G5
func TestQuarantine_UnknownGuestShown(t *testing.T) {
	for damage, called := range map[string]string{`{"Name":"tr`: "", `{"Name":"transient","UUID":"%s","XML":"<domain"}`: "transient"} {
		t.Run(called, func(t *testing.T) {
			d := newDaemon(t)
			g, err := guest.Create(d.ctx(), d.Registry, scope.Daemon("a test"), small("transient"), launch.StartOptions{})
			ok(t, err)
			pid, id := d.pid("transient"), g.UUID
			end := sync.OnceFunc(func() {
				ok(t, syscall.Kill(pid, syscall.SIGKILL))
				reap(t, pid)
			})
			t.Cleanup(end)
			d.reopen(func() {
				ok(t, os.WriteFile(filepath.Join(guest.RunDir(g), "run.json"), []byte(strings.Replace(damage, "%s", id, 1)), 0o600))
			})
			all := d.All()
			if called = cmp.Or(called, id); len(all) != 1 || all[0].UUID != id || all[0].Name() != called || !all[0].View().Quarantined {
				t.Fatalf("of a guest that runs is shown: %+v", all)
			}
			same := strings.Replace(small(called), "<memory", "<uuid>"+id+"</uuid><memory", 1)
			_, err = guest.Create(d.ctx(), d.Registry, scope.Daemon("a test"), same, launch.StartOptions{})
			refused(t, err, fault.Busy, "still works")
			_, err = guest.Define(d.ctx(), d.Registry, scope.Daemon("a test"), small(called), false)
			refused(t, err, fault.Exists, "already exists")
			if len(d.All()) != 1 {
				t.Error("it is not shown any more")
			}
			end()
			for ctx := d.ctx(); len(d.All()) > 0; { // it ends on its own
				select {
				case <-time.After(10 * time.Millisecond):
				case <-ctx.Done():
					t.Fatal("it is shown still, and has ended")
				}
			}
			_, err = guest.Create(d.ctx(), d.Registry, scope.Daemon("a test"), strings.Replace(same, called, "another", 1), launch.StartOptions{})
			ok(t, err)
			d.want(d.again(g), domain.Running, domain.ReasonBooted)
		})
	}
}

// One that is undefined then is transient for the daemon that can adopt it.
// Promise: F31
func TestQuarantine_Undefine(t *testing.T) {
	d := newDaemon(t)
	g := d.define(small("quarantined"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	var text any
	d.reopen(func() {
		r := record(t, g)
		text, r["XML"] = r["XML"], "<domain"
		writeRecord(t, g, r)
	})
	state := filepath.Join(d.dir, "data/guest/tpm", g.UUID, "tpm2-00.permall")
	ok(t, os.MkdirAll(filepath.Dir(state), 0o700))
	ok(t, os.WriteFile(state, nil, 0o600))
	ok(t, guest.Undefine(d.ctx(), d.again(g), scope.Daemon("a test"), guest.UndefineOptions{}))
	if gone(state) {
		t.Error("it runs on without the state of its TPM")
	}
	d.reopen(func() {
		r := record(t, g)
		r["XML"] = text
		writeRecord(t, g, r)
	})
	g = d.again(g)
	d.want(g, domain.Running, domain.ReasonBooted)
	if g.View().Persistent {
		t.Error("it is defined again")
	}
	ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
	if !gone(state) {
		t.Error("the state of its TPM is left")
	}
}

// The host's /run was cleared. Only its control group is left of a running guest.
// Promise: G5
func TestQuarantine_RunDirectoryRemoved(t *testing.T) {
	d := newDaemon(t)
	if d.Cgroups.Version() == 0 {
		t.Skip("this host has no usable control groups: ", d.Cgroups.Absent())
	}
	g := d.define(small("orphan"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	pid := d.pid("orphan")
	d.reopen(func() { ok(t, os.RemoveAll(guest.RunDir(g))) })
	for range 2 { // and by the daemon after that one
		g = d.again(g)
		if m := strings.Join(g.View().Messages, "\n"); !strings.Contains(m, "quarantined") {
			t.Errorf("no message reports it: %q", m)
		}
		refused(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}), fault.Busy, "still works")
		ok(t, syscall.Kill(pid, 0)) // and left alone
		d.reopen(func() {})
	}
	ok(t, syscall.Kill(pid, syscall.SIGKILL))
	reap(t, pid)
	ok(t, launch.Start(d.ctx(), d.again(g), scope.Daemon("a test"), launch.StartOptions{}))
}

func TestAdoption_DamagedRecordOfEnded(t *testing.T) {
	d := newDaemon(t)
	g := d.define(small("ended"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	pid := d.pid("ended")
	d.reopen(func() {
		ok(t, syscall.Kill(pid, syscall.SIGKILL))
		_, err := syscall.Wait4(pid, nil, 0, nil)
		ok(t, err)
		ok(t, os.WriteFile(filepath.Join(guest.RunDir(g), "run.json"), nil, 0o600))
	})
	if !gone(guest.RunDir(g)) {
		t.Error("its run directory is left")
	}
	ok(t, launch.Start(d.ctx(), d.again(g), scope.Daemon("a test"), launch.StartOptions{}))
}

func TestOpen_DamagedDefinition(t *testing.T) {
	d := newDaemon(t)
	g, other, idle := d.define(small("damaged")), d.define(small("other")), d.define(small("idle"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	d.reopen(func() {
		for _, g := range []*guest.Guest{g, idle} {
			d.stored(g, func(r map[string]any) { r["XML"] = "<domain" })
		}
	})
	ok(t, launch.Start(d.ctx(), d.again(other), scope.Daemon("a test"), launch.StartOptions{}))
	if _, err := d.ByUUID(idle.UUID); !fault.Is(err, fault.NotFound) {
		t.Errorf("a definition that cannot be read is served: %v", err)
	}
	g = d.again(g)
	d.want(g, domain.Running, domain.ReasonBooted)
	if g.View().Persistent {
		t.Error("a guest whose definition cannot be read is persistent")
	}
	refused(t, guest.Undefine(d.ctx(), g, scope.Daemon("a test"), guest.UndefineOptions{}), fault.WrongState, "transient")
	ok(t, savestate.RemoveManagedSave(d.ctx(), g, scope.Daemon("a test")))
	ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
	var kept map[string]any
	ok(t, d.store.Get(domains, g.UUID, &kept)) // for an administrator who can repair it
}

// Promise: G6
func TestAdoption_InterruptedStart(t *testing.T) {
	d := newDaemon(t)
	g := d.define(small("begun"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	pid := d.pid("begun")
	// QEMU is not yet in the record, and does not get to its monitor for a while.
	ok(t, syscall.Kill(pid, syscall.SIGSTOP))
	d.reopen(func() {
		r := record(t, g)
		r["PID"], r["StartTime"] = 0, 0
		r["State"] = map[string]any{}
		writeRecord(t, g, r)
	})
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the QEMU of a start that was taken back lives on: %v", err)
	}
	if !gone(guest.RunDir(g)) {
		t.Error("its run directory is left")
	}
	ok(t, launch.Start(d.ctx(), d.again(g), scope.Daemon("a test"), launch.StartOptions{}))
}

func TestAdoption_InterruptedSave(t *testing.T) {
	d := newDaemon(t)
	g := d.define(small("halfsaved"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	_, err := g.MonitorCommand(d.ctx(), scope.Daemon("a test"), `{"execute":"stop"}`, false)
	ok(t, err)
	d.settle(g, domain.Paused)
	path := filepath.Join(d.dir, "image")
	d.reopen(func() {
		cutOff(t, g, "save", map[string]any{"Path": path, "WasRunning": true})
		ok(t, os.WriteFile(path+".partial", nil, 0o600))
	})
	d.settle(d.again(g), domain.Running)
	eventually(t, "the half image gone", func() bool { return gone(path + ".partial") })
	noOperation(t, g)
}

func TestAdoption_InterruptedSaveOfEnded(t *testing.T) {
	d := newDaemon(t)
	g := d.define(small("halfended"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	ok(t, syscall.Kill(d.pid("halfended"), syscall.SIGSTOP)) // so the save cannot be aborted with it
	path := filepath.Join(d.dir, "image")
	d.reopen(func() {
		r := record(t, g)
		cutOff(t, g, "save", map[string]any{"Path": path, "WasRunning": true})
		r["State"].(map[string]any)["EndFor"] = string(domain.ReasonDestroyed)
		writeRecord(t, g, r)
		ok(t, os.WriteFile(path+".partial", nil, 0o600))
	})
	d.settle(d.again(g), domain.ShutOff)
	if !gone(path + ".partial") {
		t.Error("a partial image without a record is left")
	}
}

func TestManagedSave_UsedOnce(t *testing.T) {
	d := newDaemon(t)
	g := d.define(small("once"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	ok(t, savestate.ManagedSave(d.ctx(), g, scope.Daemon("a test"), savestate.SaveOptions{}))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	d.reopen(func() { // killed when the guest ran again, before the image was removed
		d.stored(g, func(r map[string]any) { r["ManagedSave"] = true })
		ok(t, os.WriteFile(guest.ManagedSavePath(g), []byte("old"), 0o600))
	})
	g = d.again(g)
	if g.View().ManagedSave || !gone(guest.ManagedSavePath(g)) {
		t.Error("an image from which the guest came is still there, and would be restored again")
	}
}

func TestManagedSave_CompletedNotLost(t *testing.T) {
	d := newDaemon(t)
	g := d.define(small("complete"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	r := record(t, g)
	ok(t, savestate.ManagedSave(d.ctx(), g, scope.Daemon("a test"), savestate.SaveOptions{}))
	d.reopen(func() { // killed when the image was complete, before that was stored
		d.stored(g, func(r map[string]any) { r["ManagedSave"] = false })
		writeRecord(t, g, r)
		completeSave(t, g)
	})
	g = d.again(g)
	d.want(g, domain.ShutOff, domain.ReasonSaved)
	if !g.View().ManagedSave {
		t.Fatal("the guest's memory is forgotten")
	}
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	d.want(g, domain.Running, domain.ReasonRestored)
}

func TestAutoDestroy_DaemonEnds(t *testing.T) {
	d := newDaemon(t)
	g := d.define(small("owned"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{AutoDestroy: true, Owner: make(chan struct{})}))
	d.reopen(func() {})
	d.settle(d.again(g), domain.ShutOff)
	d.want(d.again(g), domain.ShutOff, domain.ReasonDestroyed)
}

// A guest that others have been given does not end with the client that started it, nor with that one's
// daemon.
// Promise: A1
func TestAutoDestroy_NotPermitted(t *testing.T) {
	d := newDaemon(t)
	d.heard = make(chan string, 1000)
	d.reopen(func() {})
	asked := make(chan string, 1)
	leave := func(g *guest.Guest, answer error) {
		owner := make(chan struct{})
		ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{AutoDestroy: true, Owner: owner, OwnerMayDestroy: func(uuid string) error {
			asked <- uuid
			return answer
		}}))
		close(owner)
		if uuid := <-asked; uuid != g.UUID {
			t.Errorf("it is asked of %s", uuid)
		}
	}
	mine, theirs := d.define(small("mine")), d.define(small("theirs"))
	leave(mine, nil)
	d.settle(mine, domain.ShutOff)
	leave(theirs, fault.New(fault.Denied, fault.Call, "no"))
	d.logged("cannot destroy the guest of a disconnected client")
	d.reopen(func() {})
	d.want(d.again(theirs), domain.Running, domain.ReasonBooted)
}

// Promise: G6
func TestAdoption_BegunEndCompleted(t *testing.T) {
	d := newDaemon(t)
	g := d.define(small("ending"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	ok(t, syscall.Kill(d.pid("ending"), syscall.SIGSTOP)) // its monitor will not answer either
	d.reopen(func() {
		r := record(t, g)
		r["State"].(map[string]any)["EndFor"] = string(domain.ReasonDestroyed)
		writeRecord(t, g, r)
	})
	d.settle(d.again(g), domain.ShutOff)
}

func TestAdoption_DeviceReleased(t *testing.T) {
	d := newDaemon(t)
	path := filepath.Join(d.dir, "stick.raw")
	ok(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
	stick := `<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='` + path + `'/><target dev='sda' bus='usb'/></disk>`
	g := d.define(small("plugged", `<controller type='usb' model='qemu-xhci'/>`))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	ok(t, hotplug.Attach(d.ctx(), g, scope.Daemon("a test"), stick, machine.Affect{Live: true}))
	disks := g.View().Active.Devices.Disks
	alias := disks[len(disks)-1].Alias
	d.reopen(func() {
		s, err := qmp.Dial(d.ctx(), filepath.Join(guest.RunDir(g), "monitor.sock"), quiet())
		ok(t, err)
		ok(t, s.Execute(d.ctx(), "device_del", map[string]any{"id": alias}, nil))
		s.Close()
	})
	g = d.again(g)
	if n := len(g.View().Active.Devices.Disks); n != 0 {
		t.Errorf("%d disks are shown", n)
	}
	if strings.Contains(record(t, g)["XML"].(string), path) {
		t.Error("the run record still has the disk")
	}
	eventually(t, "QEMU lets the image go", func() bool {
		nodes, err := g.MonitorCommand(d.ctx(), scope.Daemon("a test"), `{"execute":"query-named-block-nodes"}`, false)
		return err == nil && !strings.Contains(nodes, path)
	})
	ok(t, hotplug.Attach(d.ctx(), g, scope.Daemon("a test"), stick, machine.Affect{Live: true}))
}

func TestAdoption_KeepsDevices(t *testing.T) {
	d := newDaemon(t)
	path := filepath.Join(d.dir, "disk.raw")
	ok(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
	disk := func(dev, kind, bus string) string {
		return `<disk type='file' device='` + kind + `'><driver name='qemu' type='raw'/><source file='` + path + `'/><target dev='` + dev + `' bus='` + bus + `'/><readonly/><shareable/></disk>`
	}
	g := d.define(small("many", disk("vda", "disk", "virtio"), disk("sda", "cdrom", "sata"), disk("sdb", "cdrom", "scsi"), disk("sdc", "disk", "usb"),
		disk("fda", "floppy", "fdc"), `<disk type='file' device='cdrom'><target dev='sdd' bus='sata'/></disk>`,
		`<controller type='usb' model='qemu-xhci'/><controller type='scsi' model='virtio-scsi'/>`,
		`<interface type='user'><model type='virtio'/></interface><interface type='user'><model type='e1000e'/></interface>`))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	before := g.View().Active.Devices.All()
	d.reopen(func() {})
	after := d.again(g).View().Active.Devices.All()
	if len(after) != len(before) {
		t.Errorf("%d devices were %d before", len(after), len(before))
	}
}

func TestUndefine_WhileStarting(t *testing.T) {
	d := newDaemon(t)
	g := d.define(small("hasty"))
	started := make(chan error, 1)
	go func() { started <- launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}) }()
	for g.Job().Kind != domain.JobStart {
		runtime.Gosched()
	}
	ok(t, guest.Undefine(d.ctx(), g, scope.Daemon("a test"), guest.UndefineOptions{}))
	ok(t, <-started)
	found, err := d.ByName("hasty")
	ok(t, err)
	if found != g || found.View().Persistent {
		t.Error("it is not the transient guest that it has become")
	}
	ok(t, guest.Destroy(d.ctx(), found, scope.Daemon("a test"), false))
	if _, err := d.ByName("hasty"); !fault.Is(err, fault.NotFound) {
		t.Errorf("it is still there after its end: %v", err)
	}
}

func TestRename_WhileStarting(t *testing.T) {
	d := newDaemon(t)
	g := d.define(small("before"))
	started := make(chan error, 1)
	go func() { started <- launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}) }()
	for g.Job().Kind != domain.JobStart {
		runtime.Gosched()
	}
	refused(t, guest.Rename(d.ctx(), g, scope.Daemon("a test"), "after"), fault.WrongState, "running")
	ok(t, <-started)
}

func TestRestore_RefusedClosesFiles(t *testing.T) {
	d := newDaemon(t)
	g := d.define(small("open"))
	path := filepath.Join(d.dir, "image")
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	ok(t, savestate.Save(d.ctx(), g, scope.Daemon("a test"), path, savestate.SaveOptions{}))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	for range 3 {
		_, err := guest.Restore(d.ctx(), d.Registry, scope.Daemon("a test"), path, savestate.SaveOptions{})
		refused(t, err, fault.WrongState, "already running")
	}
	all, err := os.ReadDir("/proc/self/fd")
	ok(t, err)
	for _, e := range all {
		if at, _ := os.Readlink("/proc/self/fd/" + e.Name()); at == path {
			t.Errorf("descriptor %s is still the image", e.Name())
		}
	}
}

// slowImage makes a save to path last until its data is read.
func slowImage(t *testing.T, path string) (read func()) {
	t.Helper()
	ok(t, syscall.Mkfifo(path+".partial", 0o600))
	f, err := os.OpenFile(path+".partial", os.O_RDWR, 0)
	ok(t, err)
	t.Cleanup(func() { _ = f.Close() })
	// The pipe holds the definition, and less than the whole memory. QEMU answers no command while it writes the
	// part before the memory, which the socket buffers, and the part after it.
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETPIPE_SZ, 128<<10); err != nil {
		t.Fatal(err)
	}
	return func() {
		go func() {
			buffer := make([]byte, 1<<20)
			for {
				if _, err := f.Read(buffer); err != nil {
					return
				}
			}
		}()
	}
}

// saving starts a save of a wordy guest. The save does not end on its own.
func (d *daemon) saving(g *guest.Guest, path string) (read func(), saved <-chan error) {
	d.t.Helper()
	read = slowImage(d.t, path)
	result := make(chan error, 1)
	go func() {
		result <- savestate.Save(context.WithoutCancel(d.ctx()), g, scope.Daemon("a test"), path, savestate.SaveOptions{})
	}()
	eventually(d.t, "QEMU writing", func() bool {
		answer, err := g.MonitorCommand(d.ctx(), scope.Daemon("a test"), `{"execute":"query-migrate"}`, false)
		return err == nil && strings.Contains(answer, `"status":`)
	})
	return read, result
}

func TestSave_CancelledInQEMU(t *testing.T) {
	d := newDaemon(t)
	g := d.define(wordy("cancelled"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	path := filepath.Join(d.dir, "image")
	read, saved := d.saving(g, path)
	_, err := g.MonitorCommand(d.ctx(), scope.Daemon("a test"), `{"execute":"migrate_cancel"}`, false)
	ok(t, err)
	read()
	if err := <-saved; !fault.Is(err, fault.Aborted) {
		t.Errorf("the save ends with %v", err)
	}
	d.settle(g, domain.Running)
	if !gone(path) || !gone(path+".partial") {
		t.Error("an image is left of it")
	}
}

// Promise: F5
func TestSave_MonitorLostDuringSave(t *testing.T) {
	d := newDaemon(t)
	g := d.define(wordy("cut"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	path := filepath.Join(d.dir, "image")
	read, saved := d.saving(g, path)
	guest.LoseMonitor(g)
	read()
	if err := <-saved; err == nil {
		t.Error("the save succeeds without a monitor")
	}
	d.settle(g, domain.Running)
	if v := g.View(); !v.StuckSince.IsZero() {
		t.Errorf("still stuck on %s", v.StuckOn)
	}
	ok(t, guest.Suspend(d.ctx(), g, scope.Daemon("a test")))
	ok(t, guest.Resume(d.ctx(), g, scope.Daemon("a test")))
}

func TestSave_DaemonStops(t *testing.T) {
	d := newDaemon(t)
	g := d.define(wordy("stopped"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	path := filepath.Join(d.dir, "image")
	read, saved := d.saving(g, path)
	d.reopen(read) // what hangs is the next daemon's matter
	if err := <-saved; err == nil {
		t.Error("the save succeeds")
	}
	g = d.again(g)
	d.settle(g, domain.Running)
	eventually(t, "the half image gone", func() bool { return gone(path + ".partial") })
	// What the first daemon began to remove it may still be removing: it ended, and not its process.
	ok(t, savestate.Save(d.ctx(), g, scope.Daemon("a test"), filepath.Join(d.dir, "another"), savestate.SaveOptions{}))
}

func TestSave_Destroyed(t *testing.T) {
	d := newDaemon(t)
	g := d.define(wordy("impatient"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	path := filepath.Join(d.dir, "image")
	_, saved := d.saving(g, path)
	ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
	if err := <-saved; err == nil {
		t.Error("the save succeeds")
	}
	d.want(g, domain.ShutOff, domain.ReasonDestroyed)
	if !gone(path) || !gone(path+".partial") {
		t.Error("an image is left of it")
	}
}

// Promise: F3
func TestSave_QEMUKilled(t *testing.T) {
	d := newDaemon(t)
	g := d.define(wordy("slain"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	events := d.events.Reader()
	path := filepath.Join(d.dir, "image")
	_, saved := d.saving(g, path)
	ok(t, syscall.Kill(d.pid("slain"), syscall.SIGKILL))
	if err := <-saved; err == nil {
		t.Error("the save succeeds")
	}
	until(t, events, event.Stopped, event.DetailCrashed)
	if !gone(path) || !gone(path+".partial") {
		t.Error("an image is left of it")
	}
}

func TestDestroy_DaemonStops(t *testing.T) {
	d := newDaemon(t)
	for i := range 4 {
		g := d.define(small(string(rune('a' + i))))
		ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
		events := d.events.Reader()
		ok(t, syscall.Kill(d.pid(g.Name()), syscall.SIGKILL))
		if i%2 == 0 {
			until(t, events, event.Stopped, event.DetailCrashed)
		}
		d.reopen(func() {})
		eventually(t, "no control group", func() bool {
			return len(d.groups.Guests()) == 0
		})
	}
	for _, g := range d.All() { // the last one's end may only be noticed by now
		d.settle(g, domain.ShutOff)
	}
}

// Promise: G6
func TestAttach_InterruptedAtEachStep(t *testing.T) {
	d := newDaemon(t)
	path := filepath.Join(d.dir, "stick.raw")
	ok(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
	stick := `<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='` + path + `'/><target dev='sda' bus='usb'/></disk>`
	for name, c := range map[string]struct {
		noted, undone bool
		shown         int
	}{"finished": {shown: 1}, "noted": {noted: true, shown: 1}, "undone": {undone: true}} {
		t.Run(name, func(t *testing.T) {
			g := d.define(small(name, `<controller type='usb' model='qemu-xhci'/>`))
			ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
			before := record(t, g)
			ok(t, hotplug.Attach(d.ctx(), g, scope.Daemon("a test"), stick, machine.Affect{Live: true}))
			disk := g.View().Active.Devices.Disks[0]
			d.reopen(func() { // killed before, or just when, it noted that the device was made
				if !c.noted {
					writeRecord(t, g, before)
				}
				xml, err := domainxml.FormatDevice(disk, domainxml.Style{Active: true, Secure: true})
				ok(t, err)
				cutOff(t, g, "attach", map[string]any{"Device": xml, "Undo": []map[string]any{
					{"Command": "blockdev-del", "Args": map[string]any{"node-name": "libvirt-1-storage"}},
					{"Command": "blockdev-del", "Args": map[string]any{"node-name": "libvirt-1-format"}},
					{"Command": "device_del", "Args": map[string]any{"id": disk.Alias}},
				}})
				if c.undone {
					s, err := qmp.Dial(d.ctx(), filepath.Join(guest.RunDir(g), "monitor.sock"), quiet())
					ok(t, err)
					ok(t, s.Execute(d.ctx(), "device_del", map[string]any{"id": disk.Alias}, nil))
					for e := range s.Events() { // until nothing uses its backend
						if e.Name == "DEVICE_DELETED" {
							break
						}
					}
					s.Close()
				}
			})
			g = d.again(g)
			noOperation(t, g)
			if n := len(g.View().Active.Devices.Disks); n != c.shown {
				t.Errorf("%d disks are shown, want %d", n, c.shown)
			}
			if c.shown > 0 {
				ok(t, hotplug.Detach(d.ctx(), g, scope.Daemon("a test"), stick, machine.Affect{Live: true}))
			}
			ok(t, hotplug.Attach(d.ctx(), g, scope.Daemon("a test"), stick, machine.Affect{Live: true}))
			if n := g.View().Active.Devices.Disks[0].Source.Index; n != 2 { // QEMU might use the first node still
				t.Errorf("the next disk has node %d", n)
			}
			ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
		})
	}
}

// A plug was interrupted, and QEMU refuses one of the remaining commands for the device. The device still belongs
// to the guest, and the guest keeps its monitor.
// Promise: G6
func TestAttach_InterruptedBeforeRefusal(t *testing.T) {
	d := newDaemon(t)
	path := filepath.Join(d.dir, "stick.raw")
	ok(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
	stick := func(tune string) string {
		return `<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='` + path + `'/><target dev='sda' bus='usb'/>` + tune + `</disk>`
	}
	g := d.define(small("greedy", `<controller type='usb' model='qemu-xhci'/>`))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	before := record(t, g)
	ok(t, hotplug.Attach(d.ctx(), g, scope.Daemon("a test"), stick(""), machine.Affect{Live: true}))
	disk := g.View().Active.Devices.Disks[0]
	disk.Tune = &device.IOTune{TotalBytes: 1 << 20, ReadBytes: 1 << 20} // which QEMU does not take together
	d.reopen(func() {
		writeRecord(t, g, before)
		xml, err := domainxml.FormatDevice(disk, domainxml.Style{Active: true, Secure: true})
		ok(t, err)
		cutOff(t, g, "attach", map[string]any{"Device": xml})
	})
	g = d.again(g)
	noOperation(t, g)
	if disks := g.View().Active.Devices.Disks; len(disks) != 1 || disks[0].Tune != nil {
		t.Errorf("its disks are %+v", disks)
	}
	ok(t, guest.Suspend(d.ctx(), g, scope.Daemon("a test")))
	ok(t, hotplug.Detach(d.ctx(), g, scope.Daemon("a test"), stick(""), machine.Affect{Live: true}))
}

func TestCleanup_NextDaemon(t *testing.T) {
	d := newDaemon(t)
	path := filepath.Join(d.dir, "stick.raw")
	ok(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
	stick := `<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='` + path + `'/><target dev='sda' bus='usb'/></disk>`
	g := d.define(small("left", `<controller type='usb' model='qemu-xhci'/>`))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	d.reopen(func() { // killed when the device had gone, and not all that was behind it
		s, err := qmp.Dial(d.ctx(), filepath.Join(guest.RunDir(g), "monitor.sock"), quiet())
		ok(t, err)
		ok(t, s.Execute(d.ctx(), "blockdev-add", map[string]any{"driver": "file", "filename": path, "node-name": "libvirt-1-storage"}, nil))
		s.Close()
		cutOff(t, g, "cleanup", map[string]any{"Objects": []any{
			map[string]any{"Command": "blockdev-del", "Args": map[string]any{"node-name": "libvirt-1-storage"}},
		}})
	})
	g = d.again(g)
	noOperation(t, g)
	ok(t, hotplug.Attach(d.ctx(), g, scope.Daemon("a test"), stick, machine.Affect{Live: true}))
	ok(t, hotplug.Detach(d.ctx(), g, scope.Daemon("a test"), stick, machine.Affect{Live: true}))
	noOperation(t, g)
}

func TestSave_PausedAfterDump(t *testing.T) {
	d := newDaemon(t)
	g := d.define(small("twice"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{Paused: true}))
	ok(t, savestate.Dump(d.ctx(), g, scope.Daemon("a test"), filepath.Join(d.dir, "dump"), savestate.DumpOptions{}))
	if s := g.View().State; s != domain.Paused {
		t.Fatalf("after its dump it is %s", s)
	}
	ok(t, savestate.Dump(d.ctx(), g, scope.Daemon("a test"), filepath.Join(d.dir, "dump"), savestate.DumpOptions{}))
	ok(t, savestate.ManagedSave(d.ctx(), g, scope.Daemon("a test"), savestate.SaveOptions{}))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	d.want(g, domain.Paused, domain.ReasonUser)
}

func TestOpen_UnownedImagesRemoved(t *testing.T) {
	d := newDaemon(t)
	g, damaged := d.define(small("kept")), d.define(small("damaged"))
	for _, g := range []*guest.Guest{g, damaged} {
		ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
		ok(t, savestate.ManagedSave(d.ctx(), g, scope.Daemon("a test"), savestate.SaveOptions{}))
	}
	nobody := filepath.Join(filepath.Dir(guest.ManagedSavePath(g)), "57000000-0000-0000-0000-000000000001.save")
	d.reopen(func() {
		ok(t, os.WriteFile(nobody, nil, 0o600))
		ok(t, os.WriteFile(guest.ManagedSavePath(g)+".partial", nil, 0o600))
		d.stored(damaged, func(r map[string]any) { r["XML"] = "<domain" })
	})
	if !gone(nobody) || !gone(guest.ManagedSavePath(g)+".partial") {
		t.Error("an image without a guest is left")
	}
	if gone(guest.ManagedSavePath(damaged)) {
		t.Error("the image of a guest whose definition cannot be read is gone")
	}
	ok(t, launch.Start(d.ctx(), d.again(g), scope.Daemon("a test"), launch.StartOptions{}))
}

func TestUndefine_DuringManagedSave(t *testing.T) {
	d := newDaemon(t)
	g := d.define(wordy("both"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	read := slowImage(t, guest.ManagedSavePath(g))
	saved, undefined := make(chan error, 1), make(chan error, 1)
	go func() { saved <- savestate.ManagedSave(d.ctx(), g, scope.Daemon("a test"), savestate.SaveOptions{}) }()
	eventually(t, "the save", func() bool { return g.Job().Kind == domain.JobSave })
	go func() {
		undefined <- guest.Undefine(d.ctx(), g, scope.Daemon("a test"), guest.UndefineOptions{ManagedSave: true})
	}()
	read()
	if err := <-saved; err == nil {
		t.Error("a save to something other than a file succeeds")
	}
	ok(t, <-undefined)
	if !gone(guest.ManagedSavePath(g)) {
		t.Error("the image is left")
	}
}

// Promise: F5
func TestAdoption_StuckGuest(t *testing.T) {
	d := newDaemon(t)
	stuck, healthy := d.define(small("stuck")), d.define(small("healthy"))
	ok(t, launch.Start(d.ctx(), stuck, scope.Daemon("a test"), launch.StartOptions{}))
	ok(t, launch.Start(d.ctx(), healthy, scope.Daemon("a test"), launch.StartOptions{}))
	pid := d.pid("stuck")
	d.reopen(func() { ok(t, syscall.Kill(pid, syscall.SIGSTOP)) })
	stuck, healthy = d.again(stuck), d.again(healthy)
	d.want(healthy, domain.Running, domain.ReasonBooted)
	ok(t, guest.Suspend(d.ctx(), healthy, scope.Daemon("a test")))
	d.want(stuck, domain.Running, domain.ReasonBooted)
	refused(t, guest.Suspend(d.ctx(), stuck, scope.Daemon("a test")), fault.Unresponsive, "was lost")
	ok(t, syscall.Kill(pid, syscall.SIGCONT))
	eventually(t, "the guest that went on can be suspended", func() bool { return guest.Suspend(d.ctx(), stuck, scope.Daemon("a test")) == nil })
}

// A host that goes down during a save loses the run directory's record of the image. The next daemon removes the
// partial image, and no other file that may be at that path by then.
// Promise: F29
func TestOpen_IncompleteImageOfEarlierBoot(t *testing.T) {
	d := newDaemon(t)
	d.boot = "first"
	d.reopen(func() {})
	kind := store.Kind{Name: "image", Version: 1}
	notes := map[string]map[string]any{}
	paths := map[string]string{}
	for _, name := range []string{"left", "replaced"} {
		g := d.define(small(name))
		paths[g.UUID] = filepath.Join(d.dir, name)
		ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
		pid := d.pid(name)
		ok(t, syscall.Kill(pid, syscall.SIGSTOP)) // the save waits for it
		saved := make(chan error, 1)
		go func() {
			saved <- savestate.Save(d.ctx(), g, scope.Daemon("a test"), paths[g.UUID], savestate.SaveOptions{})
		}()
		note := map[string]any{}
		eventually(t, "the image that is begun is noted", func() bool { return d.store.Get(kind, g.UUID, &note) == nil })
		ok(t, syscall.Kill(pid, syscall.SIGCONT))
		ok(t, <-saved)
		if err := d.store.Get(kind, g.UUID, &map[string]any{}); !fault.Is(err, fault.NotFound) {
			t.Errorf("the note of an image that is complete: %v", err)
		}
		notes[g.UUID] = note
	}
	replaced := filepath.Join(d.dir, "replaced.partial")
	d.boot = "second"
	d.reopen(func() {
		s, err := store.Open(filepath.Join(d.dir, "data"))
		ok(t, err)
		for uuid, note := range notes {
			ok(t, os.Rename(paths[uuid], paths[uuid]+".partial")) // as it lay there before
			ok(t, s.Put(kind, uuid, note))
		}
		ok(t, s.Close())
		ok(t, os.Rename(replaced, replaced+".old"))
		ok(t, os.WriteFile(replaced, []byte("somebody else's"), 0o600))
	})
	eventually(t, "the half image gone", func() bool { return gone(filepath.Join(d.dir, "left.partial")) })
	for uuid := range notes {
		eventually(t, "the note gone", func() bool { return fault.Is(d.store.Get(kind, uuid, &map[string]any{}), fault.NotFound) })
	}
	if gone(replaced) {
		t.Error("another's file is removed")
	}
}

// A daemon that was killed while it changed a medium has noted that the tray is open. The next one
// learns from QEMU whether it is, or the next medium would be left in an open tray.
func TestAdoption_LearnsWhetherATrayIsOpen(t *testing.T) {
	d := newDaemon(t)
	g := d.define(small("tray", `<disk type='file' device='cdrom'><target dev='sda' bus='sata'/></disk>`))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	d.reopen(func() {
		r := record(t, g)
		r["XML"] = strings.Replace(r["XML"].(string), "<target dev='sda' bus='sata'", "<target dev='sda' bus='sata' tray='open'", 1)
		writeRecord(t, g, r)
	})
	g = d.again(g)
	eventually(t, "the tray is closed", func() bool { return g.View().Active.Devices.Disks[0].Tray == "closed" })
}
