package fleet

import (
	"context"
	"fmt"
	"hash/fnv"
	"strings"

	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/guest"
)

// tuning is one guest being set.
type tuning struct {
	ctx   context.Context
	fleet *Fleet
	g     *guest.Guest
	want  *settings
	sees  func(Member) bool // nil: every guest
}

// set makes a guest what the settings say, as far as it is not that already.
func (f *Fleet) set(ctx context.Context, g *guest.Guest, s *settings, sees func(Member) bool) Result {
	m := f.Of(g)
	if m.Problem != "" {
		return Result{Error: unreadable(m)}
	}
	changes, err := s.changes(m.View, m.Marks)
	if err != nil {
		return Result{Error: err}
	}
	if len(changes) == 0 {
		return Result{Outcome: Unchanged}
	}
	t := &tuning{ctx: ctx, fleet: f, g: g, want: s, sees: sees}
	var notes []string
	for i, c := range changes {
		note, err := c.make(t)
		if err != nil {
			err = fmt.Errorf("cannot set %s of domain %q: %w", c.what, m.View.Name, err)
			if i > 0 {
				notes = append(notes, "set before that: "+describe(changes[:i]))
			}
			return Result{Error: err, Note: strings.Join(notes, "; ")}
		}
		if note != "" {
			notes = append(notes, note)
		}
	}
	return Result{Note: strings.Join(notes, "; ")}
}

// hold lets one at a time change a guest's marks, which are read and then written
// whole. Guests share a few places, so that nothing has to be given back when
// they go; a place is held while a guest's loop answers, which never waits.
func (f *Fleet) hold(ctx context.Context, uuid string) (release func(), err error) {
	h := fnv.New32a()
	_, _ = h.Write([]byte(uuid))
	turn := f.turns[h.Sum32()%uint32(len(f.turns))]
	select {
	case turn <- struct{}{}:
		return func() { <-turn }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("waited for another change of marks: %w", context.Cause(ctx))
	}
}

// everywhere is what runs and what the next start makes, whichever there is.
func everywhere(v *guest.View) guest.Affect {
	return guest.Affect{Live: v.Active != nil, Config: v.Inactive != nil}
}

// describeWith changes one of a guest's descriptions, wherever there is one. A
// guest that starts or ends meanwhile is asked once more.
func (t *tuning) describeWith(kind guest.MetadataKind, value, uri string) error {
	said := &value
	if value == "" {
		said = nil
	}
	err := t.g.SetMetadata(t.ctx, kind, said, prefix, uri, everywhere(t.g.View()))
	if fault.Is(err, fault.WrongState) {
		err = t.g.SetMetadata(t.ctx, kind, said, prefix, uri, everywhere(t.g.View()))
	}
	return err
}

func (t *tuning) title() (string, error) {
	return "", t.describeWith(guest.Title, *t.want.title, "")
}

func (t *tuning) description() (string, error) {
	return "", t.describeWith(guest.Description, *t.want.description, "")
}

func (t *tuning) marks() (string, error) {
	release, err := t.fleet.hold(t.ctx, t.g.UUID())
	if err != nil {
		return "", err
	}
	defer release()
	m := t.fleet.Of(t.g) // as the one before left it
	if m.Problem != "" {
		return "", unreadable(m)
	}
	marks, _, err := t.want.on(m.View.Name, m.Marks)
	if err != nil {
		return "", err
	}
	doc, err := marks.document()
	if err != nil {
		return "", err
	}
	return "", t.describeWith(guest.Element, doc, Namespace)
}

func (t *tuning) autostart() (string, error) {
	return "", t.g.SetAutostart(t.ctx, *t.want.autostart)
}

func (t *tuning) template() (string, error) {
	if !*t.want.template {
		return "", t.fleet.release(t.ctx, t.g, t.sees)
	}
	return "", t.g.MakeTemplate(t.ctx)
}

// memory sets the memory and its maximum in the definition, and what a running
// guest has of it as far as its own maximum goes.
func (t *tuning) memory() (string, error) {
	want, v := *t.want.memory, t.g.View()
	if d := v.Inactive; d != nil {
		config := guest.Affect{Config: true}
		if d.Memory != want {
			if err := t.g.SetMaxMemory(t.ctx, want, config); err != nil {
				return "", err
			}
		}
		if d.CurrentMemory != want {
			if err := t.g.SetMemory(t.ctx, want, config); err != nil {
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
	return "", t.g.SetMemory(t.ctx, want, guest.Affect{Live: true})
}

// vcpus sets the count and, where it is higher than that, the maximum.
func (t *tuning) vcpus() (string, error) {
	want, v := *t.want.vcpus, t.g.View()
	if d := v.Inactive; d != nil {
		config := guest.Affect{Config: true}
		if d.VCPUs.Max < want {
			if err := t.g.SetVCPUs(t.ctx, want, guest.VCPUOptions{Affect: config, Maximum: true}); err != nil {
				return "", err
			}
		}
		if d.VCPUs.Current != want {
			if err := t.g.SetVCPUs(t.ctx, want, guest.VCPUOptions{Affect: config}); err != nil {
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
	return "", t.g.SetVCPUs(t.ctx, want, guest.VCPUOptions{Affect: guest.Affect{Live: true}})
}

// atNextStart says that a running guest cannot follow yet; one that will never
// start again cannot at all.
func (t *tuning) atNextStart(v *guest.View, what string) (string, error) {
	if v.Inactive == nil {
		return "", fault.New(fault.WrongState, fault.Domain, "domain %q is transient and cannot take it while it runs", v.Name)
	}
	return what + " of the running guest changes with its next start", nil
}
