package guest

import (
	"cmp"
	"context"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fairqueue"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemucaps"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/event"
	"github.com/lodge-kvm/lodge/internal/word/scope"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// Define makes or replaces a persistent definition from libvirt's domain XML. The definition is on disk
// when Define returns.
func (r *Registry) Define(ctx context.Context, sc scope.Scope, doc string, validate bool) (*Guest, error) {
	if err := sc.Check(); err != nil {
		return nil, err
	}
	u, err := r.understand(ctx, doc, validate)
	if err != nil {
		return nil, err
	}
	return r.claimed(ctx, u.plain.Name, u.plain.UUID, func(g *Guest) error {
		return g.change(ctx, sc, "", func() error {
			if err := g.isCalled(u.plain.Name); err != nil {
				return err
			}
			def := u.after(g.current())
			if err := askBound(sc, g.uuid, def, doc); err != nil {
				return err
			}
			before := g.record.Fences
			g.fence(sc, def)
			err := g.define(def, doc)
			if err != nil {
				g.record.Fences = before
			}
			return err
		})
	})
}

// understand parses a document and completes it, by the capabilities of the QEMU that it names.
func (r *Registry) understand(ctx context.Context, doc string, validate bool) (u understood, err error) {
	var def *domain.Definition
	err = fairqueue.Do(ctx, func() (err error) {
		def, err = domainxml.Parse(doc, domainxml.Options{Validate: validate, Submitted: true})
		return err
	})
	if err != nil {
		return u, err
	}
	caps, err := r.Emulators.Get(ctx, cmp.Or(def.Devices.Emulator, r.Emulators.Serving(def.OS.Arch)))
	if err != nil {
		return u, err
	}
	return u, fairqueue.Do(ctx, func() error {
		if err := r.checkLabels(def); err != nil {
			return err
		}
		gives := r.GiveRNG && lacksRNG(def)
		if err := domainxml.Complete(def, completion(caps)); err != nil {
			return err
		}
		if err := def.Check(); err != nil {
			return err
		}
		if err := r.chooseFirmware(def); err != nil {
			return err
		}
		if err := qemu.Complete(def, caps); err != nil {
			return err
		}
		u.plain = def
		if gives {
			u.given = withRNG(def, caps)
		}
		return nil
	})
}

// completion returns what the defaults of a definition depend on in QEMU.
func completion(c *qemucaps.Capabilities) *domainxml.Host {
	canonical := func(machine string) string {
		if m, known := c.Machine(machine); known {
			return m.Name
		}
		return machine
	}
	h := &domainxml.Host{Canonical: canonical, Emulator: c.Binary.Path}
	for _, m := range c.Machines {
		if m.Default {
			h.CPUModel = strings.TrimSuffix(m.DefaultCPUType, "-"+c.Arch+"-cpu")
		}
	}
	return h
}

// define stores a definition. It runs in the loop.
func (g *Guest) define(def *domain.Definition, doc string) error {
	text, err := domainxml.Format(def, domainxml.Style{Secure: true, Settled: true})
	if err != nil {
		return err
	}
	before, old := g.inactive, g.record
	g.inactive, g.record.Submitted, g.record.XML = def, doc, text
	g.unfence(def)
	if err := g.keep(); err != nil {
		g.inactive, g.record = before, old
		return err
	}
	g.state.Persistent = true
	if g.run == nil {
		g.state.Policy = policy(def)
	}
	g.markUpdated()
	g.publish()
	detail := event.DetailUpdated
	if before == nil {
		detail = event.DetailAdded
	}
	g.announce(event.DomainChange{Change: event.Defined, Detail: detail})
	if before == nil {
		g.tellDecisions()
	}
	for _, clash := range g.reg.Clashes(g.View(), nil) {
		g.log.Warn("guest defined with a property of another guest", "message", clash)
	}
	return nil
}

// markUpdated records that the next start will differ from the running guest.
func (g *Guest) markUpdated() {
	if g.run != nil {
		g.run.Updated = true
		g.keepRun()
	}
}

// redefine stores a changed inactive definition. It runs in the loop.
func (g *Guest) redefine(def *domain.Definition) error {
	text, err := domainxml.Format(def, domainxml.Style{Secure: true})
	if err != nil {
		return err
	}
	before, old := g.inactive, g.record
	g.inactive, g.record.XML, g.record.Name = def, text, def.Name
	g.unfence(def)
	if err := g.keep(); err != nil {
		g.inactive, g.record = before, old
		return err
	}
	if g.run == nil {
		g.state.Policy = policy(def)
	}
	g.markUpdated()
	g.publish()
	return nil
}

func policy(d *domain.Definition) lifecycle.Policy {
	return lifecycle.Policy{OnPoweroff: d.OnPoweroff, OnReboot: d.OnReboot, OnCrash: d.OnCrash}
}

// forgetIfNothing removes a guest after a failure that followed its claim: it is neither defined nor
// running nor starting, as far as is known.
func (g *Guest) forgetIfNothing() {
	if g.inactive == nil && g.run == nil && g.job == nil && g.quarantine == "" {
		g.forget()
	}
}

// UndefineOptions say what else is removed with a definition, or kept.
type UndefineOptions struct{ ManagedSave, Snapshots, Checkpoints, NVRAM, KeepNVRAM, TPM, KeepTPM bool }

// Undefine removes the persistent definition. A running guest becomes transient.
func (g *Guest) Undefine(ctx context.Context, sc scope.Scope, o UndefineOptions) error {
	leave, err := g.reg.removing.take(ctx, g.uuid)
	if err != nil {
		return fault.Wrap(err, fault.Of(err), fault.Domain, "cannot undefine domain %q yet", g.Name())
	}
	defer leave()
	u, err := g.newUndefinition(ctx, sc, o)
	if err != nil {
		return err
	}
	return g.reg.undefine(ctx, sc, u)
}

// nvramFile returns the path of the guest's UEFI variables. Empty: there are none.
func (g *Guest) nvramFile(ctx context.Context, sc scope.Scope) (string, error) {
	def := g.View().Inactive
	if def == nil || def.OS.NVRAM.Path == "" || def.OS.NVRAM.Type == "block" { // a block device is not a file of the guest
		return "", nil
	}
	there, err := fileExists(ctx, sc, def.OS.NVRAM.Path)
	if !there && !fault.Is(err, fault.Denied) { // otherwise it is a link, which is removed as such
		return "", err
	}
	return def.OS.NVRAM.Path, nil
}

// dropDefinition removes the definition from the store. It runs in the loop.
func (g *Guest) dropDefinition(o UndefineOptions, nvram string) error {
	if err := g.admitUndefine(o, nvram); err != nil {
		return err
	}
	inactive := g.inactive
	tighten, err := g.loosen(o)
	if err != nil {
		return err
	}
	g.inactive = nil
	if err := g.keep(); err != nil {
		g.inactive = inactive
		tighten()
		return err
	}
	if g.record.ManagedSave {
		g.record.ManagedSave = false
		g.removeManagedSave()
	}
	if g.run == nil {
		g.giveUpRevival() // the next guest of this UUID has not crashed
	}
	g.state.Persistent, g.record.Autostart, g.record.AutostartOnce = false, false, false
	g.keepRun()
	g.announce(event.DomainChange{Change: event.Undefined, Detail: event.DetailRemoved})
	g.publish()
	g.forgetIfNothing()
	return nil
}

// loosen records in the run record, before the store forgets the guest, that a running guest becomes
// transient. It does so for a guest that has just ended, too. Otherwise the next daemon would find a
// persistent guest without a stored definition, and take it for lost. tighten reverts this.
func (g *Guest) loosen(o UndefineOptions) (tighten func(), err error) {
	r := g.run
	if r == nil {
		if g.unstored != nil { // what the run record said must be in the store first
			if err := g.keep(); err != nil {
				return nil, err
			}
		}
		return func() {}, g.outdate(false)
	}
	def, before := r.def, r.runRecord
	back := func() { g.state.Persistent, r.def, r.runRecord = true, def, before }
	g.state.Persistent = false
	r.KeepTPM, r.MadeNVRAM = o.KeepTPM, r.MadeNVRAM && !o.KeepNVRAM
	err = g.keepMarks()
	if err == nil {
		err = g.journalActive()
	}
	if err != nil {
		back()
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot record that domain %q is being undefined", r.Name)
	}
	return func() { back(); g.keepActive() }, nil
}

// keepMarks copies the guest's marks from the stored definition, which is removed, to the live one. The
// marks that the guest was started with may name another owner.
func (g *Guest) keepMarks() error {
	was, is := g.run.def, g.inactive
	if !strings.Contains(was.Metadata+is.Metadata, MarksNamespace) {
		return nil
	}
	doc, _, err := xmltree.MetadataElement(is.Metadata, MarksNamespace)
	if err != nil {
		return err
	}
	def := was.Clone()
	def.Metadata, err = xmltree.SetMetadataElement(was.Metadata, MarksNamespace, "lodge", doc)
	g.run.def = def
	return err
}

// admitUndefine refuses to remove or to leave anything that the options do not mention. nvram is the path
// of the UEFI variables, which was looked up before the task ran; empty: none.
func (g *Guest) admitUndefine(o UndefineOptions, nvram string) error {
	if g.record.ManagedSave && !o.ManagedSave {
		return fault.New(fault.WrongState, fault.Domain,
			"refusing to undefine while domain managed save image exists; remove it first, or undefine with --managed-save")
	}
	if o.TPM && g.run != nil {
		return fault.New(fault.WrongState, fault.Domain, "cannot remove the TPM's state while the domain is running")
	}
	switch {
	case nvram == "":
	case nvram != g.inactive.OS.NVRAM.Path:
		return fault.New(fault.WrongState, fault.Domain, "the UEFI variables of domain %q were changed just now; try again", g.record.Name)
	case !o.NVRAM && !o.KeepNVRAM:
		return fault.New(fault.WrongState, fault.Domain,
			"cannot undefine domain with nvram %s; use --nvram to remove it or --keep-nvram to keep it", nvram)
	}
	return nil
}

// SetAutostart sets whether the guest starts with the host.
func (g *Guest) SetAutostart(ctx context.Context, sc scope.Scope, on bool) error {
	return g.setAutostart(ctx, sc, func(r *record) { r.Autostart = on })
}

// SetAutostartOnce sets whether the guest starts with the next start of the host only.
func (g *Guest) SetAutostartOnce(ctx context.Context, sc scope.Scope, on bool) error {
	return g.setAutostart(ctx, sc, func(r *record) { r.AutostartOnce = on })
}

func (g *Guest) setAutostart(ctx context.Context, sc scope.Scope, set func(*record)) error {
	return g.change(ctx, sc, lifecycle.Autostart, func() error {
		before := g.record
		set(&g.record)
		if err := g.keep(); err != nil {
			g.record = before
			return err
		}
		g.publish()
		return nil
	})
}

// Rename renames a guest that is shut off.
func (g *Guest) Rename(ctx context.Context, sc scope.Scope, name string) error {
	if err := domain.CheckName(name); err != nil {
		return err
	}
	// It runs as a job, so that no start is in progress.
	return g.perform(ctx, sc, lifecycle.Rename, domain.JobModify, modifyLimit, func() (work, error) { return nil, g.rename(sc, name) })
}

// rename stores the new name and announces it. During the change the guest has both names. It runs in the
// loop.
func (g *Guest) rename(sc scope.Scope, name string) error {
	if g.inactive == nil {
		return fault.New(fault.WrongState, fault.Domain, "cannot rename a transient domain")
	}
	if g.record.ManagedSave {
		return fault.New(fault.WrongState, fault.Domain, "cannot rename a domain with a managed save image; start it or remove the image first")
	}
	def := g.inactive.Clone()
	def.Name = name
	if err := g.bounded(sc, def); err != nil {
		return err
	}
	from := g.record.Name
	if err := g.reg.addName(g, name); err != nil {
		return err
	}
	if err := g.redefine(def); err != nil {
		g.reg.dropName(name)
		return err
	}
	g.reg.dropName(from)
	g.reg.events.Append(event.Source{Name: from, UUID: g.uuid, ID: g.id()}, event.DomainChange{Change: event.Undefined, Detail: event.DetailRenamed})
	g.announce(event.DomainChange{Change: event.Defined, Detail: event.DetailRenamed})
	return nil
}
