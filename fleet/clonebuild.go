package fleet

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"time"

	"github.com/lodge-kvm/lodge/device"
	"github.com/lodge-kvm/lodge/domain"
	"github.com/lodge-kvm/lodge/domainxml"
	"github.com/lodge-kvm/lodge/failpoint"
	"github.com/lodge-kvm/lodge/guest"
	"github.com/lodge-kvm/lodge/image"
	"github.com/lodge-kvm/lodge/markup"
	"github.com/lodge-kvm/lodge/volume"
)

// build makes the volumes of a clone, its seed and its UEFI variables, and then the
// guest, which nobody can start before.
func (c *cloning) build(ctx context.Context, b *building, d *domain.Definition) error {
	fences := maps.Clone(c.fences)
	for _, o := range c.disks {
		disk := d.Devices.Disks[o.at]
		was := *disk
		made, err := c.copyDisk(fences.On(ctx, disk), b, o, d.Name, disk)
		if err != nil {
			return err
		}
		fences.Like(&was, disk, filepath.Dir(made.Path))
	}
	ctx = fences.In(ctx)
	if c.q.Seed != nil {
		if err := c.makeSeed(ctx, b, d); err != nil {
			return err
		}
	}
	if c.addsRNG() {
		d.Devices.RNGs = []*device.RNG{guest.NewRNG()}
	}
	if v := &d.OS.NVRAM; v.Path != "" {
		path, err := c.fleet.guests.CopyNVRAM(ctx, v.Path, d.UUID)
		if err != nil {
			return err
		}
		v.Path, v.Type, v.SecLabels = path, "", nil // a file of the daemon's, whatever the original has
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	doc, err := domainxml.Format(d, domainxml.Style{Secure: true})
	if err != nil {
		return err
	}
	g, err := c.fleet.guests.Define(context.WithoutCancel(ctx), doc, false)
	if err != nil {
		return fmt.Errorf("cannot define domain %q: %w", d.Name, err)
	}
	failpoint.Reach("clone.guest")
	b.guests = append(b.guests, g)
	return nil
}

// copyDisk makes a clone's own volume of a disk, and puts it in the disk's place.
func (c *cloning) copyDisk(ctx context.Context, b *building, o original, clone string, disk *device.Disk) (made *volume.Volume, err error) {
	name := o.copyName(clone, disk.Target)
	doc, err := c.copyDocument(o, name.Name)
	if err != nil {
		return nil, err
	}
	if c.q.Thin {
		made, err = o.into.CreateVolume(ctx, doc, volume.CreateOptions{})
	} else {
		made, err = o.into.CloneVolume(ctx, doc, o.from, o.of.Name, volume.CreateOptions{})
	}
	if err != nil {
		return nil, fmt.Errorf("cannot copy disk %s: %w", disk.Target, err)
	}
	failpoint.Reach("clone.volume")
	b.volumes = append(b.volumes, name)
	disk.Format, disk.Backing, disk.BackingSaid = format(made), nil, false
	point(disk, made, disk.Source.Volume != nil)
	return made, nil
}

// point has a disk lead to a volume, by its pool or by its path.
func point(disk *device.Disk, v *volume.Volume, byPool bool) {
	switch {
	case byPool:
		disk.Source = &device.DiskSource{Volume: &device.VolumeRef{Pool: v.Pool, Volume: v.Name}}
	case v.Kind == volume.Block:
		disk.Source = &device.DiskSource{Block: v.Path}
	default:
		disk.Source = &device.DiskSource{File: v.Path}
	}
}

// copyDocument is what a clone's volume is asked for by. A copy takes no more space
// than its data do; a thin one takes next to none.
func (c *cloning) copyDocument(o original, name string) (string, error) {
	text := func(name, value string) *markup.Element {
		return &markup.Element{Name: name, Children: []markup.Node{markup.Text(value)}}
	}
	typed := func(format image.Format) *markup.Element {
		return &markup.Element{Name: "format", Attrs: []markup.Attr{{Name: "type", Value: string(format)}}}
	}
	of := o.of.Format
	if c.q.Thin {
		of = image.Qcow2
	}
	doc := &markup.Element{Name: "volume", Children: []markup.Node{
		text("name", name), text("capacity", fmt.Sprint(o.of.Virtual)), text("allocation", "0"),
		&markup.Element{Name: "target", Children: []markup.Node{typed(of)}},
	}}
	if c.q.Thin {
		doc.Children = append(doc.Children, &markup.Element{Name: "backingStore", Children: []markup.Node{text("path", o.of.Path), typed(o.of.Format)}})
	}
	return markup.Format(doc)
}

// makeSeed makes a clone's seed and gives it a drive for that.
func (c *cloning) makeSeed(ctx context.Context, b *building, d *domain.Definition) error {
	disc, err := c.q.Seed.disc(d.Name, d.UUID, time.Now())
	if err != nil {
		return err
	}
	name := c.seedName(d.Name)
	made, err := c.seeds.FillVolume(ctx, name.Name, disc)
	if err != nil {
		return fmt.Errorf("cannot make the seed: %w", err)
	}
	failpoint.Reach("clone.seed")
	b.volumes = append(b.volumes, name)
	point(seedDrive(d), made, true)
	return nil
}
