package guest

import (
	"cmp"
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/event"
	"github.com/lodge-kvm/lodge/internal/word/scope"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// MetadataKind is the kind of a guest's metadata.
type MetadataKind string

// The kinds: the description, the title, or an element of the user's own, identified by the URI of its
// namespace.
const (
	Description MetadataKind = "description"
	Title       MetadataKind = "title"
	Element     MetadataKind = "element"
)

// SetMetadata sets or, with a nil value, removes a piece of metadata. key is the prefix of an element's
// namespace.
func (g *Guest) SetMetadata(ctx context.Context, sc scope.Scope, kind MetadataKind, value *string, key, uri string, a Affect) error {
	return g.ChangeMetadata(ctx, sc, kind, func(*domain.Definition) (*string, error) { return value, nil }, key, uri, a)
}

// ChangeMetadata is SetMetadata with a value computed from the guest's present definition: the stored one,
// if there is one. to is called in the guest's loop and must not block.
func (g *Guest) ChangeMetadata(ctx context.Context, sc scope.Scope, kind MetadataKind, to func(*domain.Definition) (*string, error), key, uri string, a Affect) error {
	set := func() (work, error) {
		a, err := g.resolve(a)
		if err != nil {
			return nil, err
		}
		value, err := to(g.current())
		if err != nil {
			return nil, err
		}
		changed := func(d *domain.Definition) (*domain.Definition, error) {
			d = d.Clone()
			return d, setMetadata(d, kind, value, key, uri)
		}
		return g.setWords(sc, a, changed, event.DomainMetadata{Kind: string(kind), URI: uri})
	}
	if a.Live || !a.Config { // as a job: no other change is half done, and no save has the old text
		return g.perform(ctx, sc, "", domain.JobModify, modifyLimit, set)
	}
	return g.change(ctx, sc, "", func() error { _, err := set(); return err })
}

// setWords changes metadata and announces it. It runs in the loop.
func (g *Guest) setWords(sc scope.Scope, a Affect, changed func(*domain.Definition) (*domain.Definition, error), said event.DomainMetadata) (_ work, err error) {
	var config, after *domain.Definition
	if a.Config {
		if config, err = changed(g.inactive); err != nil {
			return nil, err
		}
	}
	if a.Live {
		if after, err = changed(g.run.def); err != nil {
			return nil, err
		}
		if _, err := g.run.text(after); err != nil {
			return nil, err
		}
	}
	if err := g.bounded(sc, cmp.Or(config, after)); err != nil { // labels belong to the stored definition, if there is one
		return nil, err
	}
	switch {
	case a.Live && a.Config:
		return g.update(&update{Words: &said}, after, config)
	case a.Config:
		err = g.redefine(config)
	default:
		err = g.setActiveWords(after)
	}
	if err == nil {
		g.announce(said)
	}
	return nil, err
}

// setActiveWords changes the running definition only.
func (g *Guest) setActiveWords(after *domain.Definition) error {
	before, text := g.run.def, g.run.XML
	g.run.def = after
	if err := g.journalActive(); err != nil {
		g.run.def, g.run.XML = before, text
		return err
	}
	g.publish()
	return nil
}

func setMetadata(d *domain.Definition, kind MetadataKind, value *string, key, uri string) error {
	text := ""
	if value != nil {
		text = *value
	}
	if err := xmltree.CheckText(text + key + uri); err != nil {
		return fault.Wrap(err, fault.Invalid, fault.Metadata, "cannot set a domain's %s", kind)
	}
	switch kind {
	case Description:
		d.Description = text
	case Title:
		return d.SetTitle(text)
	case Element:
		changed, err := xmltree.SetMetadataElement(d.Metadata, uri, key, text)
		if err != nil {
			return err
		}
		d.Metadata = changed
	}
	return nil
}

// Metadata returns a piece of metadata.
func (g *Guest) Metadata(kind MetadataKind, uri string, a Affect) (string, error) {
	def, err := g.definition(a)
	if err != nil {
		return "", err
	}
	text := ""
	switch kind {
	case Description:
		text = def.Description
	case Title:
		text = def.Title
	case Element:
		if text, _, err = xmltree.MetadataElement(def.Metadata, uri); err != nil {
			return "", err
		}
	}
	if text == "" {
		return "", fault.New(fault.NotFound, fault.Metadata, "no domain %s%s", kind, ofURI(uri))
	}
	return text, nil
}

func ofURI(uri string) string {
	if uri == "" {
		return ""
	}
	return " for namespace " + uri
}

// definition returns the definition that a reader asks for.
func (g *Guest) definition(a Affect) (*domain.Definition, error) {
	v := g.View()
	switch {
	case a.Live && v.Active == nil:
		return nil, fault.New(fault.WrongState, fault.Domain, "domain is not running")
	case a.Config && v.Inactive == nil:
		return nil, fault.New(fault.WrongState, fault.Domain, "transient domains do not have any persistent config")
	case a.Config:
		return v.Inactive, nil
	case v.Current() == nil: // its first definition is in progress
		return nil, errGone(v.Name)
	}
	return v.Current(), nil
}
