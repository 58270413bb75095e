package fleet

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

const oneGuest = `<tile>
  <volume pool='default'><name>{name}-{tile}.raw</name><capacity unit='MiB'>1</capacity></volume>
  <domain type='qemu'><name>{name}-{tile}</name><memory unit='MiB'>64</memory><vcpu>1</vcpu><os><type arch='x86_64' machine='q35'>hvm</type></os></domain>
</tile>`

// Promise: F36
func TestTiles_OneChangeAtATime(t *testing.T) {
	h := newHerd(t)
	dir := h.withPool()
	leave, err := h.lockTile("lab/1")
	ok(t, err)
	got, err := h.create(template(t, oneGuest), 1, 1)
	refused(t, err, fault.Busy, "by another call")
	h.wants("create", got, "lab/1 failed")
	h.wants("files", files(t, dir))
	leave()
	got, err = h.create(template(t, oneGuest), 1, 1)
	ok(t, err)
	h.wants("create", got, "lab/1 done")

	// Nor while any number of calls clone one of its guests: thin clones would lose their backing files.
	g, err := h.guests.ByName("lab-1")
	ok(t, err)
	leave, err = h.lockTile("lab/1")
	ok(t, err)
	_, err = h.clone(CloneRequest{Source: "lab-1", Names: []string{"one"}, Thin: true})
	refused(t, err, fault.Busy, "by another call")
	leave()
	leave, err = h.shareTile(h.MemberOf(g))
	ok(t, err)
	_, err = h.clone(CloneRequest{Source: "lab-1", Names: []string{"one"}, Thin: true})
	ok(t, err)
	_, err = h.remove("lab/1")
	refused(t, err, fault.Busy, "is being cloned")
	leave()
	_, err = h.remove("lab/1")
	ok(t, err)
	h.wants("guests", h.chosen("all"), "one")
}

// A call that removes many tiles removes the second tile of a name completely, if the first was removed and
// made again before its turn. Its guests do not stay without their volumes.
//
// Promise: F36
func TestRemoveTiles_TileMadeAgainBeforeTurn(t *testing.T) {
	h := newHerd(t)
	dir := h.withPool()
	tt := template(t, oneGuest)
	const last = "lab/9"
	_, err := h.create(tt, 1, tilesAtOnce+1)
	ok(t, err)
	anew := false
	_, err = h.RemoveTiles(t.Context(), scope.Daemon("a test"), "lab", false, func(r Result) {
		ok(t, r.Error)
		if anew {
			return
		}
		anew = true
		_, err := h.remove(last)
		ok(t, err)
		_, err = h.create(tt, tilesAtOnce+1, 1)
		ok(t, err)
	})
	ok(t, err)
	h.wants("files", files(t, dir))
	h.wants("guests", h.chosen("all"))
}

// A volume that another guest starts to use while the tile's guests are ended stays, and so does that guest's
// disk.
//
// Promise: F36
func TestRemoveTiles_VolumeTakenMeanwhile(t *testing.T) {
	h := newHerd(t)
	dir := h.withPool()
	_, err := h.create(template(t, twoGuests), 1, 1)
	ok(t, err)
	h.run(Request{Verb: Start, Options: Options{Paused: true}}, "lab-1-a")
	last, err := h.guests.ByName("lab-1-b")
	ok(t, err)
	busy, goOn := make(chan struct{}), make(chan struct{})
	over := make(chan error, 1)
	go func() { // its loop is blocked, also for the call that ends it
		over <- guest.ChangeMetadata(t.Context(), last, scope.Daemon("a test"), guest.Title, func(*domain.Definition) (*string, error) {
			close(busy)
			<-goOn
			return nil, nil
		}, "", "", machine.Affect{Config: true})
	}()
	<-busy
	var got []string
	var failed error
	removed := make(chan struct{})
	go func() {
		defer close(removed)
		got, failed = h.remove("lab/1")
	}()
	for tick := time.NewTicker(time.Millisecond); h.view("lab-1-a").State.Active(); <-tick.C {
		ok(t, t.Context().Err())
	}
	h.define(strings.Replace(small("stranger"), "<serial type='pty'/>", "<disk type='volume' device='disk'><driver name='qemu' type='qcow2'/>"+
		"<source pool='default' volume='lab-1.qcow2'/><target dev='vda' bus='virtio'/></disk>", 1))
	close(goOn)
	ok(t, <-over)
	<-removed
	refused(t, failed, fault.WrongState, `domain "stranger"`)
	h.wants("remove", got, "lab/1 failed")
	h.wants("files", files(t, dir), "lab-1-top.qcow2", "lab-1.qcow2")
	h.run(Request{Verb: Undefine}, "stranger")
	_, err = h.remove("lab/1")
	ok(t, err)
	h.wants("files left", files(t, dir))
}

// asking is a context that closes came when a call waits on it.
type asking struct {
	context.Context
	looked atomic.Int32
	came   chan struct{}
}

func (a *asking) Done() <-chan struct{} {
	if a.looked.Add(1) == 2 {
		close(a.came)
	}
	return a.Context.Done()
}

// Labels are changed as they are at that moment, after other changes: a label that one client removes does not
// come back by another client's pending change.
//
// Promise: F36
func TestSet_ConcurrentLabelChanges(t *testing.T) {
	h := newHerd(t)
	doc := func(label string) string {
		return strings.Replace(small("marked"), "<devices>", marked(0, label)+"<devices>", 1)
	}
	h.define(doc(`<x:label name='team' value='a'/>`))
	h.run(Request{Verb: Start, Options: Options{Paused: true}}, "marked")
	ok(t, syscall.Kill(h.pid("marked"), syscall.SIGSTOP))
	g, err := h.guests.ByName("marked")
	ok(t, err)
	over := make(chan error, 2)
	go func() { over <- guest.InjectNMI(t.Context(), g, scope.Daemon("a test")) }() // it blocks the guest's loop
	for tick := time.NewTicker(time.Millisecond); g.Job().Kind == domain.JobNone; <-tick.C {
		ok(t, t.Context().Err())
	}
	m := h.MemberOf(g)
	want, err := parseSettings(map[string]string{"label.note": "b"})
	ok(t, err)
	asked := &asking{Context: t.Context(), came: make(chan struct{})}
	go func() { over <- h.applySettings(asked, scope.Daemon("a test"), g, want, nil).Error }()
	<-asked.came
	h.define(strings.Replace(doc(`<x:label name='team' value='b'/>`), "<name>", "<uuid>"+m.View.UUID+"</uuid><name>", 1))
	ok(t, syscall.Kill(h.pid("marked"), syscall.SIGCONT))
	ok(t, <-over)
	ok(t, <-over)
	if l := h.MemberOf(g).Labels; l["team"] != "b" || l["note"] != "b" || len(l) != 2 {
		t.Errorf("its labels are %v", l)
	}
}

// A crashed guest with a pending restart does not count as off: after a shutdown or destroy it does not start
// later.
//
// Promise: F36
func TestShutdown_PendingRestart(t *testing.T) {
	h := newHerd(t)
	for _, verb := range []Verb{Shutdown, Destroy} {
		name := "crashed-" + string(verb)
		disk := filepath.Join(h.dir, name)
		ok(t, os.WriteFile(disk, make([]byte, 1<<20), 0o600))
		h.define(strings.Replace(small(name), "<devices>", "<on_crash>restart</on_crash><devices><disk type='file' device='disk'>"+
			"<driver name='qemu' type='raw'/><source file='"+disk+"'/><target dev='vda' bus='virtio'/></disk>", 1))
		h.run(Request{Verb: Start}, name)
		ok(t, os.Remove(disk)) // the restart fails at first
		ok(t, syscall.Kill(h.pid(name), syscall.SIGKILL))
		g, err := h.guests.ByName(name)
		ok(t, err)
		for tick := time.NewTicker(time.Millisecond); !g.View().StartPending || g.Job().Kind != domain.JobNone; <-tick.C {
			ok(t, t.Context().Err())
		}
		h.wants(string(verb), h.run(Request{Verb: verb}, name), name+" done 1")
		if v := h.view(name); v.StartPending || v.State.Active() {
			t.Errorf("after %s it is %s, and is to be started again: %v", verb, v.State, v.StartPending)
		}
		h.wants("again", h.run(Request{Verb: verb}, name), name+" unchanged 1")
	}
}
