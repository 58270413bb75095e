package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/host/volume"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// cloneKind makes a clone. A clone is complete when its record is removed; a daemon that finds the record
// undoes the clone.
var cloneKind = operation.Kind[*Fleet]{
	Name: "clone", Version: 1,
	Steps: []string{"volumes", "variables", "guest"}, Undo: []string{"volumes", "variables", "guest"},
	Bind: func(f *Fleet) operation.Work { return &cloneOperation{operationObjects: operationObjects{fleet: f}} },
}

// cloneOperation is the payload.
type cloneOperation struct {
	operationObjects

	// The following fields are set only in the daemon that began the operation.
	cloning    *clonePlan
	definition *domain.Definition // the clone's definition
	fences     machine.PathLimits // the path limits of its files
}

func newCloneOperation(c *clonePlan, name string, d *domain.Definition) *cloneOperation {
	return &cloneOperation{operationObjects: operationObjects{fleet: c.fleet, Guests: []string{d.UUID}, Volumes: c.volumes(name)}, cloning: c, definition: d}
}

// Steps implements operation.Work.
func (w *cloneOperation) Steps() []operation.Step {
	return []operation.Step{
		{Name: "volumes", Effect: operation.Lasting, Do: w.makeVolumes, Undo: w.deleteVolumes},
		{Name: "variables", Effect: operation.Lasting, Do: w.copyVariables, Undo: w.dropVariables},
		{Name: "guest", Effect: operation.Lasting, Do: w.define, Undo: w.undefine},
	}
}

// makeVolumes makes the clone's disks and its seed.
func (w *cloneOperation) makeVolumes(ctx context.Context) error {
	c := w.cloning
	w.fences = maps.Clone(c.fences)
	for i, o := range c.disks {
		disk := w.definition.Devices.Disks[o.index]
		was := *disk
		made, err := c.copyDisk(ctx, w.fences.DiskScope(w.op.Scope(), disk), o, w.definition.Name, disk)
		if err != nil {
			return errors.Join(err, w.keepFirstVolumes(i))
		}
		w.fences.CopyForClone(&was, disk, filepath.Dir(made.Path))
	}
	if c.request.Seed == nil {
		return nil
	}
	if err := c.makeSeed(ctx, w.fences.FileScope(w.op.Scope()), w.definition); err != nil {
		return errors.Join(err, w.keepFirstVolumes(len(c.disks)))
	}
	return nil
}

// copyVariables gives the clone its own UEFI variables, as a file of the daemon's, whatever the source uses.
func (w *cloneOperation) copyVariables(ctx context.Context) (err error) {
	v := &w.definition.OS.NVRAM
	if v.Path == "" {
		return nil
	}
	v.Path, err = launch.CopyNVRAM(ctx, w.fleet.guests, w.fences.FileScope(w.op.Scope()), v.Path, w.definition.UUID)
	v.Type, v.SecLabels = "", nil
	return err
}

func (w *cloneOperation) dropVariables(ctx context.Context) error {
	if w.Kept != "" {
		return nil
	}
	return launch.DropNVRAM(ctx, w.fleet.guests, w.op.Scope(), w.Guests[0])
}

// define defines the guest and keeps it from being started until the operation ends.
func (w *cloneOperation) define(ctx context.Context) error {
	if w.cloning.addsRNG() {
		w.definition.Devices.RNGs = []*device.RNG{provision.NewRNG()}
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	doc, err := domainxml.Format(w.definition, domainxml.Style{Secure: true})
	if err != nil {
		return err
	}
	if _, err = guest.Define(context.WithoutCancel(ctx), w.fleet.guests, w.fences.FileScope(w.op.Scope()), doc, false); err != nil {
		return fmt.Errorf("cannot define domain %q: %w", w.definition.Name, err)
	}
	return nil
}

// copyDisk copies a disk to a volume of the clone and puts that in the disk's place.
func (c *clonePlan) copyDisk(ctx context.Context, sc scope.Scope, o sourceDisk, clone string, disk *device.Disk) (made *volume.Volume, err error) {
	name := o.copyName(clone, disk.Target)
	doc, err := c.copyDocument(o, name.Name)
	if err != nil {
		return nil, err
	}
	if c.request.Thin {
		made, err = o.target.CreateVolume(ctx, sc, doc, volume.CreateOptions{})
	} else {
		made, err = o.target.CloneVolume(ctx, sc, doc, o.pool, o.volume.Name, volume.CreateOptions{})
	}
	if err != nil {
		return nil, fmt.Errorf("cannot copy disk %s: %w", disk.Target, err)
	}
	failpoint.Reach("clone.volume")
	disk.Format, disk.Backing, disk.BackingSaid = format(made), nil, false
	setSource(disk, made, disk.Source.Volume != nil)
	return made, nil
}

// setSource sets a disk's source to a volume, by its pool or by its path.
func setSource(disk *device.Disk, v *volume.Volume, byPool bool) {
	switch {
	case byPool:
		disk.Source = &device.DiskSource{Volume: &device.VolumeRef{Pool: v.Pool, Volume: v.Name}}
	case v.Kind == volume.Block:
		disk.Source = &device.DiskSource{Block: v.Path}
	default:
		disk.Source = &device.DiskSource{File: v.Path}
	}
}

// copyDocument is the XML for a clone's volume. A copy allocates only the source's data; a thin one allocates
// almost nothing.
func (c *clonePlan) copyDocument(o sourceDisk, name string) (string, error) {
	text := func(name, value string) *xmltree.Element {
		return &xmltree.Element{Name: name, Children: []xmltree.Node{xmltree.Text(value)}}
	}
	typed := func(format image.Format) *xmltree.Element {
		return &xmltree.Element{Name: "format", Attrs: []xmltree.Attr{{Name: "type", Value: string(format)}}}
	}
	of := o.volume.Format
	if c.request.Thin {
		of = image.Qcow2
	}
	doc := &xmltree.Element{Name: "volume", Children: []xmltree.Node{
		text("name", name), text("capacity", fmt.Sprint(o.volume.Virtual)), text("allocation", "0"),
		&xmltree.Element{Name: "target", Children: []xmltree.Node{typed(of)}},
	}}
	if c.request.Thin {
		doc.Children = append(doc.Children, &xmltree.Element{Name: "backingStore", Children: []xmltree.Node{text("path", o.volume.Path), typed(o.volume.Format)}})
	}
	return xmltree.Format(doc)
}

// makeSeed makes a clone's seed and adds a CD drive for it.
func (c *clonePlan) makeSeed(ctx context.Context, sc scope.Scope, d *domain.Definition) error {
	disc, err := c.request.Seed.disc(d.Name, d.UUID, time.Now())
	if err != nil {
		return err
	}
	name := c.seedName(d.Name)
	made, err := c.seedPool.FillVolume(ctx, sc, name.Name, disc)
	if err != nil {
		return fmt.Errorf("cannot make the seed: %w", err)
	}
	failpoint.Reach("clone.seed")
	setSource(seedDrive(d), made, true)
	return nil
}
