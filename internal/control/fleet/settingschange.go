package fleet

import (
	"context"
	"fmt"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// settingsChange applies settings to one guest.
type settingsChange struct {
	ctx   context.Context
	scope scope.Scope
	fleet *Fleet
	guest *guest.Guest
	want  *settings
	sees  func(Member) bool // nil: every guest
}

// applySettings applies the settings that differ from the guest's state.
func (f *Fleet) applySettings(ctx context.Context, sc scope.Scope, g *guest.Guest, s *settings, sees func(Member) bool) Result {
	m := f.MemberOf(g)
	if m.Problem != "" {
		return Result{Error: marksError(m)}
	}
	changes, err := s.changes(m.View, m.Marks)
	if err != nil {
		return Result{Error: err}
	}
	if len(changes) == 0 {
		return Result{Outcome: Unchanged}
	}
	t := &settingsChange{ctx: ctx, scope: sc, fleet: f, guest: g, want: s, sees: sees}
	var notes []string
	for i, c := range changes {
		note, err := c.apply(t)
		if err != nil {
			err = fmt.Errorf("cannot set %s of domain %q: %w", c.setting, m.View.Name, err)
			if i > 0 {
				notes = append(notes, "set before that: "+settingNames(changes[:i]))
			}
			return Result{Error: err, Note: strings.Join(notes, "; ")}
		}
		if note != "" {
			notes = append(notes, note)
		}
	}
	return Result{Note: strings.Join(notes, "; ")}
}

// allDefinitions is the active and the stored definition, as far as they exist.
func allDefinitions(v *guest.View) machine.Affect {
	return machine.Affect{Live: v.Active != nil, Config: v.Inactive != nil}
}

// changeMetadata changes one of a guest's metadata texts in all its definitions. If the guest starts or ends
// meanwhile, it tries once more.
func (t *settingsChange) changeMetadata(kind guest.MetadataKind, text func(*domain.Definition) (string, error), uri string) error {
	to := func(d *domain.Definition) (*string, error) {
		value, err := text(d)
		if value == "" {
			return nil, err
		}
		return &value, err
	}
	err := guest.ChangeMetadata(t.ctx, t.guest, t.scope, kind, to, prefix, uri, allDefinitions(t.guest.View()))
	if fault.Is(err, fault.WrongState) {
		err = guest.ChangeMetadata(t.ctx, t.guest, t.scope, kind, to, prefix, uri, allDefinitions(t.guest.View()))
	}
	return err
}

// constantText returns text for any definition.
func constantText(text string) func(*domain.Definition) (string, error) {
	return func(*domain.Definition) (string, error) { return text, nil }
}

func (t *settingsChange) title() (string, error) {
	return "", t.changeMetadata(guest.Title, constantText(*t.want.title), "")
}

func (t *settingsChange) description() (string, error) {
	return "", t.changeMetadata(guest.Description, constantText(*t.want.description), "")
}

// marks changes the marks that the guest has at that moment: other clients may have changed them, or defined
// the guest again.
func (t *settingsChange) marks() (string, error) {
	return "", t.changeMetadata(guest.Element, func(d *domain.Definition) (string, error) {
		now, err := ReadMarks(d.Metadata)
		if err != nil {
			return "", marksError(Member{View: &guest.View{Name: d.Name}, Problem: err.Error()})
		}
		marks, _, err := t.want.apply(d.Name, now)
		if err != nil {
			return "", err
		}
		return marks.document()
	}, Namespace)
}

func (t *settingsChange) autostart() (string, error) {
	return "", guest.SetAutostart(t.ctx, t.guest, t.scope, *t.want.autostart)
}

func (t *settingsChange) template() (string, error) {
	if !*t.want.template {
		return "", t.fleet.endTemplate(t.ctx, t.scope, t.guest, t.sees)
	}
	return "", t.guest.MakeTemplate(t.ctx, t.scope)
}

// memory sets the memory and its maximum in the stored definition. It also sets the memory of a running guest,
// up to that guest's maximum.
func (t *settingsChange) memory() (string, error) {
	want, v := *t.want.memory, t.guest.View()
	if d := v.Inactive; d != nil {
		config := machine.Affect{Config: true}
		if d.Memory != want {
			if err := hotplug.SetMaxMemory(t.ctx, t.guest, t.scope, want, config); err != nil {
				return "", err
			}
		}
		if d.CurrentMemory != want {
			if err := hotplug.SetMemory(t.ctx, t.guest, t.scope, want, config); err != nil {
				return "", err
			}
		}
	}
	d := v.Active
	switch {
	case d == nil || d.CurrentMemory == want:
		return "", nil
	case want > d.Memory || d.Devices.Balloon == nil || d.Devices.Balloon.Model == "none":
		return t.atNextStart(v, "memory")
	}
	return "", hotplug.SetMemory(t.ctx, t.guest, t.scope, want, machine.Affect{Live: true})
}

// vcpus sets the number of vCPUs, and raises the maximum if needed.
func (t *settingsChange) vcpus() (string, error) {
	want, v := *t.want.vcpus, t.guest.View()
	if d := v.Inactive; d != nil {
		config := machine.Affect{Config: true}
		if d.VCPUs.Max < want {
			if err := hotplug.SetVCPUs(t.ctx, t.guest, t.scope, want, hotplug.VCPUOptions{Affect: config, Maximum: true}); err != nil {
				return "", err
			}
		}
		if d.VCPUs.Current != want {
			if err := hotplug.SetVCPUs(t.ctx, t.guest, t.scope, want, hotplug.VCPUOptions{Affect: config}); err != nil {
				return "", err
			}
		}
	}
	d := v.Active
	switch {
	case d == nil || d.VCPUs.Current == want:
		return "", nil
	case want > d.VCPUs.Max || want < d.VCPUs.Current && d.Virt != "kvm":
		return t.atNextStart(v, "vcpus")
	}
	return "", hotplug.SetVCPUs(t.ctx, t.guest, t.scope, want, hotplug.VCPUOptions{Affect: machine.Affect{Live: true}})
}

// atNextStart says that a setting takes effect at the next start. A transient guest has no next start, so it
// is refused.
func (t *settingsChange) atNextStart(v *guest.View, what string) (string, error) {
	if v.Inactive == nil {
		return "", fault.New(fault.WrongState, fault.Domain, "domain %q is transient and cannot take it while it runs", v.Name)
	}
	return what + " of the running guest changes with its next start", nil
}
