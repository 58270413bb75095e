package guest

import (
	"context"
	"fmt"
	"slices"

	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/event"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// mediaKind changes the medium of a drive. QEMU decides whether it happened: its drive reads the new node,
// or it does not.
var mediaKind = operation.Kind[*run]{
	Name: "media", Version: 1, Class: operation.Change,
	Steps: []string{"label", "open", "insert", "close", "define", "forget"}, Undo: []string{"label", "open"},
	Bind: func(r *run) operation.Work { return &mediaChange{r: r} },
}

// mediaChange is the journalled payload.
type mediaChange struct {
	Live  string    // the drive's XML with the new medium
	Saved string    `json:",omitempty"` // the same in the stored definition; empty: unchanged
	Node  string    `json:",omitempty"` // the node that the drive reads afterwards; empty: none
	Old   []uint    `json:",omitempty"` // the numbers of the images that QEMU must close then
	Undo  []undoing `json:",omitempty"` // in the order of the steps that they undo
	Rest  []undoing `json:",omitempty"` // commands that follow once the drive has the node

	r           *run
	op          *operation.Operation
	live, saved *device.Disk // Live and Saved, parsed; saved may be nil
	plan        *qemu.Plan   // known only to the daemon that began it
	steps       []qemu.Step  // the same; the decisive one is at insert
	insert      int
}

// Steps implements operation.Work.
func (m *mediaChange) Steps() []operation.Step {
	return []operation.Step{
		{Name: "label", Effect: operation.Boot, Do: m.label, Undo: m.unlabel},
		{Name: "open", Effect: operation.Process, Do: m.open, Undo: m.takeBack},
		{Name: "insert", Effect: operation.Process, Decisive: true, Do: m.exchange, Probe: m.probe},
		{Name: "close", Effect: operation.Process, Do: m.close},
		{Name: "define", Effect: operation.Process, Do: m.define},
		{Name: "forget", Effect: operation.Process, Do: m.forget},
	}
}

// Opened implements operation.Opener.
func (m *mediaChange) Opened(op *operation.Operation) (err error) {
	m.op = op
	if m.live != nil {
		return nil
	}
	if m.live, err = parseDrive(m.Live); err != nil {
		return err
	}
	if m.Saved != "" {
		m.saved, err = parseDrive(m.Saved)
	}
	return err
}

// Rehold reserves the number of the new medium's node.
func (m *mediaChange) Rehold() { m.r.notesNode(m.live) }

// planMedia plans to change the medium of a drive, in the running guest and, if config is not nil, in
// config.
func (g *Guest) planMedia(before, after *device.Disk, config *domain.Definition, force bool) (work, error) {
	r, def := g.run, g.run.def
	m := &mediaChange{r: r, live: after}
	if after.Source != nil {
		after.Source.Index = 0 // whatever the client sent
	}
	r.numberNode(def, after)
	if config != nil {
		saved, err := findLike(&config.Devices, after)
		if err != nil {
			return nil, err
		}
		m.saved = saved.(*device.Disk)
	}
	with := def.Clone()
	if err := updateIn(&with.Devices, after); err != nil {
		return nil, err
	}
	if _, err := r.text(with); err != nil {
		return nil, err
	}
	return func(ctx context.Context, sc scope.Scope) (settle, error) {
		return nil, g.changeMedia(ctx, sc, m, def, before, force)
	}, nil
}

// changeMedia changes the medium of a drive. With force it also opens a tray that the guest has locked.
func (g *Guest) changeMedia(ctx context.Context, sc scope.Scope, m *mediaChange, def *domain.Definition, before *device.Disk, force bool) error {
	if _, err := m.r.monitor(); err != nil {
		return err
	}
	caps, err := g.reg.Emulators.Get(ctx, def.Devices.Emulator)
	if err != nil {
		return err
	}
	m.plan = &qemu.Plan{Definition: def, Capabilities: caps, Dir: m.r.ownPath(), Disks: map[string]device.DiskAttachment{}}
	defer closePlan(m.plan)
	a, present, err := g.reg.findDisk(ctx, sc, m.r, m.live)
	if err != nil {
		return err
	}
	if present {
		m.plan.Disks[m.live.Alias] = a
		m.r.showChain(m.live, a)
	}
	if m.steps, err = qemu.ChangeMedia(m.plan, before, m.live, force); err != nil {
		return err
	}
	if err := m.note(before); err != nil {
		return err
	}
	return m.r.perform(ctx, sc, mediaKind.Name, m, "disk/"+m.live.Target)
}

// note completes the payload with the commands that undo and finish the change.
func (m *mediaChange) note(before *device.Disk) (err error) {
	if m.Live, err = domainxml.FormatDevice(m.live, domainxml.Style{Active: true, Secure: true}); err != nil {
		return err
	}
	if m.saved != nil {
		if m.Saved, err = domainxml.FormatDevice(m.saved, domainxml.Style{Secure: true}); err != nil {
			return err
		}
	}
	m.Old = before.Nodes()
	decides := "blockdev-remove-medium"
	if m.live.Source != nil {
		m.Node, decides = qemu.TopNode(m.live), "blockdev-insert-medium"
	}
	m.insert = slices.IndexFunc(m.steps, func(s qemu.Step) bool { return s.Command == decides })
	for i := range m.steps {
		step := &m.steps[i]
		if i <= m.insert {
			step = step.Undo
		}
		if step == nil {
			continue
		}
		u, err := newUndoing(step)
		if err != nil {
			return err
		}
		if i <= m.insert {
			m.Undo = append(m.Undo, u)
		} else {
			m.Rest = append(m.Rest, u)
		}
	}
	return nil
}

func parseDrive(doc string) (*device.Disk, error) {
	dev, err := domainxml.ParseDevice(doc, domainxml.Options{Active: true})
	if err != nil {
		return nil, err
	}
	disk, is := dev.(*device.Disk)
	if !is {
		return nil, fmt.Errorf("a %s is not a drive", dev.Kind())
	}
	return disk, nil
}

func (m *mediaChange) label(ctx context.Context) error {
	return m.r.labels.admit(ctx, m.plan, m.live, nil)
}

func (m *mediaChange) unlabel(ctx context.Context) error {
	return m.r.labels.giveBack(ctx, ownerOf(m.live))
}

// open makes the new medium's node in QEMU and removes the old medium.
func (m *mediaChange) open(ctx context.Context) error { return m.r.tell(ctx, m.steps[:m.insert]) }

// exchange sends QEMU the decisive step.
func (m *mediaChange) exchange(ctx context.Context) error {
	return m.r.tell(ctx, m.steps[m.insert:m.insert+1])
}

func (m *mediaChange) takeBack(ctx context.Context) error { return m.r.takeBack(ctx, m.Undo) }

// probe asks which node the drive reads.
func (m *mediaChange) probe(ctx context.Context, _ operation.Gone) (operation.Verdict, error) {
	s, err := m.r.monitor()
	if err != nil {
		return operation.Never, err
	}
	node, err := mediumIn(ctx, s, m.live.Alias)
	if err != nil || node != m.Node {
		return operation.Never, err
	}
	return operation.Happened, nil
}

// close removes the old medium's node from QEMU and closes the tray. A refusal by QEMU means that it was
// done before.
func (m *mediaChange) close(ctx context.Context) error {
	s, err := m.r.monitor()
	if err != nil {
		return err
	}
	for _, u := range m.Rest {
		if err := insist(ctx, s, u); noAnswer(err) {
			return err
		} else if err != nil {
			m.r.log.Debug("step of a medium change is done already", "command", u.Command, "cause", err)
		}
	}
	return nil
}

// define puts the new medium into the live definition and, if asked, into the stored one.
func (m *mediaChange) define(ctx context.Context) error {
	return m.r.inLoop(ctx, func(g *Guest) error {
		var old *device.DiskSource
		if disk, is := m.r.def.Devices.ByAlias(m.live.Alias).(*device.Disk); is {
			old = disk.Source
		}
		var err error
		g.setActive(func(d *domain.Definition) { err = updateIn(&d.Devices, m.live) })
		if err != nil {
			return operation.Final(err)
		}
		g.keepActive()
		g.announce(event.DomainMediaChange{OldPath: old.Path(), NewPath: m.live.Source.Path(), Alias: m.live.Alias, Reason: "updated"})
		if m.saved == nil {
			return nil
		}
		return g.followOnce(m.op.Scope(), m.op.ID(), func(config *domain.Definition) (*domain.Definition, error) {
			return config, updateIn(&config.Devices, m.saved)
		})
	})
}

// forget closes the images of the old medium in QEMU. A paused QEMU closes them when it runs; a cleanup
// waits for that.
func (m *mediaChange) forget(ctx context.Context) error {
	if len(m.Old) == 0 {
		return nil
	}
	s, err := m.r.monitor()
	var kept bool
	if err == nil {
		kept, err = forgetImages(ctx, s, m.Old)
	}
	if err == nil && !kept {
		if err := m.r.labels.giveBack(ctx, imageOwner(m.Old...)); err != nil {
			m.r.log.Warn("cannot restore the label of a medium's image", "disk", m.live.Target, "error", err)
		}
		return nil
	}
	rest, err := m.r.ops.Follow(scope.Daemon("giving back what a device leaves"), cleanupKind.Name, &cleanup{r: m.r, Images: m.Old, For: imageOwner(m.Old...)}, operation.Record{})
	if err == nil {
		m.r.ops.Wake(rest)
	}
	return err
}

// mediumIn asks which node a drive reads. Empty: the drive has no medium.
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
