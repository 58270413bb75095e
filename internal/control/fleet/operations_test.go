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

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/host/volume"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard/mounttest"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

func TestKinds_NameTheirSteps(t *testing.T) {
	ok(t, tileCreateKind.Check(tileCreateKind.Bind(nil)))
	ok(t, tileRemoveKind.Check(tileRemoveKind.Bind(nil)))
	ok(t, cloneKind.Check(cloneKind.Bind(nil)))
	ok(t, templateKind.Check(templateKind.Bind(nil)))
}

// misplace replaces the store's file, so that writes fail until find is called.
func (h *herd) misplace() (find func()) {
	h.t.Helper()
	path := store.Path(filepath.Join(h.dir, "data"))
	text, err := os.ReadFile(path)
	ok(h.t, err)
	ok(h.t, os.Rename(path, path+".away"))
	ok(h.t, os.WriteFile(path, text, 0o600))
	return func() { h.t.Helper(); ok(h.t, os.Rename(path+".away", path)) }
}

// nextDaemon ends the fleet like a daemon that ends, and gives the herd the fleet of the next one.
func (h *herd) nextDaemon() {
	h.Close()
	h.Fleet = Open(Config{Guests: h.guests, Pools: h.pools, Events: h.events, Log: h.log, Images: h.images})
}

// begun begins an operation whose daemon ends before the first step.
func (h *herd) begun(kind string, w operation.Work, p *operationObjects) {
	h.t.Helper()
	_, err := h.begin(scope.Daemon("a test"), kind, w, p.objects())
	ok(h.t, err)
	h.nextDaemon()
}

// cutOff runs an operation except for its last step.
func (h *herd) cutOff(kind string, w operation.Work, p *operationObjects) {
	h.t.Helper()
	_, err := h.begin(scope.Daemon("a test"), kind, w, p.objects())
	ok(h.t, err)
	for _, s := range w.Steps() {
		ok(h.t, s.Do(h.t.Context()))
	}
	h.nextDaemon()
}

// halfMade makes a tile except for the removal of its record.
func (h *herd) halfMade(doc string) {
	h.t.Helper()
	w := newTileCreateOperation(h.Fleet, h.docs(doc))
	h.cutOff(tileCreateKind.Name, w, &w.operationObjects)
}

func (h *herd) docs(doc string) *tileDocuments {
	h.t.Helper()
	docs, err := template(h.t.(*testing.T), doc).expand("lab", 1)
	ok(h.t, err)
	return docs
}

// oldClone begins a clone with volumes in a daemon that ends.
func (h *herd) oldClone(guest string, volumes ...string) {
	h.t.Helper()
	w := &cloneOperation{operationObjects: operationObjects{fleet: h.Fleet, Guests: []string{guest}}}
	for _, name := range volumes {
		pool, name, _ := strings.Cut(name, "/")
		w.Volumes = append(w.Volumes, VolumeName{Pool: pool, Name: name})
	}
	h.begun(cloneKind.Name, w, &w.operationObjects)
}

// left checks the number of open operations.
func (h *herd) left(n int) {
	h.t.Helper()
	if all := h.ops.Operations(); len(all) != n {
		h.t.Fatalf("%d operations are open, want %d", len(all), n)
	}
}

// tidied waits until no operation is open.
func (h *herd) tidied() {
	h.t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for late := time.After(time.Minute); len(h.ops.Operations()) > 0; {
		h.ops.RetryOwed()
		select {
		case <-late:
			h.t.Fatalf("there is left: %+v", h.ops.Operations()[0].Status())
		case <-tick.C:
		}
	}
	h.nextDaemon()
	h.left(0)
}

// altered is a tile's creation with other steps.
type altered struct {
	*tileCreateOperation
	alter func([]operation.Step) []operation.Step
}

func (a *altered) Steps() []operation.Step { return a.alter(a.tileCreateOperation.Steps()) }

// A tile whose record cannot be removed is not reported as made; the next daemon removes it.
//
// Promise: F35, H2
func TestCreateTiles_RecordNotWritten(t *testing.T) {
	h := newHerd(t)
	dir := h.withPool()
	var find func()
	w := newTileCreateOperation(h.Fleet, h.docs(twoGuests))
	r := h.perform(t.Context(), scope.Daemon("a test"), tileCreateKind.Name, &altered{w, func(steps []operation.Step) []operation.Step {
		return append(steps, operation.Step{Name: "misplace", Do: func(context.Context) error {
			find = h.misplace()
			return nil
		}})
	}}, &w.operationObjects, "")
	if r.Outcome != Failed || !strings.Contains(r.Error.Error(), "removed as soon as possible") {
		t.Errorf("its client is told %+v", r)
	}
	h.left(1)
	find()
	h.tidied()
	h.wants("files", files(t, dir))
	h.wants("guests", h.chosen("all"))
}

// If the pool of an unfinished tile is inactive at the daemon's start, its volumes are removed when the pool
// is active. Its guests are removed at once.
//
// Promise: F35
func TestRecover_PoolInactive(t *testing.T) {
	h := newHerd(t)
	dir := h.withPool()
	h.halfMade(twoGuests)
	before := files(t, dir)
	p, err := h.pools.ByName("default")
	ok(t, err)
	ok(t, p.Stop(t.Context(), scope.Daemon("a test")))
	h.Recover(t.Context())
	h.wants("guests", h.chosen("all"))
	h.wants("files of the pool that is away", files(t, dir), before...)
	h.left(1)
	ok(t, p.Start(t.Context(), scope.Daemon("a test"), volume.NoBuild))
	h.tidied()
	h.wants("files", files(t, dir))
}

// Remains of an unfinished tile or clone that are in use stay, with their disks. An unfinished removal of a
// tile is completed nevertheless.
//
// Promise: F35
func TestRecover_KeepsRemainsInUse(t *testing.T) {
	h := newHerd(t)
	dir := h.withPool()
	h.halfMade(twoGuests)
	p, err := h.pools.ByName("default")
	ok(t, err)
	_, err = p.FillVolume(t.Context(), scope.Daemon("a test"), "one.raw", make([]byte, 1<<20))
	ok(t, err)
	h.define(strings.Replace(small("one"), "<serial type='pty'/>", "<disk type='volume' device='disk'><driver name='qemu' type='raw'/>"+
		"<source pool='default' volume='one.raw'/><target dev='vda' bus='virtio'/></disk>", 1))
	one, err := h.guests.ByName("one")
	ok(t, err)
	h.oldClone(one.UUID, "default/one.raw")
	before := files(t, dir)
	h.run(Request{Verb: Start, Options: Options{Paused: true}}, "lab-1-a", "one")
	h.Recover(t.Context())
	h.wants("files", files(t, dir), before...)
	h.wants("running", h.chosen("state=paused"), "lab-1-a", "one")
	h.wants("guests", h.chosen("all"), "lab-1-a", "lab-1-b", "one")
	h.tidied()

	w := newTileRemoveOperation(h.Fleet, h.readTile("lab", 1))
	h.begun(tileRemoveKind.Name, w, &w.operationObjects)
	h.Recover(t.Context())
	h.wants("files without the tile", files(t, dir), "one.raw")
	h.wants("guests without the tile", h.chosen("all"), "one")
	h.tidied()
}

// occupy blocks a guest's loop until letGo is called.
func (h *herd) occupy(name string) (letGo func()) {
	h.t.Helper()
	g, err := h.guests.ByName(name)
	ok(h.t, err)
	busy, free, over := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		over <- guest.ChangeMetadata(h.t.Context(), g, scope.Daemon("a test"), guest.Title, func(*domain.Definition) (*string, error) {
			close(busy)
			<-free
			return nil, nil
		}, "", "", machine.Affect{Config: true})
	}()
	<-busy
	return func() {
		h.t.Helper()
		close(free)
		ok(h.t, <-over)
	}
}

// Remains stay if one of their guests has run, even if it was shut down before their turn: it may have written
// data.
//
// Promise: F35
func TestRecover_KeepsRemainsOfGuestThatRan(t *testing.T) {
	for name, ended := range map[string]bool{"seen as it runs": false, "seen when it has ended": true} {
		t.Run(name, func(t *testing.T) {
			h := newHerd(t)
			dir := h.withPool()
			h.halfMade(twoGuests)
			before := files(t, dir)
			letGo := h.occupy("lab-1-a")
			recovered := make(chan struct{})
			go func() {
				defer close(recovered)
				h.Recover(t.Context())
			}()
			h.run(Request{Verb: Start, Options: Options{Paused: true}}, "lab-1-b") // it has its disks elsewhere
			if ended {
				h.run(Request{Verb: Destroy}, "lab-1-b")
			}
			letGo()
			<-recovered
			h.tidied()
			h.wants("files", files(t, dir), before...)
			h.wants("guests", h.chosen("all"), "lab-1-a", "lab-1-b")
		})
	}
}

// If a guest of a failing tile has been started meanwhile, the tile stays with its disks.
//
// Promise: F35
func TestCreateTiles_FailureKeepsRunningGuest(t *testing.T) {
	h := newHerd(t)
	dir := h.withPool()
	w := newTileCreateOperation(h.Fleet, h.docs(twoGuests))
	r := h.perform(t.Context(), scope.Daemon("a test"), tileCreateKind.Name, &altered{w, func(steps []operation.Step) []operation.Step {
		return append(steps, operation.Step{Name: "use", Do: func(context.Context) error {
			h.run(Request{Verb: Start, Options: Options{Paused: true}}, "lab-1-a")
			return errors.New("no room for more")
		}})
	}}, &w.operationObjects, "")
	if r.Outcome != Failed || !strings.Contains(r.Error.Error(), `no room for more; what was made is kept, because it is in use: domain "lab-1-a"`) {
		t.Errorf("its client is told %+v", r)
	}
	h.tidied()
	h.wants("files", files(t, dir), "lab-1-top.qcow2", "lab-1.qcow2")
	h.wants("guests", h.chosen("all"), "lab-1-a", "lab-1-b")
}

// Remains that a thin clone was made of stay, with their backing files.
//
// Promise: F35
func TestRecover_KeepsBackingFilesOfClone(t *testing.T) {
	h := newHerd(t)
	dir := h.withPool()
	const base = "<volume pool='default'><name>{name}-{tile}.qcow2</name><capacity unit='MiB'>1</capacity><target><format type='qcow2'/></target>"
	h.halfMade(strings.Replace(twoGuests, base, strings.Replace(base, ".qcow2", "-below.qcow2", 1)+"</volume>"+
		base+"<backingStore><path>"+dir+"/{name}-{tile}-below.qcow2</path><format type='qcow2'/></backingStore>", 1))
	got, err := h.clone(CloneRequest{Source: "lab-1-a", Names: []string{"one"}, Thin: true})
	ok(t, err)
	h.wants("clone", got, "one done")
	h.Recover(t.Context())
	h.tidied()
	h.wants("files", files(t, dir), "lab-1-below.qcow2", "lab-1.qcow2", "one-vda.qcow2")
	h.wants("guests", h.chosen("all"), "one")
}

// A new daemon serves clients before all remains are removed, and continues removing them afterwards.
//
// Promise: F35
func TestRecover_ServesBeforeDone(t *testing.T) {
	h := newHerd(t)
	dir := h.withPool()
	h.halfMade(twoGuests)
	release := mounttest.Hang(t, dir)
	late := errors.New("others are to be served")
	ctx, stop := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, late)
	defer stop()
	began := time.Now()
	h.Recover(ctx)
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it was waited for for %v", took)
	}
	h.left(1)
	release()
	p, err := h.pools.ByName("default")
	ok(t, err)
	ok(t, p.Refresh(t.Context(), scope.Daemon("a test")))
	h.tidied()
	h.wants("files left", files(t, dir))
	h.wants("guests left", h.chosen("all"))
}

// A tile whose removal was interrupted does not count as complete.
//
// Promise: H2
func TestCreateTiles_HalfRemovedTile(t *testing.T) {
	h := newHerd(t)
	h.withPool()
	tt := template(t, twoGuests)
	_, err := h.create(tt, 1, 1)
	ok(t, err)
	w := newTileRemoveOperation(h.Fleet, h.readTile("lab", 1))
	h.begun(tileRemoveKind.Name, w, &w.operationObjects)
	got, err := h.create(tt, 1, 1)
	h.wants("half removed", got, "lab/1 failed")
	refused(t, err, fault.Exists, "removal was cut off")
}

// A tile that could not be undone is removed by an explicit removal.
//
// Promise: F35
func TestRemoveTiles_PendingUndo(t *testing.T) {
	h := newHerd(t)
	dir := h.withPool()
	w := newTileCreateOperation(h.Fleet, h.docs(twoGuests))
	undone := make(chan error, 1)
	r := h.perform(t.Context(), scope.Daemon("a test"), tileCreateKind.Name, &altered{w, func(steps []operation.Step) []operation.Step {
		return append(steps, operation.Step{
			Name: "fail", Do: func(context.Context) error { return errors.New("it fails") },
			Undo: func(context.Context) error {
				select {
				case err := <-undone:
					return err
				default:
					return errors.New("not now")
				}
			},
		})
	}}, &w.operationObjects, "")
	if r.Outcome != Failed || !strings.Contains(r.Error.Error(), "not now; the remains will be removed as soon as possible") {
		t.Errorf("its client is told %+v", r)
	}
	h.left(1)
	got, err := h.remove("lab/1")
	ok(t, err)
	h.wants("remove", got, "lab/1 done")
	h.wants("files", files(t, dir))
	h.wants("guests", h.chosen("all"))
	_, err = h.create(template(t, twoGuests), 1, 1)
	ok(t, err)
	undone <- nil
	h.tidied()
	h.wants("files of the new one", files(t, dir), "lab-1-top.qcow2", "lab-1.qcow2")
	h.wants("its guests", h.chosen("all"), "lab-1-a", "lab-1-b")
}

// A requested removal is done once its pool is active.
//
// Promise: F35
func TestRemoveTiles_PoolInactive(t *testing.T) {
	h := newHerd(t)
	dir := h.withPool()
	_, err := h.create(template(t, twoGuests), 1, 1)
	ok(t, err)
	p, err := h.pools.ByName("default")
	ok(t, err)
	ok(t, p.Stop(t.Context(), scope.Daemon("a test")))
	got, err := h.remove("lab/1")
	h.wants("remove", got, "lab/1 failed")
	if err == nil || !strings.Contains(err.Error(), "cannot delete volume default/lab-1") || !strings.Contains(err.Error(), "removed as soon as possible") {
		t.Errorf("got %v", err)
	}
	h.left(1)
	ok(t, p.Start(t.Context(), scope.Daemon("a test"), volume.NoBuild))
	h.tidied()
	h.wants("files", files(t, dir))
	h.wants("guests", h.chosen("all"))
}

// A record that cannot be read may belong to any object, so no other operation is begun.
//
// Promise: F35
func TestOpen_UnreadableRecordRefusesNewOperations(t *testing.T) {
	h := newHerd(t)
	h.withPool()
	ok(t, operation.StoreJournal{Store: h.store}.Write(operation.Record{ID: uuid.NewString(), Owner: operationsName, Kind: "of a later daemon"}))
	h.nextDaemon()
	h.Recover(t.Context())
	got, err := h.create(template(t, oneGuest), 1, 1)
	h.wants("create", got, "lab/1 failed")
	refused(t, err, fault.Failed, "start that version again")
}

// A volume in a pool that is still being read does not count as missing.
//
// Promise: H2
func TestRecover_PoolAnswersLate(t *testing.T) {
	h := newHerd(t)
	dir := h.withPool()
	p, err := h.pools.ByName("default")
	ok(t, err)
	_, err = p.FillVolume(t.Context(), scope.Daemon("a test"), "half", []byte("made"))
	ok(t, err)
	h.oldClone(uuid.NewString(), "default/half")
	h.pools.Close()
	release := mounttest.Hang(t, dir)
	h.pools, err = volume.Open(volume.Options{Store: h.store, Events: h.events, Log: h.log})
	ok(t, err)
	t.Cleanup(h.pools.Close)
	h.nextDaemon()
	h.Recover(t.Context())
	h.left(1)
	release()
	ok(t, h.pools.Settle(t.Context()))
	p, err = h.pools.ByName("default")
	ok(t, err)
	if !p.View().Active() { // its file system has failed
		ok(t, p.Start(t.Context(), scope.Daemon("a test"), volume.NoBuild))
	}
	h.tidied()
	h.wants("files", files(t, dir))
}

// A volume that could not be removed, for instance because its pool was inactive, is not removed once it
// belongs to another owner.
//
// Promise: H2
func TestRecover_NewVolumeOfSameName(t *testing.T) {
	h := newHerd(t)
	dir := h.withPool()
	p, err := h.pools.ByName("default")
	ok(t, err)
	h.define(small("golden"))
	h.oldClone(uuid.NewString(), "default/one-seed.iso", "default/other", "gone/one")
	h.oldClone(uuid.NewString(), "default/lab-1.qcow2", "gone/lab")
	h.Recover(t.Context())
	h.left(2)
	got, err := h.clone(CloneRequest{Source: "golden", Names: []string{"one"}, Seed: &Seed{}})
	ok(t, err)
	h.wants("clone", got, "one done")
	h.run(Request{Verb: Undefine}, "one") // the volume has no user now, and it stays
	_, err = h.create(template(t, twoGuests), 1, 1)
	ok(t, err)
	before := files(t, dir)
	if !slices.Contains(before, "one-seed.iso") {
		t.Fatalf("there are %v", before)
	}
	h.nextDaemon()
	h.Recover(t.Context())
	h.wants("files", files(t, dir), before...)

	// The same holds for one made in another way, once a guest uses it.
	_, err = p.FillVolume(t.Context(), scope.Daemon("a test"), "other", []byte("another's"))
	ok(t, err)
	h.define(strings.Replace(small("another"), "<serial type='pty'/>", "<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='"+
		filepath.Join(dir, "other")+"'/><target dev='vda' bus='virtio'/></disk>", 1))
	before = files(t, dir)
	h.nextDaemon()
	h.Recover(t.Context())
	h.left(2)
	h.wants("files", files(t, dir), before...)
}

// The error for a volume that is about to be removed says so.
func TestCreateTiles_VolumeBeingRemoved(t *testing.T) {
	h := newHerd(t)
	h.withPool()
	h.halfMade(oneGuest)
	g, err := h.guests.ByName("lab-1")
	ok(t, err)
	ok(t, guest.Undefine(t.Context(), g, scope.Daemon("a test"), guest.UndefineOptions{}))
	_, err = h.create(template(t, oneGuest), 1, 1)
	refused(t, err, fault.Busy, "volume default/lab-1.raw belongs to a tile or a clone that is being made or removed")
	h.Recover(t.Context())
	_, err = h.create(template(t, oneGuest), 1, 1)
	ok(t, err)
}
