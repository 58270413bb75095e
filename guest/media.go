package guest

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/lodge-kvm/lodge/device"
	"github.com/lodge-kvm/lodge/domain"
	"github.com/lodge-kvm/lodge/domainxml"
	"github.com/lodge-kvm/lodge/event"
	"github.com/lodge-kvm/lodge/failpoint"
	"github.com/lodge-kvm/lodge/image"
	"github.com/lodge-kvm/lodge/qemu"
	"github.com/lodge-kvm/lodge/qmp"
)

// changing is a change of medium under way, as it lies in the run directory until
// it is done or undone. When the daemon is killed in between, or QEMU does not
// answer, QEMU alone knows how far it came.
type changing struct {
	Live  string   // the drive's XML with the new medium
	Saved string   // the same in the stored definition; empty: that stays as it is
	Fence []string // the folders that the stored medium is held to
	// Change is what the store says when it has followed.
	Change string
	Node   string    // the drive has this once the change is made; empty: nothing
	Old    uint      // the number of the images that QEMU is to let go then; 0: none
	Undo   []undoing // in the order in which the steps were to be made
	Rest   []undoing // the steps that follow when the drive has the node

	live, saved *device.Disk // what Live and Saved say; saved may be nil
	kept        bool         // QEMU has not let go of the images yet
}

const changingFile = "changing.json"

// newChanging plans the journal of a change. It runs in the loop.
func (g *Guest) newChanging(live *device.Disk, config *following) (*changing, error) {
	c := &changing{live: live}
	if live.Source != nil {
		live.Source.Index = 0 // whatever the client said
	}
	g.run.numberNode(g.run.def, live)
	if config == nil {
		return c, nil
	}
	saved, err := findLike(&config.to.Devices, live)
	if err != nil {
		return nil, err
	}
	c.saved = saved.(*device.Disk)
	c.Fence, c.Change = g.record.Fences[sourceOf(c.saved)], config.change
	return c, nil
}

// note completes the journal by what is about to be done.
func (c *changing) note(before *device.Disk, steps []qemu.Step) (err error) {
	if c.Live, err = domainxml.FormatDevice(c.live, domainxml.Style{Active: true, Secure: true}); err != nil {
		return err
	}
	if c.saved != nil {
		if c.Saved, err = domainxml.FormatDevice(c.saved, domainxml.Style{Secure: true}); err != nil {
			return err
		}
	}
	if before.Source != nil {
		c.Old = before.Source.Index
	}
	decides := "blockdev-remove-medium"
	if c.live.Source != nil {
		c.Node, decides = qemu.TopNode(c.live), "blockdev-insert-medium"
	}
	done := false
	for i := range steps {
		switch {
		case done:
			u, err := newUndoing(&steps[i])
			if err != nil {
				return err
			}
			c.Rest = append(c.Rest, u)
		case steps[i].Undo != nil:
			u, err := newUndoing(steps[i].Undo)
			if err != nil {
				return err
			}
			c.Undo = append(c.Undo, u)
		}
		done = done || steps[i].Command == decides
	}
	return nil
}

func readChanging(dir string) (*changing, error) {
	c, err := readJSON[changing](filepath.Join(dir, changingFile))
	if c == nil && err == nil {
		return nil, nil
	}
	if err == nil {
		c.live, err = parseDrive(c.Live)
	}
	if err == nil && c.Saved != "" {
		c.saved, err = parseDrive(c.Saved)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read which medium was being changed: %w", err)
	}
	return c, nil
}

func parseDrive(doc string) (*device.Disk, error) {
	dev, err := domainxml.ParseDevice(doc, domainxml.Options{Active: true})
	if err != nil {
		return nil, err
	}
	disk, is := dev.(*device.Disk)
	if !is {
		return nil, fmt.Errorf("a %s is no drive", dev.Kind())
	}
	return disk, nil
}

// changingAgain finds the change again that an earlier daemon began.
func (r *run) changingAgain() {
	c, err := readChanging(r.dir)
	if err != nil {
		r.log.Error("a medium that was being changed is left as it is", "error", err)
	}
	if r.changing = c; c != nil {
		r.notesNode(c.live)
	}
}

// forgetChanging notes that no medium is half changed any more.
func (r *run) forgetChanging() {
	r.changing = nil
	r.done(changingFile)
}

// planMedia plans the exchange of the medium of a drive, in the running guest and,
// if there is one, in config.
func (g *Guest) planMedia(before, after *device.Disk, config *following, force bool) (work, error) {
	r, def := g.run, g.run.def
	c, err := g.newChanging(after, config)
	if err != nil {
		return nil, err
	}
	with := def.Clone()
	if err := updateIn(&with.Devices, c.live); err != nil {
		return nil, err
	}
	if _, err := r.text(with); err != nil {
		return nil, err
	}
	return func(ctx context.Context) (settle, error) {
		err := g.changeMedia(ctx, r, def, c, before, force)
		switch {
		case err == nil:
			return func() error { return g.mediumChanged(r, c) }, nil
		case c.Live != "" && unanswered(err): // it was begun, and goes on when QEMU answers again
			return func() error { r.changing = c; return nil }, err
		}
		return nil, err
	}, nil
}

// changeMedia exchanges the medium of a drive. A guest that locked its tray is
// overruled by force only.
func (g *Guest) changeMedia(ctx context.Context, r *run, def *domain.Definition, c *changing, before *device.Disk, force bool) error {
	s, err := r.monitor()
	if err != nil {
		return err
	}
	caps, err := g.reg.Emulators.Get(ctx, def.Devices.Emulator)
	if err != nil {
		return err
	}
	p := &qemu.Plan{Definition: def, Capabilities: caps, Dir: r.ownPath(), Disks: map[string]device.DiskAttachment{}}
	defer closePlan(p)
	a, present, err := g.reg.findDisk(ctx, r, c.live)
	if err != nil {
		return err
	}
	if present {
		p.Disks[c.live.Alias] = a
	}
	steps, err := qemu.ChangeMedia(p, before, c.live, force)
	if err != nil {
		return err
	}
	if err := r.labels.admit(ctx, p, c.live, nil); err != nil {
		return errors.Join(err, r.labels.giveBack(ctx, ownerOf(c.live)))
	}
	if err := c.note(before, steps); err != nil {
		return err
	}
	if err := r.begin(changingFile, c); err != nil {
		c.Live = "" // nothing was begun
		return errors.Join(err, r.labels.giveBack(ctx, ownerOf(c.live)))
	}
	if err := runSteps(ctx, s, steps); err != nil {
		if unanswered(err) {
			s.Close() // a new session asks how far it came
		} else {
			removeFile(g.log, filepath.Join(r.dir, changingFile))
			err = errors.Join(err, r.labels.giveBack(ctx, ownerOf(c.live)))
		}
		return err
	}
	failpoint.Reach("media.changed")
	c.letGo(ctx, s, g, r)
	return nil
}

// letGo has QEMU forget the images of the medium that was in the drive.
func (c *changing) letGo(ctx context.Context, s *qmp.Session, g *Guest, r *run) {
	if c.Old == 0 {
		return
	}
	kept, err := forgetImages(ctx, s, c.Old)
	if err != nil { // the guest has its new medium
		g.log.Warn("QEMU does not let go yet of the image of a medium", "disk", c.live.Target, "error", err)
	}
	if c.kept = kept || err != nil; c.kept {
		return
	}
	if err := r.labels.giveBack(ctx, imageOwner(c.Old)); err != nil {
		g.log.Warn("the image of a medium may keep the guest's label", "disk", c.live.Target, "error", err)
	}
}

// mediumChanged makes the new medium part of the running guest and, where that was
// asked for, of its stored definition. It runs in the loop.
func (g *Guest) mediumChanged(r *run, c *changing) error {
	var old *device.DiskSource
	if disk, is := r.def.Devices.ByAlias(c.live.Alias).(*device.Disk); is {
		old = disk.Source
	}
	var err error
	g.setActive(func(d *domain.Definition) { err = updateIn(&d.Devices, c.live) })
	if c.kept { // one that is paused closes it when it runs
		left := &leaving{Image: c.Old, For: imageOwner(c.Old)}
		left.giveBack = once(alsoLabels(r, left.For, nil))
		r.Leaving = append(r.Leaving, left)
	}
	g.keepActive()
	failpoint.Reach("media.kept")
	if err == nil && c.saved != nil && g.inactive != nil && !g.hasFollowed(c.Change) {
		config := g.inactive.Clone()
		if err = updateIn(&config.Devices, c.saved); err == nil {
			g.fence(c.fenced(context.Background()), config)
			err = g.redefineAfter(c.Change, config)
		}
	}
	r.forgetChanging()
	g.announce(event.DomainMediaChange{OldPath: old.Path(), NewPath: c.live.Source.Path(), Alias: c.live.Alias, Reason: "updated"})
	return err
}

// fenced holds what is stored to what its client was held to.
func (c *changing) fenced(ctx context.Context) context.Context {
	if c.Fence == nil {
		return ctx
	}
	return image.WithFence(ctx, c.Fence)
}

// finishChange ends a change that was cut off: if the drive has what it was to get
// the rest is done, and else it gets back what it had. It runs beside the loop.
func (g *Guest) finishChange(ctx context.Context, r *run, s *qmp.Session, c *changing) (settle, error) {
	node, err := mediumIn(ctx, s, c.live.Alias)
	if err != nil {
		return nil, err
	}
	if node != c.Node {
		takeBack(ctx, s, c.Undo, g.log)
		if err := r.labels.giveBack(ctx, ownerOf(c.live)); err != nil {
			g.log.Warn("the image of a medium may keep the guest's label", "disk", c.live.Target, "error", err)
		}
		return func() error { r.forgetChanging(); return nil }, nil
	}
	for _, u := range c.Rest {
		if err := insist(ctx, s, u); unanswered(err) {
			return nil, err
		} else if err != nil { // it was done before
			g.log.Debug("nothing is left to do of a change of medium", "command", u.Command, "cause", err)
		}
	}
	c.letGo(ctx, s, g, r)
	return func() error {
		g.log.Info("a medium that was being changed is the guest's", "disk", c.live.Target)
		return g.mediumChanged(r, c)
	}, nil
}

// mediumIn asks which node a drive reads; empty: it has nothing in it.
func mediumIn(ctx context.Context, s *qmp.Session, alias string) (string, error) {
	var drives []blockInfo
	if err := s.Execute(ctx, "query-block", nil, &drives); err != nil {
		return "", err
	}
	i := slices.IndexFunc(drives, func(b blockInfo) bool { return belongsTo(b.QDev, alias) })
	if i < 0 || drives[i].Inserted == nil {
		return "", nil
	}
	return drives[i].Inserted.NodeName, nil
}
