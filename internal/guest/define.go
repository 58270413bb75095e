package guest

import (
	"cmp"
	"context"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fairqueue"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/event"
	"github.com/lodge-kvm/lodge/internal/word/scope"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// Define makes or replaces a persistent definition from libvirt's domain XML. The definition is on disk
// when Define returns.
func Define(ctx context.Context, r *machine.Registry, sc scope.Scope, doc string, validate bool) (*machine.Guest, error) {
	if err := sc.Check(); err != nil {
		return nil, err
	}
	u, err := parseDefinition(ctx, r, doc, validate)
	if err != nil {
		return nil, err
	}
	return withClaimedGuest(ctx, r, u.Plain.Name, u.Plain.UUID, func(g *machine.Guest) error {
		return g.Change(ctx, sc, "", func() error {
			if err := g.CheckName(u.Plain.Name); err != nil {
				return err
			}
			def := u.Choose(provision.CurrentDefinition(g))
			if err := machine.ReserveQuota(sc, g.UUID, def, doc); err != nil {
				return err
			}
			before := g.Record.PathLimits
			provision.SetPathLimits(g, sc, def)
			err := define(g, def, doc)
			if err != nil {
				g.Record.PathLimits = before
			}
			return err
		})
	})
}

// parseDefinition parses a document and completes it, by the capabilities of the QEMU that it names.
func parseDefinition(ctx context.Context, r *machine.Registry, doc string, validate bool) (u provision.ParsedDefinition, err error) {
	var def *domain.Definition
	err = fairqueue.Do(ctx, func() (err error) {
		def, err = domainxml.Parse(doc, domainxml.Options{Validate: validate, Submitted: true})
		return err
	})
	if err != nil {
		return u, err
	}
	caps, err := r.Emulators.Get(ctx, cmp.Or(def.Devices.Emulator, r.Emulators.ForArch(def.OS.Arch)))
	if err != nil {
		return u, err
	}
	return u, fairqueue.Do(ctx, func() error {
		if err := provision.CheckLabels(r, def); err != nil {
			return err
		}
		gives := r.AddRNG && provision.LacksRNG(def)
		if err := domainxml.Complete(def, machine.HostDefaults(caps)); err != nil {
			return err
		}
		if err := def.Check(); err != nil {
			return err
		}
		if err := launch.ChooseFirmware(r, def); err != nil {
			return err
		}
		if err := qemu.Complete(def, caps); err != nil {
			return err
		}
		u.Plain = def
		if gives {
			u.WithRNG = provision.WithRNG(def, caps)
		}
		return nil
	})
}

// define stores a definition. It runs in the loop.
func define(g *machine.Guest, def *domain.Definition, doc string) error {
	text, err := domainxml.Format(def, domainxml.Style{Secure: true, Settled: true})
	if err != nil {
		return err
	}
	before, old := g.Inactive, g.Record
	g.Inactive, g.Record.Submitted, g.Record.XML = def, doc, text
	provision.DropPathLimits(g, def)
	if err := g.Store(); err != nil {
		g.Inactive, g.Record = before, old
		return err
	}
	g.State.Persistent = true
	if g.Instance == nil {
		g.State.Policy = machine.Policy(def)
	}
	g.MarkUpdated()
	g.Publish()
	detail := event.DetailUpdated
	if before == nil {
		detail = event.DetailAdded
	}
	g.Announce(event.DomainChange{Change: event.Defined, Detail: detail})
	if before == nil {
		provision.ReportDecisions(g)
	}
	for _, clash := range g.Reg.Clashes(g.View(), nil) {
		g.Log.Warn("guest defined with a property of another guest", "message", clash)
	}
	return nil
}

// forgetIfUnused removes a guest after a failure that followed its claim: it is neither defined nor
// running nor starting, as far as is known.
func forgetIfUnused(g *machine.Guest) {
	if g.Inactive == nil && g.Instance == nil && g.CurrentJob == nil && g.Quarantine == "" {
		forget(g)
	}
}

// UndefineOptions say what else is removed with a definition, or kept.
type UndefineOptions struct{ ManagedSave, Snapshots, Checkpoints, NVRAM, KeepNVRAM, TPM, KeepTPM bool }

// Undefine removes the persistent definition. A running guest becomes transient.
func Undefine(ctx context.Context, g *machine.Guest, sc scope.Scope, o UndefineOptions) error {
	leave, err := g.Reg.RemovalLocks.Lock(ctx, g.UUID)
	if err != nil {
		return fault.Wrap(err, fault.Of(err), fault.Domain, "cannot undefine domain %q yet", g.Name())
	}
	defer leave()
	u, err := newUndefineOp(ctx, g, sc, o)
	if err != nil {
		return err
	}
	return undefine(ctx, g.Reg, sc, u)
}

// nvramFile returns the path of the guest's UEFI variables. Empty: there are none.
func nvramFile(ctx context.Context, g *machine.Guest, sc scope.Scope) (string, error) {
	def := g.View().Inactive
	if def == nil || def.OS.NVRAM.Path == "" || def.OS.NVRAM.Type == "block" { // a block device is not a file of the guest
		return "", nil
	}
	there, err := machine.FileExists(ctx, sc, def.OS.NVRAM.Path)
	if !there && !fault.Is(err, fault.Denied) { // otherwise it is a link, which is removed as such
		return "", err
	}
	return def.OS.NVRAM.Path, nil
}

// dropDefinition removes the definition from the store. It runs in the loop.
func dropDefinition(g *machine.Guest, o UndefineOptions, nvram string) error {
	if err := admitUndefine(g, o, nvram); err != nil {
		return err
	}
	inactive := g.Inactive
	revert, err := recordTransient(g, o)
	if err != nil {
		return err
	}
	g.Inactive = nil
	if err := g.Store(); err != nil {
		g.Inactive = inactive
		revert()
		return err
	}
	if g.Record.ManagedSave {
		g.Record.ManagedSave = false
		savestate.RemoveUnrecordedSave(g)
	}
	if g.Instance == nil {
		g.CancelRestart() // the next guest of this UUID has not crashed
	}
	g.State.Persistent, g.Record.Autostart, g.Record.AutostartOnce = false, false, false
	g.WriteInstance()
	g.Announce(event.DomainChange{Change: event.Undefined, Detail: event.DetailRemoved})
	g.Publish()
	forgetIfUnused(g)
	return nil
}

// recordTransient records in the run record, before the store forgets the guest, that a running guest becomes
// transient. It does so for a guest that has just ended, too. Otherwise the next daemon would find a
// persistent guest without a stored definition, and take it for lost. The caller undoes this with revert.
func recordTransient(g *machine.Guest, o UndefineOptions) (revert func(), err error) {
	r := g.Instance
	if r == nil {
		if g.Unstored != nil { // the store must first have the changes that only the run record has
			if err := g.Store(); err != nil {
				return nil, err
			}
		}
		return func() {}, savestate.UpdateLeftRecord(g, false)
	}
	def, before := r.Definition, r.RunRecord
	back := func() { g.State.Persistent, r.Definition, r.RunRecord = true, def, before }
	g.State.Persistent = false
	r.KeepTPM, r.MadeNVRAM = o.KeepTPM, r.MadeNVRAM && !o.KeepNVRAM
	err = keepMarks(g)
	if err == nil {
		err = g.WriteActiveNow()
	}
	if err != nil {
		back()
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot record that domain %q is being undefined", r.Name)
	}
	return func() { back(); g.WriteActive() }, nil
}

// keepMarks copies the guest's marks from the stored definition, which is removed, to the live one. The
// marks that the guest was started with may name another owner.
func keepMarks(g *machine.Guest) error {
	was, is := g.Instance.Definition, g.Inactive
	if !strings.Contains(was.Metadata+is.Metadata, provision.MarksNamespace) {
		return nil
	}
	doc, _, err := xmltree.MetadataElement(is.Metadata, provision.MarksNamespace)
	if err != nil {
		return err
	}
	def := was.Clone()
	def.Metadata, err = xmltree.SetMetadataElement(was.Metadata, provision.MarksNamespace, "lodge", doc)
	g.Instance.Definition = def
	return err
}

// admitUndefine refuses to remove or to leave anything that the options do not mention. nvram is the path
// of the UEFI variables, which was looked up before the task ran; empty: none.
func admitUndefine(g *machine.Guest, o UndefineOptions, nvram string) error {
	if g.Record.ManagedSave && !o.ManagedSave {
		return fault.New(fault.WrongState, fault.Domain,
			"refusing to undefine while domain managed save image exists; remove it first, or undefine with --managed-save")
	}
	if o.TPM && g.Instance != nil {
		return fault.New(fault.WrongState, fault.Domain, "cannot remove the TPM's state while the domain is running")
	}
	switch {
	case nvram == "":
	case nvram != g.Inactive.OS.NVRAM.Path:
		return fault.New(fault.WrongState, fault.Domain, "the UEFI variables of domain %q were changed just now; try again", g.Record.Name)
	case !o.NVRAM && !o.KeepNVRAM:
		return fault.New(fault.WrongState, fault.Domain,
			"cannot undefine domain with nvram %s; use --nvram to remove it or --keep-nvram to keep it", nvram)
	}
	return nil
}

// SetAutostart sets whether the guest starts with the host.
func SetAutostart(ctx context.Context, g *machine.Guest, sc scope.Scope, on bool) error {
	return setAutostart(ctx, g, sc, func(r *machine.Record) { r.Autostart = on })
}

// SetAutostartOnce sets whether the guest starts with the next start of the host only.
func SetAutostartOnce(ctx context.Context, g *machine.Guest, sc scope.Scope, on bool) error {
	return setAutostart(ctx, g, sc, func(r *machine.Record) { r.AutostartOnce = on })
}

func setAutostart(ctx context.Context, g *machine.Guest, sc scope.Scope, set func(*machine.Record)) error {
	return g.Change(ctx, sc, lifecycle.Autostart, func() error {
		before := g.Record
		set(&g.Record)
		if err := g.Store(); err != nil {
			g.Record = before
			return err
		}
		g.Publish()
		return nil
	})
}

// Rename renames a guest that is shut off.
func Rename(ctx context.Context, g *machine.Guest, sc scope.Scope, name string) error {
	if err := domain.CheckName(name); err != nil {
		return err
	}
	// It runs as a job, so that no start is in progress.
	return g.Perform(ctx, sc, lifecycle.Rename, domain.JobModify, machine.ModifyLimit, func() (machine.Work, error) { return nil, rename(g, sc, name) })
}

// rename stores the new name and announces it. During the change the guest has both names. It runs in the
// loop.
func rename(g *machine.Guest, sc scope.Scope, name string) error {
	if g.Inactive == nil {
		return fault.New(fault.WrongState, fault.Domain, "cannot rename a transient domain")
	}
	if g.Record.ManagedSave {
		return fault.New(fault.WrongState, fault.Domain, "cannot rename a domain with a managed save image; start it or remove the image first")
	}
	def := g.Inactive.Clone()
	def.Name = name
	if err := g.ReserveQuota(sc, def); err != nil {
		return err
	}
	from := g.Record.Name
	if err := g.Reg.AddName(g, name); err != nil {
		return err
	}
	if err := provision.Redefine(g, def); err != nil {
		g.Reg.DropName(name)
		return err
	}
	g.Reg.DropName(from)
	g.Reg.Events.Append(event.Source{Name: from, UUID: g.UUID, ID: g.ID()}, event.DomainChange{Change: event.Undefined, Detail: event.DetailRenamed})
	g.Announce(event.DomainChange{Change: event.Defined, Detail: event.DetailRenamed})
	return nil
}
