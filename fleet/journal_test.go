package fleet

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

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
	ok(t, h.begun(tileKind, docs.name, docs.names()))
	ok(t, b.build(t.Context(), docs))
	find := h.misplace()
	if r := b.conclude(t.Context(), docs, nil); r == nil || r.Outcome != Failed {
		t.Errorf("its client is told %+v", r)
	}
	find()
	h.Recover(t.Context())
	h.wants("files", files(t, dir))
	h.wants("guests", h.chosen("all"))
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
	ok(t, h.begun(tileKind, docs.name, docs.names()))
	h.leave(tileKind, docs.name, docs.names())
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
	ok(t, h.begun(tileKind, "lab/1", []VolumeName{{Pool: "default", Name: "half"}}))
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
	ok(t, h.begun(cloneKind, uuid.NewString(), []VolumeName{one, {Pool: "default", Name: "other"}}))
	ok(t, h.begun(tileKind, "lab/1", []VolumeName{{Pool: "default", Name: "lab-1.qcow2"}}))
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
	ok(t, h.begun(cloneKind, uuid.NewString(), []VolumeName{{Pool: "default", Name: "other"}}))
	before = files(t, dir)
	h.Recover(t.Context())
	h.wants("files", files(t, dir), before...)
}
