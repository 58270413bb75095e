package network

import (
	"context"
	"errors"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/event"
	"github.com/lodge-kvm/lodge/internal/word/scope"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// Text is a description in a network's definition, for people or programs.
type Text string

// The texts, with libvirt's words.
const (
	TextDescription Text = "description"
	TextTitle       Text = "title"
	TextElement     Text = "element"
)

// Metadata returns a text of a network; an element is found by its namespace.
func (n *Network) Metadata(t Text, uri string, s Affect) (string, error) {
	v := n.View()
	d := v.current()
	switch {
	case s.Live && v.Live == nil:
		return "", fault.New(fault.WrongState, fault.Network, "network %q is not active", n.name)
	case s.Config && v.Config == nil:
		return "", fault.New(fault.WrongState, fault.Network, "network %q is transient and has no stored definition", n.name)
	case s.Config:
		d = v.Config
	}
	found := ""
	switch t {
	case TextDescription:
		found = d.Description
	case TextTitle:
		found = d.Title
	case TextElement:
		var err error
		if found, _, err = xmltree.MetadataElement(d.Metadata, uri); err != nil {
			return "", err
		}
	}
	if found == "" {
		return "", fault.New(fault.NotFound, fault.Metadata, "network %q has no such %s", n.name, t)
	}
	return found, nil
}

// SetMetadata sets a text of a network; an empty one removes it. An element is found by its namespace and
// stored with prefix.
func (n *Network) SetMetadata(ctx context.Context, sc scope.Scope, t Text, text, prefix, uri string, s Affect) error {
	if err := sc.Check(); err != nil {
		return err
	}
	err := n.edit(ctx, sc, s, func(d Definition) (_ Definition, err error) {
		switch t {
		case TextDescription:
			d.Description = text
		case TextTitle:
			d.Title = text
		case TextElement:
			d.Metadata, err = xmltree.SetMetadataElement(d.Metadata, uri, prefix, text)
		}
		return d, errors.Join(err, d.checkNames())
	})
	if err == nil {
		n.networks.Events.Append(n.source(), event.NetworkMetadata{Kind: string(t), URI: uri})
	}
	return err
}
