package blockjob

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/guest/statistics"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// BlockCommitKind commits images of a disk into their base image.
//
// An active commit ends with a pivot: after it the guest writes to the base only, so the stored definition
// must name the base first. The order is: the job waits (pending) with both images equal and the guest
// stopped; the definition is stored; QEMU changes its chain. After a crash the stored definition decides
// whether the pivot happened.
//
// Any other commit changes the backing file name in the image above. QEMU decides whether it happened, and
// after QEMU's end that image's header does.
var BlockCommitKind = operation.Kind[*machine.Instance]{
	Name: "blockcommit", Version: 1, Class: operation.DiskJob,
	Steps: []string{"lend", "start", "copy", "pause", "complete", "store", "note", "finalize", "resume", "define", "dismiss", "forget"},
	Undo:  []string{"lend", "start", "pause", "note"},
	Bind:  func(r *machine.Instance) operation.Work { return &blockCommit{r: r} },
}

// blockCommit is the journalled payload of a commit.
type blockCommit struct {
	diskJob
	Active bool                // the base replaces the image that the guest writes
	Speed  uint64              `json:",omitempty"` // bytes a second; 0: no limit
	Base   machine.LentImage   // the image that the job writes to
	Block  bool                `json:",omitempty"` // the base is a block device
	Gone   []machine.LentImage // the committed images, from the top down; they leave the chain
	Above  *machine.LentImage  `json:",omitempty"` // the image on top of the first of Gone; nil: that one is the active image
	Lent   []machine.LentImage // the images that QEMU may write to for the job
	// Was and Will are the backing file references in the header of Above, before and after the commit.
	Was, Will image.Backing
	// Ran says that the guest was running when the pivot stopped it.
	Ran bool `json:",omitempty"`
	// Stored is the disk of the stored definition before the change. Nil: the stored definition has another
	// disk there.
	Stored *storedImage `json:",omitempty"`
	// Failed is QEMU's reason for not changing its chain. Empty: it did not fail.
	Failed string `json:",omitempty"`

	r    *machine.Instance
	op   *operation.Operation
	disk *device.Disk // known only to the daemon that began the commit
	span commitRange  // known only to the daemon that began the commit
}

// Steps implements operation.Work.
func (c *blockCommit) Steps() []operation.Step {
	begin := []operation.Step{
		{Name: "lend", Effect: operation.Boot, Do: c.lend, Undo: c.takeBack},
		{Name: "start", Effect: operation.Process, Do: c.start, Undo: c.cancel},
		{Name: "copy", Effect: operation.Process, Waits: true, Do: c.checkCopied},
	}
	rest := []operation.Step{
		{Name: "define", Effect: operation.Boot, Do: c.define},
		{Name: "dismiss", Effect: operation.Process, Do: c.dismiss},
		{Name: "forget", Effect: operation.Boot, Do: c.closeImages},
	}
	if c.Active {
		return slices.Concat(begin, []operation.Step{
			{Name: "pause", Effect: operation.Process, Do: c.pause, Undo: c.unpause},
			{Name: "complete", Effect: operation.Process, Do: c.complete},
			{Name: "store", Effect: operation.Boot, Decisive: true, Do: c.store, Probe: c.probe},
			{Name: "finalize", Effect: operation.Process, Do: c.pivot},
			{Name: "resume", Effect: operation.Process, Do: c.resume},
		}, rest)
	}
	return slices.Concat(begin, []operation.Step{
		{Name: "note", Effect: operation.Boot, Do: c.noteBacking, Undo: c.dropBackingNote},
		{Name: "finalize", Effect: operation.Boot, Decisive: true, Do: c.finalize, Probe: c.probe},
	}, rest)
}

// Opened implements operation.Opener.
func (c *blockCommit) Opened(op *operation.Operation) error {
	c.op = op
	if len(c.Gone) == 0 || c.Active == (c.Above != nil) {
		return errors.New("it lacks the committed images, or the image above them")
	}
	return nil
}

// Ended implements operation.Ender.
func (c *blockCommit) Ended() {
	path := c.Path
	if c.completed && c.Active {
		path = c.Base.Path
	}
	c.announceEnd(c.r, path)
}

// BlockCommit begins a commit of images of a running guest's disk into their base image. An active commit
// runs until the client calls EndBlockJob.
func BlockCommit(ctx context.Context, g *machine.Guest, sc scope.Scope, disk string, o CommitOptions) error {
	return g.Perform(ctx, sc, "", domain.JobModify, machine.ModifyLimit, func() (machine.Work, error) {
		r, err := connectedInstance(g)
		if err != nil {
			return nil, err
		}
		d := statistics.FindDiskByName(r.Definition, disk)
		if d == nil {
			return nil, invalidCall("disk '%s' not found in domain", disk)
		}
		if op, _ := diskJobs(r, func(j *diskJob) bool { return j.Target == d.Target }); op != nil && op.Status().State < operation.Unanswered {
			return nil, fault.New(fault.Busy, fault.Device, "disk '%s' already in active block job", d.Target)
		}
		if d.CopyOnRead == device.On {
			return nil, fault.New(fault.Unsupported, fault.Call, "a commit of a disk with copy_on_read is not supported (disk %s)", d.Target)
		}
		s, err := findCommit(d, o)
		if err != nil {
			return nil, err
		}
		c := newBlockCommit(r, d, s, o)
		return func(ctx context.Context, sc scope.Scope) (machine.Settle, error) {
			if err := admitCommit(ctx, g, sc, c, o.Relative); err != nil {
				return nil, err
			}
			return nil, r.Perform(ctx, sc, BlockCommitKind.Name, c, c.objects()...)
		}, nil
	})
}

// newBlockCommit makes the payload of a commit of the images in s.
func newBlockCommit(r *machine.Instance, d *device.Disk, s commitRange, o CommitOptions) *blockCommit {
	images := d.Images()
	at := func(place int) machine.LentImage {
		return machine.LentImage{Number: images[place].Index, Path: images[place].Path(), Format: formatAt(d, place)}
	}
	c := &blockCommit{
		diskJob: diskJob{Target: d.Target, Job: "commit-" + d.Target + "-" + qemu.FormatNode(images[s.top].Index), Path: d.Source.Path(), Kind: "commit"},
		Active:  s.isActive(), Speed: o.Speed, Base: at(s.base), Block: images[s.base].Block != "", r: r, disk: d, span: s,
	}
	for place := s.top; place < s.base; place++ {
		c.Gone = append(c.Gone, at(place))
	}
	c.Lent = []machine.LentImage{c.Base}
	if c.Active {
		c.Kind = "active-commit"
		return c
	}
	above := at(s.top - 1)
	if c.Above = &above; s.top > 1 { // otherwise it is the active image, which is writable
		c.Lent = append(c.Lent, above)
	}
	return c
}

// objects returns the disk and the lent images, which no other operation may use at the same time.
func (c *blockCommit) objects() []string {
	all := []string{"disk/" + c.Target}
	for _, w := range c.Lent {
		all = append(all, ImageObject(w.Number))
	}
	return all
}

// admitCommit refuses images with other users. It also computes the new backing file name of the image
// above.
func admitCommit(ctx context.Context, g *machine.Guest, sc scope.Scope, c *blockCommit, relative bool) error {
	chain, err := provision.OpenCheckedChain(ctx, g.Reg, sc, c.r, g.View().PathLimits, c.disk)
	if err != nil {
		return err
	}
	defer chain.Close()
	above := ""
	if c.Above != nil {
		above = c.Above.Path
		if c.Was, c.Will, err = backingNames(chain, c.span, relative); err != nil {
			return err
		}
	}
	return hotplug.CheckSoleUser(ctx, g, sc, c.disk, chain[c.span.top:c.span.base+1], above)
}

// backingNames returns the backing file reference of the image above, before and after the commit.
func backingNames(chain image.Chain, s commitRange, relative bool) (was, will image.Backing, err error) {
	if chain[s.top-1].Backing == nil {
		return was, will, fault.New(fault.WrongState, fault.Volume, "%s has no backing file", chain[s.top-1].Path)
	}
	was, will.Format = *chain[s.top-1].Backing, chain[s.base].Format
	will.Name, err = chain.NameBelow(s.top-1, s.base, relative)
	return was, will, err
}

// lend gives QEMU write access to images that it has open for reading.
func (c *blockCommit) lend(ctx context.Context) error {
	for _, w := range c.Lent {
		place := slices.Index(c.disk.Nodes(), w.Number)
		if err := provision.LendToWrite(ctx, c.r.Guest, c.op.Scope(), c.r, c.disk, place); err != nil {
			return err
		}
	}
	return nil
}

// takeBack withdraws that write access.
func (c *blockCommit) takeBack(ctx context.Context) error {
	return takeBackImages(ctx, c.r, c.op.Scope(), c.Lent)
}

// start begins the job in QEMU.
func (c *blockCommit) start(ctx context.Context) error {
	job := qemu.Commit{
		Job: c.Job, Device: qemu.TopNode(c.disk), Top: c.Gone[0].Number, Base: c.Base.Number, Backing: c.Will.Name, Speed: c.Speed,
	}
	if err := hotplug.ExecuteSteps(ctx, c.r, []qemu.Step{job.Start()}); err != nil {
		return err
	}
	return c.showMirror(ctx, "")
}

// cancel ends the job without changing the chain.
func (c *blockCommit) cancel(ctx context.Context) error {
	if err := cancelJob(ctx, c.r, c.Job); err != nil {
		return err
	}
	return c.showMirror(ctx, noMirror)
}

// noMirror makes showMirror remove the mirror.
const noMirror = "none"

// showMirror shows the base in the live definition as the mirror of the active image. Only an active commit
// has one.
func (c *blockCommit) showMirror(ctx context.Context, ready string) error {
	if !c.Active {
		return nil
	}
	return c.r.InLoop(ctx, func(g *machine.Guest) error {
		g.SetActive(func(def *domain.Definition) {
			d := statistics.FindDiskByName(def, c.Target)
			if d == nil {
				return
			}
			if d.Mirror = nil; ready != noMirror {
				d.Mirror = &device.Mirror{Job: "active-commit", Ready: ready, Source: c.newSource(), Format: c.Base.Format}
			}
		})
		return nil
	})
}

// newSource returns the base image as the source of a disk.
func (c *blockCommit) newSource() *device.DiskSource {
	if c.Block {
		return &device.DiskSource{Block: c.Base.Path, Index: c.Base.Number}
	}
	return &device.DiskSource{File: c.Base.Path, Index: c.Base.Number}
}

// checkCopied checks whether all data is copied and, for an active commit, whether a client has asked to pivot.
func (c *blockCommit) checkCopied(ctx context.Context) error {
	job, err := findJob(ctx, c.r, c.Job)
	switch {
	case err != nil:
		return err
	case job == nil:
		return fault.New(fault.Failed, fault.Device, "the block job on disk '%s' is gone: QEMU no longer knows it", c.Target)
	case job.Status == qemu.JobConcluded:
		return fault.New(fault.Failed, fault.Device, "the block job on disk '%s' failed: %s", c.Target, provision.Printable(job.Error))
	case job.Status == qemu.JobPending: // an earlier daemon told it to complete
		return nil
	case c.Active && job.Status == qemu.JobReady:
		if c.pivotAsked.Load() {
			return nil
		}
		if err := c.showMirror(ctx, "yes"); err != nil {
			return err
		}
		c.announceReady(c.r)
		return operation.ErrWaiting
	}
	if err := c.showMirror(ctx, ""); err != nil {
		return err
	}
	return operation.ErrWaiting
}

// pause stops the guest for the pivot and journals first that it was running.
func (c *blockCommit) pause(ctx context.Context) error {
	s, err := c.r.Monitor()
	if err != nil {
		return err
	}
	var now struct{ Status string }
	if err := s.Execute(ctx, "query-status", nil, &now); err != nil || now.Status != "running" {
		return err // a guest that a client has paused stays paused
	}
	c.Ran = true
	if err := c.op.Save(); err != nil {
		return err
	}
	return s.Execute(ctx, "stop", nil, nil)
}

// resume resumes the vCPUs if the guest was running before the pivot.
func (c *blockCommit) resume(ctx context.Context) error {
	if !c.Ran {
		return nil
	}
	s, err := c.r.Monitor()
	if err != nil {
		return err
	}
	return machine.ResumeOnce(ctx, s)
}

// unpause resumes the guest of a commit that did not pivot and waits again. It does so once, because a
// client may pause the guest later.
func (c *blockCommit) unpause(ctx context.Context) error {
	if err := c.resume(ctx); err != nil || !c.Ran {
		return err
	}
	c.Ran = false
	return c.op.Save()
}

// complete brings the job to the pending state: only the change of the chain is left.
func (c *blockCommit) complete(ctx context.Context) error {
	job, err := completeJob(ctx, c.r, c.Job)
	if err == nil && (job == nil || job.Status != qemu.JobPending) {
		err = c.pivotError(job)
	}
	return err
}

// pivotError returns the error of a job that failed during the pivot. job is nil if QEMU no longer knows it.
func (c *blockCommit) pivotError(job *qemu.Job) error {
	why := "QEMU no longer knows it"
	if job != nil {
		why = provision.Printable(job.Error)
	}
	return fault.New(fault.Failed, fault.Device, "block job '%s' failed while pivoting: %s", c.Job, why)
}

// store makes the stored definition name the base image, and syncs it to the disk.
func (c *blockCommit) store(ctx context.Context) error {
	return c.r.InLoop(ctx, func(g *machine.Guest) error {
		return provision.FollowOnce(g, c.op.Scope(), c.op.ID(), func(config *domain.Definition) (*domain.Definition, error) {
			d := statistics.FindDiskByName(config, c.Target)
			if d == nil || d.Source == nil {
				return config, nil
			}
			if path, _, err := provision.Source(g.Reg, d); err != nil || path != c.Gone[0].Path { // the stored definition names another image by now
				return config, nil
			}
			if c.Stored == nil {
				c.Stored = &storedImage{d.Source, d.Format, d.Backing, d.BackingSaid}
				if err := c.op.Save(); err != nil {
					return nil, err
				}
			}
			source := c.newSource()
			source.Index, source.SecLabels = 0, d.Source.SecLabels
			d.Source, d.Format = source, c.Base.Format
			d.Backing, d.BackingSaid = belowImage(d.Backing, c.Base.Path)
			return config, nil
		})
	})
}

// storedImage holds the fields of a stored definition that describe a disk's image.
type storedImage struct {
	Source      *device.DiskSource
	Format      string
	Backing     []device.BackingLayer
	BackingSaid bool
}

// belowImage returns the layers below the image at path, as a definition lists them. said is false if the
// definition does not list that image.
func belowImage(layers []device.BackingLayer, path string) (below []device.BackingLayer, said bool) {
	i := slices.IndexFunc(layers, func(l device.BackingLayer) bool { return l.Source.Path() == path })
	if i < 0 {
		return nil, false
	}
	return layers[i+1:], true
}

// probe reports whether the decisive step of a commit has happened.
func (c *blockCommit) probe(ctx context.Context, gone operation.Gone) (operation.Verdict, error) {
	var followed, shown bool
	err := c.r.InLoop(ctx, func(g *machine.Guest) error {
		followed = c.Active && g != nil && slices.Contains(g.Record.Followed, c.op.ID())
		d := statistics.FindDiskByName(c.r.Definition, c.Target)
		shown = d != nil && !slices.Contains(d.Nodes(), c.Gone[0].Number)
		return nil
	})
	switch {
	case err != nil:
		return operation.Never, err
	case followed || shown:
		return operation.Happened, nil
	case gone != operation.Nothing && c.Active:
		return operation.Never, nil
	case gone != operation.Nothing:
		return c.probeHeader(ctx, c.op.Scope())
	}
	job, err := findJob(ctx, c.r, c.Job)
	switch {
	case err != nil:
		return operation.Never, err
	case job == nil && c.Active:
		return operation.Never, nil
	case job == nil: // it has not begun, or its daemon dismissed it and could not record the new chain
		return c.probeHeader(ctx, c.op.Scope())
	case job.Status != qemu.JobConcluded:
		return operation.NotYet, nil
	case job.Error == "":
		return operation.Happened, nil
	}
	return operation.Never, nil
}

// finalize lets QEMU change its chain.
func (c *blockCommit) finalize(ctx context.Context) error {
	job, err := finalizeJob(ctx, c.r, c.Job)
	if err == nil && job != nil && job.Error != "" {
		err = c.pivotError(job)
	}
	return err
}

// pivot lets QEMU replace the image that the guest writes by the base. If QEMU refuses, the stored
// definition is restored before the guest resumes.
func (c *blockCommit) pivot(ctx context.Context) error {
	job, err := completeJob(ctx, c.r, c.Job)
	if err == nil {
		job, err = finalizeJob(ctx, c.r, c.Job)
	}
	if err != nil || job == nil || job.Error == "" {
		return err
	}
	c.Failed = job.Error
	if err := c.op.Save(); err != nil {
		return err
	}
	if err := c.restoreStored(ctx); err != nil {
		return err
	}
	return operation.Final(c.pivotError(job))
}

// restoreStored restores the disk of the stored definition, unless it was changed since.
func (c *blockCommit) restoreStored(ctx context.Context) error {
	return c.r.InLoop(ctx, func(g *machine.Guest) error {
		if g == nil || g.Inactive == nil || c.Stored == nil {
			return nil
		}
		config := g.Inactive.Clone()
		d := statistics.FindDiskByName(config, c.Target)
		if d == nil || d.Source.Path() != c.Base.Path {
			return nil
		}
		d.Source, d.Format, d.Backing, d.BackingSaid = c.Stored.Source, c.Stored.Format, c.Stored.Backing, c.Stored.BackingSaid
		return provision.Redefine(g, config)
	})
}

// define shows the shortened chain in the live definition, and in the stored one if that lists the chain.
func (c *blockCommit) define(ctx context.Context) error {
	if c.Failed != "" {
		return c.showMirror(ctx, noMirror)
	}
	if !provision.IsOver(c.r) && c.Active && c.r.Labels != nil {
		f, err := machine.OpenNamed(ctx, c.op.Scope(), c.Base.Path, unix.O_RDWR)
		if err != nil {
			return err
		}
		err = c.r.Labels.KeepWritable(ctx, c.Base.Number, f)
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return c.r.InLoop(ctx, func(g *machine.Guest) error {
		if g == nil {
			return nil
		}
		if g.Instance == c.r && !provision.IsOver(c.r) {
			g.SetActive(func(def *domain.Definition) { c.shorten(statistics.FindDiskByName(def, c.Target)) })
			g.WriteActive()
		}
		c.completed = true
		if c.Active { // the stored definition was changed by the step store
			return nil
		}
		return c.shortenStored(c.op.Scope(), g)
	})
}

// shortenStored removes the committed images from the chain in the stored definition, if that lists one.
func (c *blockCommit) shortenStored(sc scope.Scope, g *machine.Guest) error {
	if g.Inactive == nil {
		return nil
	}
	d := statistics.FindDiskByName(g.Inactive, c.Target)
	if d == nil || d.Source == nil || !d.BackingSaid {
		return nil
	}
	return provision.FollowOnce(g, sc, c.op.ID(), func(config *domain.Definition) (*domain.Definition, error) {
		d := statistics.FindDiskByName(config, c.Target)
		d.Backing = slices.DeleteFunc(slices.Clone(d.Backing), func(l device.BackingLayer) bool {
			return l.Source != nil && slices.ContainsFunc(c.Gone, func(w machine.LentImage) bool { return w.Path == l.Source.Path() })
		})
		return config, nil
	})
}

// shorten removes the committed images from a running guest's disk.
func (c *blockCommit) shorten(d *device.Disk) {
	if d == nil {
		return
	}
	d.Mirror = nil
	numbers := d.Nodes()
	s := commitRange{slices.Index(numbers, c.Gone[0].Number), slices.Index(numbers, c.Base.Number)}
	if s.top < 0 || s.base <= s.top {
		return // it was shortened before
	}
	labels := d.Source.SecLabels
	dropCommitted(d, s)
	d.Source.SecLabels = labels
}

// closeImages closes the committed images in QEMU and withdraws the write access that was lent.
func (c *blockCommit) closeImages(ctx context.Context) error {
	if c.Failed != "" {
		return c.takeBack(ctx)
	}
	if c.Above != nil {
		if err := c.settleBackingNote(ctx, c.op.Scope()); err != nil {
			return err
		}
	}
	lent := c.Lent
	if c.Active && !provision.IsOver(c.r) { // the guest writes to it from now on; QEMU's file descriptor set is no longer needed
		lent = nil
		if err := closeLentFiles(ctx, c.r, c.Base); err != nil {
			return err
		}
	}
	if err := dropImages(ctx, c.r, c.Gone); err != nil {
		return err
	}
	return takeBackImages(ctx, c.r, c.op.Scope(), lent)
}

// dismiss removes the concluded job from QEMU: the job keeps the committed images open.
func (c *blockCommit) dismiss(ctx context.Context) error { return dismissJob(ctx, c.r, c.Job) }

// noteBacking makes Lodge accept either backing file name in the image above, because QEMU is about to change it.
func (c *blockCommit) noteBacking(ctx context.Context) error {
	return onImage(ctx, c.op.Scope(), *c.Above, func(f *os.File) error { return image.RecordRebase(f, c.Was, c.Will) })
}

// dropBackingNote removes the note: only the old backing file name is accepted again.
func (c *blockCommit) dropBackingNote(ctx context.Context) error {
	return onImage(ctx, c.op.Scope(), *c.Above, func(f *os.File) error { return image.FinishRebase(f, image.Format(c.Above.Format), c.Was) })
}

// settleBackingNote ends the note after the commit: only the new backing file name is accepted.
func (c *blockCommit) settleBackingNote(ctx context.Context, sc scope.Scope) error {
	err := onImage(ctx, sc, *c.Above, func(f *os.File) error { return image.FinishRebase(f, image.Format(c.Above.Format), c.Will) })
	if fault.Is(err, fault.Denied) { // its header names another file by now; the note keeps that one from being used
		return operation.Final(err)
	}
	return err
}

// probeHeader reads from the header of the image above whether the commit happened.
func (c *blockCommit) probeHeader(ctx context.Context, sc scope.Scope) (verdict operation.Verdict, err error) {
	err = onImage(ctx, sc, *c.Above, func(f *os.File) error {
		info, err := image.Inspect(f, image.Format(c.Above.Format))
		if err == nil && info.Backing != nil && info.Backing.Name == c.Will.Name {
			verdict = operation.Happened
		}
		return err
	})
	return verdict, err
}

// onImage opens an image for reading and calls do with it. An image that was removed is skipped without an
// error.
func onImage(ctx context.Context, sc scope.Scope, w machine.LentImage, do func(*os.File) error) error {
	f, err := machine.OpenNamed(ctx, sc, w.Path, unix.O_RDONLY)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot open %s: %w", w.Path, err)
	}
	defer f.Close()
	return fsguard.Run(ctx, w.Path, func() error { return do(f) })
}
