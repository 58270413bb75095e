package fleet

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/host/volume"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// CloneRequest says which guest to clone, and how.
type CloneRequest struct {
	Source string
	// Names are the names of the clones.
	Names []string
	// Thin makes the source's disks the backing files of the clones' disks. The source becomes a template,
	// which can no longer be started.
	Thin bool
	// Pool is the pool of the new volumes; empty: each goes to the pool of the volume that it copies.
	Pool string
	// Seed gives each clone a CD for cloud-init; nil: no CD.
	Seed *Seed
	// NoRNG adds no random number generator to clones of a guest without one.
	NoRNG  bool
	DryRun bool
}

// Bounds of cloning. Copies are bounded by the disks' speed.
const (
	clonesAtOnce = 8
	maxClones    = 4096
)

// Clone makes copies of a guest that differ from it only in their identity. Each clone is made completely or
// not at all. Clone reports as Run does. Cancelling ctx stops and undoes the clones that are being made.
func (f *Fleet) Clone(ctx context.Context, sc scope.Scope, q CloneRequest, plan func(Plan), report func(Result)) (Summary, error) {
	if err := q.check(); err != nil {
		return Summary{}, err
	}
	g, err := f.guests.ByName(q.Source)
	if err != nil {
		return Summary{}, err
	}
	def, release, err := g.KeepShutOff(ctx, sc)
	if err != nil {
		return Summary{}, err
	}
	defer release()
	leave, err := f.shareTile(f.MemberOf(g))
	if err != nil {
		return Summary{}, err
	}
	defer leave()
	c, err := f.planClone(def, q)
	if err != nil {
		return Summary{}, err
	}
	c.fences = g.PathLimits()
	if !q.Thin || q.DryRun || g.View().Template {
		return c.cloneAll(ctx, sc, plan, report), nil
	}
	return f.cloneThin(ctx, sc, g, func(ctx context.Context) Summary {
		defer release()
		return c.cloneAll(ctx, sc, plan, report)
	})
}

// cloneAll makes the clones, several at once.
func (c *clonePlan) cloneAll(ctx context.Context, sc scope.Scope, plan func(Plan), report func(Result)) Summary {
	names := c.request.Names
	ids := make([]string, len(names))
	s := &schedule{
		log: c.fleet.log, order: orderGuests(names, nil, unordered), names: names, parallel: clonesAtOnce, keepGoing: true,
		do: func(ctx context.Context, i int) Result {
			ids[i] = uuid.NewString()
			return c.cloneOne(ctx, sc, names[i], ids[i])
		},
	}
	return s.runAndCount(ctx, plan, func(i int, r Result) {
		if r.Name = names[i]; r.Outcome == Done {
			r.UUID = ids[i]
		}
		report(r)
	})
}

func (q *CloneRequest) check() error {
	if len(q.Names) == 0 || len(q.Names) > maxClones {
		return fault.New(fault.Invalid, fault.Call, "from 1 to %d clones can be made in one call, not %d", maxClones, len(q.Names))
	}
	seen := map[string]bool{}
	for _, name := range q.Names {
		if err := domain.CheckName(name); err != nil {
			return err
		}
		if seen[name] {
			return fault.New(fault.Invalid, fault.Call, "the name %q is given twice", name)
		}
		seen[name] = true
	}
	return q.Seed.check()
}

// clonePlan says how one guest is cloned.
type clonePlan struct {
	fleet   *Fleet
	request CloneRequest
	source  *domain.Definition
	// fences are the path limits that hold for the source's files.
	fences machine.PathLimits
	disks  []sourceDisk
	// seedPool is the pool in which seeds are made.
	seedPool *volume.Pool
	note     string
}

// sourceDisk is a disk that each clone gets its own copy of.
type sourceDisk struct {
	index     int // index among the disks of the definition
	pool      *volume.Pool
	volume    *volume.Volume
	target    *volume.Pool
	extension string // extension of the new volume's name
}

// planClone finds every reason why a guest cannot be cloned, before anything is made.
func (f *Fleet) planClone(d *domain.Definition, q CloneRequest) (*clonePlan, error) {
	if err := checkCloneable(d); err != nil {
		return nil, err
	}
	c := &clonePlan{fleet: f, request: q, source: d}
	for i, disk := range d.Devices.Disks {
		if disk.Source == nil || disk.Device == "cdrom" || disk.ReadOnly || disk.Shareable {
			continue // shareable, so the clones share it
		}
		o, err := c.findSourceDisk(disk)
		if err != nil {
			return nil, fault.Wrap(err, fault.Of(err), fault.About(err), "domain %q cannot be cloned: disk %s", d.Name, disk.Target)
		}
		o.index = i
		c.disks = append(c.disks, o)
	}
	if err := c.findSeedPool(); err != nil {
		return nil, err
	}
	c.note = c.describe()
	return c, nil
}

// findSourceDisk finds the volume of a disk, and the pool for its copies.
func (c *clonePlan) findSourceDisk(disk *device.Disk) (o sourceDisk, err error) {
	switch {
	case disk.Device == "lun":
		return o, fault.New(fault.Unsupported, fault.Domain, "is a LUN of the host, which two guests cannot share")
	case disk.Encryption != nil:
		return o, fault.New(fault.Unsupported, fault.Domain, "is encrypted, and its copies would need secrets of their own, which is not built; copy the volume (virsh vol-create-from) and define the guest yourself")
	}
	if v := disk.Source.Volume; v != nil {
		if o.pool, err = c.fleet.pools.ByName(v.Pool); err == nil {
			o.volume, err = o.pool.Volume(v.Volume)
		}
	} else if o.pool, o.volume, err = c.fleet.pools.ByPath(disk.Source.Path()); err != nil {
		err = fault.New(fault.NotFound, fault.Volume, "%s is in no active pool; make one of its folder (virsh pool-create-as NAME dir --target %s)",
			disk.Source.Path(), fault.Word(filepath.Dir(disk.Source.Path())))
	}
	if err != nil {
		return o, err
	}
	// A guest can write any header into a raw disk, so the header must not decide the format.
	if declared := cmp.Or(disk.Format, "raw"); declared != format(o.volume) {
		return o, fault.New(fault.Invalid, fault.Volume, "has format %s in the guest's definition and %s in pool %q; correct the one that is wrong", declared, o.volume.Format, o.pool.Name())
	}
	o.target, o.extension = o.pool, filepath.Ext(o.volume.Name)
	if c.request.Pool != "" {
		if o.target, err = c.fleet.pools.ByName(c.request.Pool); err != nil {
			return o, err
		}
	}
	if c.request.Thin {
		o.extension = ".qcow2"
		if t := o.target.View().Type; t == volume.Logical || t == volume.Disk {
			return o, fault.New(fault.Unsupported, fault.Pool, "cannot have thin clones in pool %q, whose volumes are block devices; name a pool of files (--pool)", o.target.Name())
		}
	}
	return o, nil
}

// format is a volume's format as the XML of a disk names it.
func format(v *volume.Volume) string {
	if v.Format == image.ISO {
		return string(image.Raw)
	}
	return string(v.Format)
}

// findSeedPool chooses the pool for seeds.
func (c *clonePlan) findSeedPool() (err error) {
	switch {
	case c.request.Seed == nil:
	case c.request.Pool != "":
		c.seedPool, err = c.fleet.pools.ByName(c.request.Pool)
	case len(c.disks) > 0:
		c.seedPool = c.disks[0].target
	default:
		if c.seedPool, err = c.fleet.pools.ByName("default"); err != nil {
			err = fault.New(fault.Invalid, fault.Pool, "the guest has no disk whose pool could hold the seed, and there is no pool \"default\"; name a pool (--pool)")
		}
	}
	return err
}

// describe says what clones get and what they do not get.
func (c *clonePlan) describe() string {
	var words []string
	how := "copied"
	if c.request.Thin {
		how = "thin"
	}
	if n := len(c.disks); n > 0 {
		words = append(words, fmt.Sprintf("%d disks %s", n, how))
	}
	if c.request.Seed != nil {
		words = append(words, "a seed")
	}
	if c.addsRNG() {
		words = append(words, "a virtio-rng")
	}
	if slices.ContainsFunc(c.source.Devices.TPMs, func(t *device.TPM) bool { return t.Type == "emulator" }) {
		words = append(words, "an empty TPM")
	}
	return strings.Join(words, ", ")
}

// addsRNG says whether clones get a random number generator that the source lacks. They need one more than the
// source did: without it clones could draw equal numbers.
func (c *clonePlan) addsRNG() bool {
	return !c.request.NoRNG && len(c.source.Devices.RNGs) == 0 && c.source.OS.Machine != "isapc"
}

// cloneOne makes one clone, or removes all of it.
func (c *clonePlan) cloneOne(ctx context.Context, sc scope.Scope, name, id string) Result {
	d := c.source.Clone()
	err := newIdentity(d, name, id, c.fleet.newMAC)
	if err == nil {
		err = c.checkNamesFree(name)
	}
	switch {
	case err != nil:
		return Result{Outcome: Failed, Error: err}
	case c.request.DryRun:
		return Result{Outcome: Would, Note: c.note}
	}
	w := newCloneOperation(c, name, d)
	return c.fleet.perform(ctx, sc, cloneKind.Name, w, &w.operationObjects, c.note)
}

// copyName names a clone's own volume.
func (o *sourceDisk) copyName(clone, target string) VolumeName {
	return VolumeName{Pool: o.target.Name(), Name: clone + "-" + target + o.extension}
}

func (c *clonePlan) seedName(clone string) VolumeName {
	return VolumeName{Pool: c.seedPool.Name(), Name: clone + "-seed.iso"}
}

// volumes lists the volumes of a clone to be made.
func (c *clonePlan) volumes(name string) []VolumeName {
	var all []VolumeName
	for _, o := range c.disks {
		all = append(all, o.copyName(name, c.source.Devices.Disks[o.index].Target))
	}
	if c.seedPool != nil {
		all = append(all, c.seedName(name))
	}
	return all
}

// checkNamesFree refuses a clone whose name or volumes exist, before anything is made.
func (c *clonePlan) checkNamesFree(name string) error {
	if _, err := c.fleet.guests.ByName(name); err == nil {
		return fault.New(fault.Exists, fault.Domain, "domain %q already exists", name)
	}
	for _, v := range c.volumes(name) {
		if err := c.fleet.checkVolumeFree(v); err != nil {
			return err
		}
	}
	return nil
}
