package guest_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/event"
	"github.com/lodge-kvm/lodge/internal/word/scope"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

// The liar: a program of ours that the daemon runs in QEMU's place, and that speaks
// QEMU's protocol well enough to be started. A test tells it through the guest's
// own monitor how to behave from then on.

// liarName is the name under which the test's own binary acts as that program.
const liarName = "liar"

// liar is one such process. It serves one connection at a time, as QEMU does.
type liar struct {
	listener net.Listener
	manner   string // how it behaves; empty: well
	at       string // the command to hang up at
	nodes    map[string]bool
	drive    string // the node in its one drive
	id       string // the drive's
}

var (
	monitorFD = regexp.MustCompile(`id=charmonitor,fd=(\d+)`)
	deviceID  = regexp.MustCompile(`"id":"([^"]+)"`)
)

func playLiar() {
	fd, err := strconv.Atoi(monitorFD.FindStringSubmatch(strings.Join(os.Args, " "))[1])
	if err == nil {
		l := &liar{nodes: map[string]bool{}}
		if slices.Contains(os.Args, "-incoming") { // the guest's name chooses the fault at the resume
			l.at = "cont"
			for _, manner := range []string{"drop before", "drop after", "hang"} {
				if strings.Contains(strings.Join(os.Args, " "), "guest="+strings.ReplaceAll(manner, " ", "-")) {
					l.manner = manner
				}
			}
		}
		if l.listener, err = net.FileListener(os.NewFile(uintptr(fd), "monitor")); err == nil {
			l.serve()
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func (l *liar) serve() {
	for {
		conn, err := l.listener.Accept()
		if err != nil {
			select {} // it lives on without a monitor
		}
		l.talk(conn)
		_ = conn.Close()
	}
}

// order is an instruction to it, by QEMU's commands or by the test's.
type order struct {
	Execute   string
	ID        json.RawMessage
	Arguments struct {
		Manner, At string
		ID         string
		Node       string `json:"node-name"`
	}
}

func (l *liar) talk(conn net.Conn) {
	say := func(format string, args ...any) { fmt.Fprintf(conn, format+"\n", args...) }
	say(`{"QMP":{"version":{"qemu":{"major":7,"minor":2,"micro":0},"package":""},"capabilities":[]}}`)
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		var o order
		if json.Unmarshal(lines.Bytes(), &o) != nil {
			continue
		}
		if o.Execute == "lie" {
			say(`{"return":{},"id":%s}`, o.ID)
			l.manner, l.at = o.Arguments.Manner, o.Arguments.At
			if l.begins(say) {
				return
			}
			continue
		}
		if l.manner == "hang" && o.Execute == l.at {
			continue
		}
		drops := strings.HasPrefix(l.manner, "drop") && o.Execute == l.at
		if drops && l.manner == "drop before" {
			l.manner = ""
			return
		}
		if l.manner == "let go" && o.Execute == l.at { // as its guest does until its processors stop
			say(`{"event":"DEVICE_DELETED","data":{"device":"virtio-disk1"},"timestamp":{"seconds":1,"microseconds":1}}`)
		}
		answer := l.obey(&o, say)
		if drops {
			l.manner = ""
			return
		}
		switch l.manner {
		case "mute":
		case "nonsense":
			say("}} nonsense")
			l.manner = ""
		case "wrong ids":
			say(answer+`}`, "9"+string(o.ID))
		case "refuse":
			say(`{"error":{"class":"GenericError","desc":"I do not want to"},"id":%s}`, o.ID)
		default:
			say(answer+`}`, o.ID)
		}
	}
}

// begins does what a manner begins with, and tells whether that was the end of the
// connection.
func (l *liar) begins(say func(string, ...any)) bool {
	switch l.manner {
	case "flood":
		for range 3000 {
			say(`{"event":"STOP","timestamp":{"seconds":1,"microseconds":1}}`)
			say(`{"event":"RESUME","timestamp":{"seconds":1,"microseconds":1}}`)
			say(`{"event":"NIC_RX_FILTER_CHANGED","data":{"name":"x","path":"y"},"timestamp":{"seconds":-1,"microseconds":1}}`)
		}
	case "megabytes":
		long := strings.Repeat("x", 2<<20)
		for range 2 {
			say(`{"event":"DEVICE_DELETED","data":{"device":"%s"},"timestamp":{"seconds":1,"microseconds":1}}`, long)
			say(`{"return":{"%s":1},"id":77777}`, long)
		}
	case "long words":
		long := strings.Repeat("x", 1<<20)
		say(`{"event":"WATCHDOG","data":{"action":"%s"},"timestamp":{"seconds":1,"microseconds":1}}`, long)
		say(`{"event":"DEVICE_UNPLUG_GUEST_ERROR","data":{"device":"%s"},"timestamp":{"seconds":1,"microseconds":1}}`, long)
		say(`{"event":"VNC_CONNECTED","data":{"server":{"host":"%[1]s","service":"%[1]s","family":"%[1]s","auth":"%[1]s"},`+
			`"client":{"host":"%[1]s","service":"%[1]s","family":"%[1]s"}},"timestamp":{"seconds":1,"microseconds":1}}`, long)
		say(`{"event":"RESET","data":{"guest":true,"reason":"guest-reset"},"timestamp":{"seconds":1,"microseconds":1}}`)
	case "again and again":
		say(`{"event":"DEVICE_DELETED","data":{"device":"virtio-disk1"},"timestamp":{"seconds":1,"microseconds":1}}`)
		for range 300 {
			say(`{"event":"BLOCK_IO_ERROR","data":{"device":"virtio-disk0","operation":"write","action":"stop","nospace":true,"reason":"x"},"timestamp":{"seconds":1,"microseconds":1}}`)
			say(`{"event":"RESUME","timestamp":{"seconds":1,"microseconds":1}}`)
		}
		say(`{"event":"RESET","data":{"guest":true,"reason":"guest-reset"},"timestamp":{"seconds":1,"microseconds":1}}`)
	case "hang up":
		_ = l.listener.Close()
		return true
	}
	return false
}

// obey does what QEMU would, and gives the answer but for its end.
func (l *liar) obey(o *order, say func(string, ...any)) string {
	answer := `{}`
	refuse := func(why string) string { return `{"error":{"class":"GenericError","desc":"` + why + `"},"id":%s` }
	switch o.Execute {
	case "query-migrate":
		answer = `{"status":"completed"}`
	case "query-status":
		answer = `{"status":"running","running":true,"singlestep":false}`
	case "stop", "cont":
		say(`{"event":"%s","timestamp":{"seconds":1,"microseconds":1}}`, map[string]string{"stop": "STOP", "cont": "RESUME"}[o.Execute])
	case "blockdev-add":
		l.nodes[o.Arguments.Node] = true
	case "blockdev-del":
		if l.drive == o.Arguments.Node || !l.nodes[o.Arguments.Node] {
			return refuse("it is not there, or in use")
		}
		delete(l.nodes, o.Arguments.Node)
	case "blockdev-open-tray":
		l.id = o.Arguments.ID
	case "blockdev-remove-medium":
		l.drive = ""
	case "blockdev-insert-medium":
		if l.drive != "" {
			return refuse("there is a medium")
		}
		l.drive = o.Arguments.Node
	case "query-block":
		inserted := ""
		if l.drive != "" {
			inserted = fmt.Sprintf(`,"inserted":{"file":"f","node-name":%q,"image":{"filename":"f","virtual-size":1}}`, l.drive)
		}
		answer = fmt.Sprintf(`[{"device":"","qdev":%q,"locked":false,"type":"unknown","tray_open":false%s}]`, l.id, inserted)
	case "query-named-block-nodes":
		var all []string
		for n := range l.nodes {
			all = append(all, fmt.Sprintf(`{"node-name":%q}`, n))
		}
		answer = `[` + strings.Join(all, ",") + `]`
	case "query-cpus-fast", "query-iothreads":
		if answer = `[]`; l.manner == "threads of others" {
			answer = fmt.Sprintf(`[{"cpu-index":0,"id":"iothread1","thread-id":%s}]`, l.at)
		}
	case "query-chardev", "query-fdsets", "query-hotpluggable-cpus", "query-blockstats":
		answer = `[]`
	case "qom-list": // the arguments that it was started with
		var all []string
		for _, m := range deviceID.FindAllStringSubmatch(strings.Join(os.Args, " "), -1) {
			all = append(all, fmt.Sprintf(`{"name":%q,"type":"x"}`, m[1]))
		}
		answer = `[` + strings.Join(all, ",") + `]`
	}
	return `{"return":` + answer + `,"id":%s`
}

// liar returns the definition of a guest with that QEMU.
func (d *daemon) liar(program, name string, devices ...string) *guest.Guest {
	d.t.Helper()
	doc := fmt.Sprintf(`<domain type='qemu'><name>%s</name><memory unit='MiB'>64</memory><vcpu>1</vcpu>
		<os><type arch='x86_64' machine='q35'>hvm</type></os><devices><emulator>%s</emulator>%s</devices></domain>`, name, program, strings.Join(devices, ""))
	g := d.define(doc)
	ok(d.t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	return g
}

// lies has a liar behave in a manner from now on.
func lies(t *testing.T, g *guest.Guest, manner, at string) {
	t.Helper()
	_, err := g.MonitorCommand(t.Context(), scope.Daemon("a test"), fmt.Sprintf(`{"execute":"lie","arguments":{"manner":%q,"at":%q}}`, manner, at), false)
	ok(t, err)
}

// Whatever a QEMU says on its monitor, or does not say, the daemon serves all others
// meanwhile; the guest is shown, comes back where its QEMU does, and ends with all
// that it holds when it is destroyed. The next daemon is no worse off.
// Promise: F4
func TestLiar_HarmsNoOtherGuest(t *testing.T) {
	d := newDaemon(t)
	program := copyOfTest(t, d.dir, liarName)
	well := d.liar(program, "well")
	others := func() {
		t.Helper()
		promptly(t, "work on another guest", func() {
			ok(t, guest.Suspend(d.ctx(), well, scope.Daemon("a test")))
			d.settle(well, domain.Paused)
			ok(t, guest.Resume(d.ctx(), well, scope.Daemon("a test")))
			d.settle(well, domain.Running)
		})
	}
	for manner, comesBack := range map[string]bool{
		"flood": true, "megabytes": true, "nonsense": true,
		"wrong ids": false, "mute": false, "refuse": false, "hang up": false,
	} {
		g := d.liar(program, strings.ReplaceAll(manner, " ", "-"))
		lies(t, g, manner, "")
		asked := make(chan error, 1)
		go func() {
			ctx, stop := context.WithTimeout(d.ctx(), 2*time.Second)
			defer stop()
			asked <- guest.Suspend(ctx, g, scope.Daemon("a test"))
		}()
		others()
		err := <-asked
		switch {
		case comesBack:
			eventually(t, manner+": it can be paused again", func() bool {
				return g.View().StuckSince.IsZero() && guest.Suspend(d.ctx(), g, scope.Daemon("a test")) == nil && g.View().State == domain.Paused
			})
		case err == nil:
			t.Errorf("%s: a suspend that QEMU did not confirm succeeds", manner)
		}
		if v := g.View(); v.State != domain.Running && v.State != domain.Paused {
			t.Errorf("%s: it is %s", manner, v.State)
		}
	}
	promptly(t, "the next daemon", func() { d.reopen(func() {}) })
	well, err := d.ByName("well")
	ok(t, err)
	others()
	for _, g := range d.All() {
		promptly(t, "destroying "+g.Name(), func() { ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false)) })
		if !gone(guest.RunDir(g)) {
			t.Errorf("%s: its run directory is left", g.Name())
		}
	}
}

// The monitor is lost during a change of medium. The guest's definition must show the medium that its drive has,
// and nothing else may be left.
// Promise: F6
func TestMedia_InterruptedAtEachStep(t *testing.T) {
	d := newDaemon(t)
	path := filepath.Join(d.dir, "medium.iso")
	ok(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
	g := d.liar(copyOfTest(t, d.dir, liarName), "changer", `<disk type='file' device='cdrom'><target dev='sda' bus='sata'/></disk>`)
	drive := func(source string) string {
		return `<disk type='file' device='cdrom'><driver name='qemu' type='raw'/>` + source + `<target dev='sda' bus='sata'/></disk>`
	}
	full, both := drive(`<source file='`+path+`'/>`), machine.Affect{Live: true, Config: true}
	for _, cut := range []struct {
		manner, at string
		changed    bool
	}{
		{"drop after", "blockdev-add", false},
		{"drop before", "blockdev-insert-medium", false},
		{"drop after", "blockdev-insert-medium", true},
		{"drop after", "blockdev-close-tray", true},
	} {
		what := cut.manner + " " + cut.at
		lies(t, g, cut.manner, cut.at)
		if err := hotplug.Update(d.ctx(), g, scope.Daemon("a test"), full, both, false); err == nil {
			t.Fatalf("%s: the change succeeds", what)
		}
		eventually(t, what+": the change ended", func() bool {
			return g.View().StuckSince.IsZero() && len(operations(t, g)) == 0
		})
		nodes, err := g.MonitorCommand(d.ctx(), scope.Daemon("a test"), `{"execute":"query-named-block-nodes"}`, false)
		ok(t, err)
		if n := strings.Count(nodes, "node-name"); n > 1 || (n == 1) != cut.changed {
			t.Errorf("%s: QEMU has %s", what, nodes)
		}
		v := g.View()
		for name, def := range map[string]*domain.Definition{"running": v.Active, "stored": v.Inactive} {
			if is := def.Devices.Disks[0].Source.Path() == path; is != cut.changed {
				t.Errorf("%s: the %s definition has the new medium: %v", what, name, is)
			}
		}
		if v.Inactive.Devices.Disks[0].Source != nil && v.Inactive.Devices.Disks[0].Source.Index != 0 {
			t.Errorf("%s: the stored drive has a node of the running guest", what)
		}
		ok(t, hotplug.Update(d.ctx(), g, scope.Daemon("a test"), drive(""), both, false))
		if disk := g.View().Active.Devices.Disks[0]; disk.Source != (*device.DiskSource)(nil) {
			t.Errorf("%s: the drive still has %v", what, disk.Source)
		}
	}
}

// The monitor is lost just as a guest is let run that came from its managed save image, and the start
// fails: where the guest ran it does not go on from the image once more, on disks that have changed.
// Promise: F31
func TestManagedSave_ConsumedByLateFailure(t *testing.T) {
	d := newDaemon(t)
	program := copyOfTest(t, d.dir, liarName)
	for name, ran := range map[string]bool{"drop-after": true, "drop-before": false} {
		g := d.liar(program, name)
		ok(t, savestate.ManagedSave(d.ctx(), g, scope.Daemon("a test"), savestate.SaveOptions{}))
		d.settle(g, domain.ShutOff)
		if err := launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}); err == nil || strings.Contains(err.Error(), "it had run before that") != ran {
			t.Errorf("%s: its client is told: %v", name, err)
		}
		d.settle(g, domain.ShutOff)
		if g.View().ManagedSave == ran || gone(guest.ManagedSavePath(g)) != ran {
			t.Errorf("%s: an image is there: %v, and it counts: %v", name, !gone(guest.ManagedSavePath(g)), g.View().ManagedSave)
		}
	}
}

// The store says that a managed save image is used up before the guest runs: a host that goes down just
// then takes along all else that tells so. Where the guest does not come to run it is not.
// Promise: F31
func TestManagedSave_ConsumedBeforeResume(t *testing.T) {
	d := newDaemon(t)
	g := d.liar(copyOfTest(t, d.dir, liarName), "hang")
	ok(t, savestate.ManagedSave(d.ctx(), g, scope.Daemon("a test"), savestate.SaveOptions{}))
	d.settle(g, domain.ShutOff)
	kept := func() bool {
		var r struct{ ManagedSave bool }
		ok(t, d.store.Get(store.Kind{Name: "domain", Version: 1}, g.UUID, &r))
		return r.ManagedSave
	}
	if !kept() {
		t.Fatal("the store does not say that it is saved")
	}
	started := make(chan error, 1)
	go func() {
		started <- launch.Start(context.WithoutCancel(d.ctx()), g, scope.Daemon("a test"), launch.StartOptions{})
	}()
	eventually(t, "the image is used up", func() bool { return !kept() })
	ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
	if err := <-started; err == nil {
		t.Error("it runs")
	}
	if !kept() || !g.View().ManagedSave || gone(guest.ManagedSavePath(g)) {
		t.Errorf("the image is lost: the store has it: %v, it is said to be there: %v, and it is: %v", kept(), g.View().ManagedSave, !gone(guest.ManagedSavePath(g)))
	}
}

// A guest that lets go of a device when its save has begun, and before its processors stop, is restored
// without that: the state in the image has none.
// Promise: F31
func TestSave_DeviceReleasedDuringSave(t *testing.T) {
	d := newDaemon(t)
	var disks []string
	for _, name := range []string{"vda", "vdb"} {
		path := filepath.Join(d.dir, name)
		ok(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
		disks = append(disks, "<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='"+path+"'/><target dev='"+name+"' bus='virtio'/></disk>")
	}
	g := d.liar(copyOfTest(t, d.dir, liarName), "parting", disks...)
	lies(t, g, "let go", "stop")
	ok(t, savestate.ManagedSave(d.ctx(), g, scope.Daemon("a test"), savestate.SaveOptions{}))
	saved, err := savestate.ManagedSavedXML(d.ctx(), g, scope.Daemon("a test"), false)
	ok(t, err)
	if !strings.Contains(saved, "'vda'") || strings.Contains(saved, "'vdb'") {
		t.Errorf("its state has the first disk alone, and the definition that goes with it is\n%s", saved)
	}
}

// No word of a QEMU's, however long, is kept for every client.
// Promise: F4
func TestLiar_LongTextCut(t *testing.T) {
	d := newDaemon(t)
	g := d.liar(copyOfTest(t, d.dir, liarName), "wordy")
	events := d.events.Reader()
	lies(t, g, "long words", "")
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	for {
		e, _, err := events.Next(ctx)
		ok(t, err)
		if size := len(fmt.Sprintf("%+v", e.Payload)); size > 8<<10 {
			t.Errorf("a %T of %d bytes is kept", e.Payload, size)
		}
		if _, last := e.Payload.(event.DomainReboot); last {
			return
		}
	}
}

// A repeated message of QEMU is handled and logged once. It must neither fill the log, which a journal limits to
// some lines a second, nor start thousands of cleanups for one device.
// Promise: F4
func TestLiar_RepeatedEvents(t *testing.T) {
	d := newDaemon(t)
	d.heard = make(chan string, 10_000)
	d.reopen(func() {})
	var disks []string
	for _, name := range []string{"vda", "vdb"} {
		path := filepath.Join(d.dir, name)
		ok(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
		disks = append(disks, strings.Replace(diskOf("raw", path, ""), "vda'", name+"'", 1))
	}
	g := d.liar(copyOfTest(t, d.dir, liarName), "insistent", disks...)
	events := d.events.Reader()
	lies(t, g, "again and again", "")
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	for last := false; !last; {
		e, _, err := events.Next(ctx)
		ok(t, err)
		_, last = e.Payload.(event.DomainReboot)
	}
	eventually(t, "it is owed that the disk is cleaned up behind", func() bool { return guest.Owed(g) == 1 })
	said := map[string]int{}
	for len(d.heard) > 0 {
		line := <-d.heard
		for _, what := range []string{"is full", "is tried again"} {
			if strings.Contains(line, what) {
				said[what]++
			}
		}
	}
	for _, what := range []string{"is full", "is tried again"} {
		if said[what] != 1 {
			t.Errorf("%d lines of the log have %q", said[what], what)
		}
	}
}

// A QEMU that calls another process's thread its own gains nothing over it.
// Promise: I1
func TestLiar_ForeignThreadsIgnored(t *testing.T) {
	d := newDaemon(t)
	g := d.liar(copyOfTest(t, d.dir, liarName), "thief")
	other := os.Getpid() // the daemon's first thread
	group := func() string {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/cgroup", other, other))
		ok(t, err)
		return string(text)
	}
	before, err := kernel.Affinity(other)
	ok(t, err)
	t.Cleanup(func() { ok(t, kernel.SetAffinity(other, before)) })
	groups := group()
	lies(t, g, "threads of others", strconv.Itoa(other))
	if before.Len() > 1 {
		if err := hotplug.PinVCPU(d.ctx(), g, scope.Daemon("a test"), 0, topology.CPUs(0), machine.Affect{Live: true}); err == nil {
			t.Error("it is pinned")
		}
	}
	_ = hotplug.Tune(d.ctx(), g, scope.Daemon("a test"), machine.Affect{Live: true}, func(def *domain.Definition) error { // whatever it says
		def.Tune.Period, def.Tune.Quota = 100_000, 1000
		def.Tune.IOThreadPeriod, def.Tune.IOThreadQuota = 100_000, 1000
		return nil
	})
	if after, err := kernel.Affinity(other); err != nil || !after.Equal(before) {
		t.Errorf("the daemon's thread may run on %s, %v", after, err)
	}
	if now := group(); now != groups {
		t.Errorf("the daemon's thread was moved:\n%s", now)
	}
}
