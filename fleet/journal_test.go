package fleet

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/mount/mounttest"
	"github.com/lodge-kvm/lodge/store"
	"github.com/lodge-kvm/lodge/volume"
)

// misplace puts another file in the place of the store's, so that it takes no changes until find.
func (h *herd) misplace() (find func()) {
	h.t.Helper()
	path := store.Path(filepath.Join(h.dir, "data"))
	text, err := os.ReadFile(path)
	ok(h.t, err)
	ok(h.t, os.Rename(path, path+".away"))
	ok(h.t, os.WriteFile(path, text, 0o600))
	return func() { h.t.Helper(); ok(h.t, os.Rename(path+".away", path)) }
}

// A tile whose note cannot be forgotten is not said to be made: the next daemon removes it.
func TestATileThatCannotBeNotedIsNotMade(t *testing.T) {
	h := newHerd(t)
	dir := h.withPool()
	docs, err := template(t, twoGuests).expand("lab", 1)
	ok(t, err)
	b := &building{fleet: h.Fleet}
	ok(t, h.begun(tileKind, docs.name, unfinished{Volumes: docs.names()}))
	ok(t, b.build(t.Context(), docs))
	find := h.misplace()
	if r := b.conclude(t.Context(), docs, nil); r == nil || r.Outcome != Failed {
		t.Errorf("its client is told %+v", r)
	}
	if err := h.tidy(t.Context()); err == nil || len(h.left()) != 1 {
		t.Errorf("nothing is left of it: %v", err)
	}
	find()
	h.tidied()
	h.wants("files", files(t, dir))
	h.wants("guests", h.chosen("all"))
}

// tidied has what is left tried again by a daemon that serves, until nothing is.
func (h *herd) tidied() {
	h.t.Helper()
	ctx, stop := context.WithCancelCause(h.t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		h.Tidy(ctx)
	}()
	for late := time.After(time.Minute); len(h.left()) > 0; {
		select {
		case <-late:
			h.t.Fatalf("there is left: %+v", h.left())
		case <-time.After(time.Millisecond):
		}
	}
	stop(nil)
	<-ended
}

// halfMade makes a tile but for the end of it, where its note is forgotten.
func (h *herd) halfMade(t *testing.T) *tileDocuments {
	t.Helper()
	return h.halfMadeOf(t, twoGuests)
}

func (h *herd) halfMadeOf(t *testing.T, doc string) *tileDocuments {
	t.Helper()
	docs, err := template(t, doc).expand("lab", 1)
	ok(t, err)
	ok(t, h.begun(tileKind, docs.name, unfinished{Volumes: docs.names()}))
	ok(t, (&building{fleet: h.Fleet}).build(t.Context(), docs))
	return docs
}

// What could not be removed, because its pool was away when the daemon began, is removed when that is
// there, and no tile or clone meanwhile whose making or removal is under way.
func TestWhatIsLeftIsTidiedUp(t *testing.T) {
	h := newHerd(t)
	dir := h.withPool()
	h.halfMade(t)
	p, err := h.pools.ByName("default")
	ok(t, err)
	ok(t, p.Stop(t.Context()))
	h.Recover(t.Context())
	h.wants("guests", h.chosen("all"), "lab-1-a", "lab-1-b")
	if err := h.tidy(t.Context()); err == nil {
		t.Error("a pool that is away holds nothing")
	}
	ok(t, p.Start(t.Context(), volume.NoBuild))
	h.making.RLock()
	if err := h.tidy(t.Context()); err == nil {
		t.Error("it is removed beside somebody who makes one")
	}
	h.making.RUnlock()
	h.tidied()
	h.wants("files", files(t, dir))
	h.wants("guests", h.chosen("all"))
}

// Somebody has come to use what was left of a tile or a clone: it stays, with its disks. A tile that
// was being removed is removed all the same.
func TestWhatIsLeftAndUsedStays(t *testing.T) {
	h := newHerd(t)
	dir := h.withPool()
	docs := h.halfMade(t)
	p, err := h.pools.ByName("default")
	ok(t, err)
	_, err = p.FillVolume(t.Context(), "one.raw", make([]byte, 1<<20))
	ok(t, err)
	h.define(strings.Replace(small("one"), "<serial type='pty'/>", "<disk type='volume' device='disk'><driver name='qemu' type='raw'/>"+
		"<source pool='default' volume='one.raw'/><target dev='vda' bus='virtio'/></disk>", 1))
	one, err := h.guests.ByName("one")
	ok(t, err)
	ok(t, h.begun(cloneKind, one.UUID(), unfinished{Volumes: []VolumeName{{Pool: "default", Name: "one.raw"}}}))
	before := files(t, dir)
	h.run(Request{Verb: Start, Options: Options{Paused: true}}, "lab-1-a", "one")
	h.Recover(t.Context())
	h.wants("files", files(t, dir), before...)
	h.wants("running", h.chosen("state=paused"), "lab-1-a", "one")
	h.wants("guests", h.chosen("all"), "lab-1-a", "lab-1-b", "one")
	for kind, key := range map[*store.Kind]string{&tileKind: docs.name, &cloneKind: one.UUID()} {
		var u unfinished
		if err := h.store.Get(*kind, key, &u); !fault.Is(err, fault.NotFound) {
			t.Errorf("the note of the %s is still there: %v", kind.Name, err)
		}
	}

	ok(t, h.begun(tileKind, docs.name, unfinished{Volumes: docs.names(), Removing: true}))
	h.Recover(t.Context())
	h.wants("files without the tile", files(t, dir), "one.raw")
	h.wants("guests without the tile", h.chosen("all"), "one")
}

// Nor is what was left removed when a guest of it has run: what was written by it is somebody's, who may have shut it
// down before all pools are there.
func TestWhatIsLeftAndWasUsedStays(t *testing.T) {
	for name, amid := range map[string]bool{"seen as it runs": true, "seen when it has ended": false} {
		t.Run(name, func(t *testing.T) {
			h := newHerd(t)
			dir := h.withPool()
			h.halfMade(t)
			before := files(t, dir)
			p, err := h.pools.ByName("default")
			ok(t, err)
			ok(t, p.Stop(t.Context()))
			h.Recover(t.Context())
			h.run(Request{Verb: Start, Options: Options{Paused: true}}, "lab-1-b") // which has its disks elsewhere
			if amid {
				ok(t, h.tidy(t.Context()))
			}
			h.run(Request{Verb: Destroy}, "lab-1-b")
			ok(t, p.Start(t.Context(), volume.NoBuild))
			h.tidied()
			h.wants("files", files(t, dir), before...)
			h.wants("guests", h.chosen("all"), "lab-1-a", "lab-1-b")
		})
	}
}

// What somebody has cloned of what was left has its disks below it: they stay for the clone, with what these lie above.
func TestWhatLiesBelowACloneOfWhatIsLeftStays(t *testing.T) {
	h := newHerd(t)
	dir := h.withPool()
	const base = "<volume pool='default'><name>{name}-{tile}.qcow2</name><capacity unit='MiB'>1</capacity><target><format type='qcow2'/></target>"
	h.halfMadeOf(t, strings.Replace(twoGuests, base, strings.Replace(base, ".qcow2", "-below.qcow2", 1)+"</volume>"+
		base+"<backingStore><path>"+dir+"/{name}-{tile}-below.qcow2</path><format type='qcow2'/></backingStore>", 1))
	p, err := h.pools.ByName("default")
	ok(t, err)
	ok(t, p.Stop(t.Context()))
	h.Recover(t.Context())
	ok(t, p.Start(t.Context(), volume.NoBuild))
	got, err := h.clone(CloneRequest{Source: "lab-1-a", Names: []string{"one"}, Thin: true})
	ok(t, err)
	h.wants("clone", got, "one done")
	h.tidied()
	h.wants("files", files(t, dir), "lab-1-below.qcow2", "lab-1.qcow2", "one-vda.qcow2")
	h.wants("guests", h.chosen("all"), "one")
}

// A daemon that begins serves others before it is done with all that is left, and goes on with that then.
func TestNobodyWaitsForAllThatIsLeft(t *testing.T) {
	h := newHerd(t)
	dir := h.withPool()
	h.halfMade(t)
	before := files(t, dir)
	release := mounttest.Hang(t, dir)
	late := errors.New("others are to be served")
	ctx, stop := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, late)
	defer stop()
	began := time.Now()
	h.Recover(ctx)
	if took := time.Since(began); took > 20*time.Second || len(h.left()) != 1 {
		t.Errorf("it was waited for for %v, and there is left: %+v", took, h.left())
	}
	release()
	h.wants("files", files(t, dir), before...)
	p, err := h.pools.ByName("default")
	ok(t, err)
	ok(t, p.Refresh(t.Context()))
	h.tidied()
	h.wants("files left", files(t, dir))
	h.wants("guests left", h.chosen("all"))
}

// What is taken back of a tile or a clone, and stays in part, is in mind with its note.
func TestWhatIsNotTakenBackIsLeft(t *testing.T) {
	h := newHerd(t)
	id := uuid.NewString()
	ok(t, h.begun(cloneKind, id, unfinished{}))
	failed := errors.New("a part is there")
	if err := h.takenBack(cloneKind, id, unfinished{}, failed); !errors.Is(err, failed) || !h.isLeft(cloneKind, id) {
		t.Errorf("%v, and it is in mind: %v", err, h.isLeft(cloneKind, id))
	}
	h.tidied()
}

// A tile whose removal could not be gone on with is not taken for a whole one.
func TestATileThatIsHalfRemovedIsNotThere(t *testing.T) {
	h := newHerd(t)
	h.withPool()
	tt := template(t, twoGuests)
	_, err := h.create(tt, 1, 1)
	ok(t, err)
	docs, err := tt.expand("lab", 1)
	ok(t, err)
	ok(t, h.begun(tileKind, docs.name, unfinished{Volumes: docs.names()}))
	h.leave(leftover{kind: tileKind, key: docs.name, unfinished: unfinished{Volumes: docs.names()}})
	ok(t, h.deleteVolume(t.Context(), docs.names()[0]))
	got, err := h.create(tt, 1, 1)
	h.wants("half removed", got, "lab/1 failed")
	refused(t, err, fault.Exists, "removal was cut off")
}

// A volume that nobody can see yet, because its pool is still being read, is not taken for gone.
func TestWhatIsLeftInAPoolThatAnswersLateIsNotForgotten(t *testing.T) {
	h := newHerd(t)
	dir := h.withPool()
	p, err := h.Fleet.pools.ByName("default")
	ok(t, err)
	_, err = p.FillVolume(t.Context(), "half", []byte("made"))
	ok(t, err)
	ok(t, h.begun(tileKind, "lab/1", unfinished{Volumes: []VolumeName{{Pool: "default", Name: "half"}}}))
	h.Fleet.pools.Close()
	release := mounttest.Hang(t, dir)
	h.Fleet.pools, err = volume.Open(volume.Options{Store: h.store, Events: h.events, Log: h.log})
	ok(t, err)
	t.Cleanup(h.Fleet.pools.Close)
	h.Recover(t.Context())
	release()
	ok(t, h.Fleet.pools.Settle(t.Context()))
	p, err = h.Fleet.pools.ByName("default")
	ok(t, err)
	if !p.View().Active() { // its file system has failed
		ok(t, p.Start(t.Context(), volume.NoBuild))
	}
	h.wants("files before", files(t, dir), "half")
	h.Recover(t.Context())
	h.wants("files after", files(t, dir))
}

// A note that could not be followed, for want of a pool, say, is not followed when what it names is
// another's.
func TestWhatIsMadeAnewIsNotRemovedByAnOldNote(t *testing.T) {
	h := newHerd(t)
	dir := h.withPool()
	p, err := h.pools.ByName("default")
	ok(t, err)
	h.define(small("golden"))
	one := VolumeName{Pool: "default", Name: "one-seed.iso"}
	ok(t, h.begun(cloneKind, uuid.NewString(), unfinished{Volumes: []VolumeName{one, {Pool: "default", Name: "other"}}}))
	ok(t, h.begun(tileKind, "lab/1", unfinished{Volumes: []VolumeName{{Pool: "default", Name: "lab-1.qcow2"}}}))
	ok(t, p.Stop(t.Context()))
	h.Recover(t.Context())
	ok(t, p.Start(t.Context(), volume.NoBuild))
	got, err := h.clone(CloneRequest{Source: "golden", Names: []string{"one"}, Seed: &Seed{}})
	ok(t, err)
	h.wants("clone", got, "one done")
	h.run(Request{Verb: Undefine}, "one") // nobody has the volume now, and it stays
	_, err = h.create(template(t, twoGuests), 1, 1)
	ok(t, err)
	before := files(t, dir)
	if !slices.Contains(before, one.Name) {
		t.Fatalf("there are %v", before)
	}
	h.Recover(t.Context())
	h.wants("files", files(t, dir), before...)

	// Nor where it was made in another way, once a guest has it.
	_, err = p.FillVolume(t.Context(), "other", []byte("another's"))
	ok(t, err)
	h.define(strings.Replace(small("another"), "<serial type='pty'/>", "<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='"+
		filepath.Join(dir, "other")+"'/><target dev='vda' bus='virtio'/></disk>", 1))
	ok(t, h.begun(cloneKind, uuid.NewString(), unfinished{Volumes: []VolumeName{{Pool: "default", Name: "other"}}}))
	before = files(t, dir)
	h.Recover(t.Context())
	h.wants("files", files(t, dir), before...)
}
