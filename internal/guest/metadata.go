package guest

import (
	"cmp"
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
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
func SetMetadata(ctx context.Context, g *machine.Guest, sc scope.Scope, kind MetadataKind, value *string, key, uri string, a machine.Affect) error {
	return ChangeMetadata(ctx, g, sc, kind, func(*domain.Definition) (*string, error) { return value, nil }, key, uri, a)
}

// ChangeMetadata is SetMetadata with a value computed from the guest's present definition: the stored one,
// if there is one. to is called in the guest's loop and must not block.
func ChangeMetadata(ctx context.Context, g *machine.Guest, sc scope.Scope, kind MetadataKind, to func(*domain.Definition) (*string, error), key, uri string, a machine.Affect) error {
	set := func() (machine.Work, error) {
		a, err := hotplug.Resolve(g, a)
		if err != nil {
			return nil, err
		}
		value, err := to(provision.CurrentDefinition(g))
		if err != nil {
			return nil, err
		}
		changed := func(d *domain.Definition) (*domain.Definition, error) {
			d = d.Clone()
			return d, setMetadata(d, kind, value, key, uri)
		}
		return applyMetadata(g, sc, a, changed, event.DomainMetadata{Kind: string(kind), URI: uri})
	}
	if a.Live || !a.Config { // as a job: no other change is half done, and no save has the old text
		return g.Perform(ctx, sc, "", domain.JobModify, machine.ModifyLimit, set)
	}
	return g.Change(ctx, sc, "", func() error { _, err := set(); return err })
}

// applyMetadata changes metadata and announces it. It runs in the loop.
func applyMetadata(g *machine.Guest, sc scope.Scope, a machine.Affect, changed func(*domain.Definition) (*domain.Definition, error), said event.DomainMetadata) (_ machine.Work, err error) {
	var config, after *domain.Definition
	if a.Config {
		if config, err = changed(g.Inactive); err != nil {
			return nil, err
		}
	}
	if a.Live {
		if after, err = changed(g.Instance.Definition); err != nil {
			return nil, err
		}
		if _, err := g.Instance.FormatForRecord(after); err != nil {
			return nil, err
		}
	}
	if err := g.ReserveQuota(sc, cmp.Or(config, after)); err != nil { // labels belong to the stored definition, if there is one
		return nil, err
	}
	switch {
	case a.Live && a.Config:
		return hotplug.UpdateWith(g, &hotplug.UpdateOp{Words: &said}, after, config)
	case a.Config:
		err = provision.Redefine(g, config)
	default:
		err = applyActiveMetadata(g, after)
	}
	if err == nil {
		g.Announce(said)
	}
	return nil, err
}

// applyActiveMetadata changes the running definition only.
func applyActiveMetadata(g *machine.Guest, after *domain.Definition) error {
	before, text := g.Instance.Definition, g.Instance.XML
	g.Instance.Definition = after
	if err := g.WriteActiveNow(); err != nil {
		g.Instance.Definition, g.Instance.XML = before, text
		return err
	}
	g.Publish()
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
func Metadata(g *machine.Guest, kind MetadataKind, uri string, a machine.Affect) (string, error) {
	def, err := g.Definition(a)
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
		return "", fault.New(fault.NotFound, fault.Metadata, "no domain %s%s", kind, inNamespace(uri))
	}
	return text, nil
}

func inNamespace(uri string) string {
	if uri == "" {
		return ""
	}
	return " for namespace " + uri
}
