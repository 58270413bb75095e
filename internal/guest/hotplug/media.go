package hotplug

import (
	"context"
	"fmt"
	"slices"

	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/guest/filelabel"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/guest/statistics"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/event"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// MediaKind changes the medium of a drive. QEMU decides whether it happened: its drive reads the new node,
// or it does not.
var MediaKind = operation.Kind[*machine.Instance]{
	Name: "media", Version: 1, Class: operation.Change,
	Steps: []string{"label", "open", "insert", "close", "define", "forget"}, Undo: []string{"label", "open"},
	Bind: func(r *machine.Instance) operation.Work { return &MediaOp{r: r} },
}

// MediaOp is the journalled payload.
type MediaOp struct {
	Live  string        // the drive's XML with the new medium
	Saved string        `json:",omitempty"` // the same in the stored definition; empty: unchanged
	Node  string        `json:",omitempty"` // the node that the drive reads afterwards; empty: none
	Old   []uint        `json:",omitempty"` // the numbers of the images that QEMU must close then
	Undo  []UndoCommand `json:",omitempty"` // in the order of the steps that they undo
	Rest  []UndoCommand `json:",omitempty"` // commands that follow once the drive has the node

	r           *machine.Instance
	op          *operation.Operation
	live, saved *device.Disk // Live and Saved, parsed; saved may be nil
	plan        *qemu.Plan   // known only to the daemon that began it
	steps       []qemu.Step  // the same; the decisive one is at insert
	insert      int
}

// Steps implements operation.Work.
func (m *MediaOp) Steps() []operation.Step {
	return []operation.Step{
		{Name: "label", Effect: operation.Boot, Do: m.label, Undo: m.unlabel},
		{Name: "open", Effect: operation.Process, Do: m.open, Undo: m.undoSteps},
		{Name: "insert", Effect: operation.Process, Decisive: true, Do: m.switchMedium, Probe: m.probe},
		{Name: "close", Effect: operation.Process, Do: m.close},
		{Name: "define", Effect: operation.Process, Do: m.define},
		{Name: "forget", Effect: operation.Process, Do: m.closeOldImages},
	}
}

// Opened implements operation.Opener.
func (m *MediaOp) Opened(op *operation.Operation) (err error) {
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
func (m *MediaOp) Rehold() { reserveNode(m.r, m.live) }

// planMedia plans to change the medium of a drive, in the running guest and, if config is not nil, in
// config.
func planMedia(g *machine.Guest, before, after *device.Disk, config *domain.Definition, force bool) (machine.Work, error) {
	r, def := g.Instance, g.Instance.Definition
	m := &MediaOp{r: r, live: after}
	if after.Source != nil {
		after.Source.Index = 0 // whatever the client sent
	}
	assignNode(r, def, after)
	if config != nil {
		saved, err := machine.FindMatching(&config.Devices, after)
		if err != nil {
			return nil, err
		}
		m.saved = saved.(*device.Disk)
	}
	with := def.Clone()
	if err := updateIn(&with.Devices, after); err != nil {
		return nil, err
	}
	if _, err := r.FormatForRecord(with); err != nil {
		return nil, err
	}
	return func(ctx context.Context, sc scope.Scope) (machine.Settle, error) {
		return nil, changeMedia(ctx, g, sc, m, def, before, force)
	}, nil
}

// changeMedia changes the medium of a drive. With force it also opens a tray that the guest has locked.
func changeMedia(ctx context.Context, g *machine.Guest, sc scope.Scope, m *MediaOp, def *domain.Definition, before *device.Disk, force bool) error {
	if _, err := m.r.Monitor(); err != nil {
		return err
	}
	caps, err := g.Reg.Emulators.Get(ctx, def.Devices.Emulator)
	if err != nil {
		return err
	}
	m.plan = &qemu.Plan{Definition: def, Capabilities: caps, Dir: provision.OwnPath(m.r), Disks: map[string]device.DiskAttachment{}}
	defer provision.ClosePlan(m.plan)
	a, present, err := provision.FindDisk(ctx, g.Reg, sc, m.r, m.live)
	if err != nil {
		return err
	}
	if present {
		m.plan.Disks[m.live.Alias] = a
		m.r.ShowChain(m.live, a)
	}
	if m.steps, err = qemu.ChangeMedia(m.plan, before, m.live, force); err != nil {
		return err
	}
	if err := m.completePayload(before); err != nil {
		return err
	}
	return m.r.Perform(ctx, sc, MediaKind.Name, m, "disk/"+m.live.Target)
}

// completePayload completes the payload with the commands that undo and finish the change.
func (m *MediaOp) completePayload(before *device.Disk) (err error) {
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
		u, err := NewUndoCommand(step)
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

func (m *MediaOp) label(ctx context.Context) error {
	return m.r.Labels.Admit(ctx, m.plan, m.live, nil)
}

func (m *MediaOp) unlabel(ctx context.Context) error {
	return m.r.Labels.GiveBack(ctx, filelabel.OwnerOf(m.live))
}

// open makes the new medium's node in QEMU and removes the old medium.
func (m *MediaOp) open(ctx context.Context) error { return ExecuteSteps(ctx, m.r, m.steps[:m.insert]) }

// switchMedium sends QEMU the decisive step.
func (m *MediaOp) switchMedium(ctx context.Context) error {
	return ExecuteSteps(ctx, m.r, m.steps[m.insert:m.insert+1])
}

func (m *MediaOp) undoSteps(ctx context.Context) error { return undoAll(ctx, m.r, m.Undo) }

// probe asks which node the drive reads.
func (m *MediaOp) probe(ctx context.Context, _ operation.Gone) (operation.Verdict, error) {
	s, err := m.r.Monitor()
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
func (m *MediaOp) close(ctx context.Context) error {
	s, err := m.r.Monitor()
	if err != nil {
		return err
	}
	for _, u := range m.Rest {
		if err := retryWhileInUse(ctx, s, u); machine.NoAnswer(err) {
			return err
		} else if err != nil {
			m.r.Log.Debug("step of a medium change is done already", "command", u.Command, "cause", err)
		}
	}
	return nil
}

// define puts the new medium into the live definition and, if asked, into the stored one.
func (m *MediaOp) define(ctx context.Context) error {
	return m.r.InLoop(ctx, func(g *machine.Guest) error {
		var old *device.DiskSource
		if disk, is := m.r.Definition.Devices.ByAlias(m.live.Alias).(*device.Disk); is {
			old = disk.Source
		}
		var err error
		g.SetActive(func(d *domain.Definition) { err = updateIn(&d.Devices, m.live) })
		if err != nil {
			return operation.Final(err)
		}
		g.WriteActive()
		g.Announce(event.DomainMediaChange{OldPath: old.Path(), NewPath: m.live.Source.Path(), Alias: m.live.Alias, Reason: "updated"})
		if m.saved == nil {
			return nil
		}
		return provision.FollowOnce(g, m.op.Scope(), m.op.ID(), func(config *domain.Definition) (*domain.Definition, error) {
			return config, updateIn(&config.Devices, m.saved)
		})
	})
}

// closeOldImages closes the images of the old medium in QEMU. A paused QEMU closes them when it runs; a cleanup
// waits for that.
func (m *MediaOp) closeOldImages(ctx context.Context) error {
	if len(m.Old) == 0 {
		return nil
	}
	s, err := m.r.Monitor()
	var kept bool
	if err == nil {
		kept, err = CloseImages(ctx, s, m.Old)
	}
	if err == nil && !kept {
		if err := m.r.Labels.GiveBack(ctx, filelabel.ImageOwner(m.Old...)); err != nil {
			m.r.Log.Warn("cannot restore the label of a medium's image", "disk", m.live.Target, "error", err)
		}
		return nil
	}
	rest, err := m.r.Ops.ForceBegin(scope.Daemon("giving back what a device leaves"), CleanupKind.Name, &CleanupOp{R: m.r, Images: m.Old, For: filelabel.ImageOwner(m.Old...)}, operation.Record{})
	if err == nil {
		m.r.Ops.Wake(rest)
	}
	return err
}

// mediumIn asks which node a drive reads. Empty: the drive has no medium.
func mediumIn(ctx context.Context, s *qmp.Session, alias string) (string, error) {
	var drives []statistics.QEMUBlock
	if err := s.Execute(ctx, "query-block", nil, &drives); err != nil {
		return "", err
	}
	i := slices.IndexFunc(drives, func(b statistics.QEMUBlock) bool { return statistics.BelongsTo(b.QDev, alias) })
	if i < 0 || drives[i].Inserted == nil {
		return "", nil
	}
	return drives[i].Inserted.NodeName, nil
}
