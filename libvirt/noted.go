package libvirt

import (
	"reflect"

	"github.com/lodge-kvm/lodge/access"
	"github.com/lodge-kvm/lodge/markup"
	"github.com/lodge-kvm/lodge/xdr"
)

// about is the object of a call's line in the audit: what it made, else what it names, else
// what its document would have made.
func (c *permission) about(ret xdr.Message, failure error) access.Object {
	named := c.objects
	if failure == nil && c.right.last() > access.Read && c.s.gate() != nil {
		if made := c.s.objects(ret); len(made) > 0 {
			named = made
		}
	}
	o := access.Object{}
	if len(named) > 0 {
		o = named[0]
	}
	if failure != nil && o.Part == "" && (o.Name == "" || c.right.last() == access.Volumes) {
		o = wanted(c.args, o)
	}
	return o
}

// documentKinds are the sorts of objects by the roots of their documents.
var documentKinds = map[string]access.Kind{"domain": access.Guest, "network": access.Network, "pool": access.Pool}

// wanted is what the document among a call's arguments would have made, on an object.
func wanted(args xdr.Message, on access.Object) access.Object {
	if args == nil {
		return on
	}
	eachText(reflect.ValueOf(args).Elem(), "", func(field, text string) bool {
		if !isDocument(field, text) {
			return true
		}
		root, err := markup.Parse(text)
		if err != nil {
			return false // it would have made nothing that has a name
		}
		name := root.Child("name").Text()
		kind, known := documentKinds[root.Name]
		switch {
		case root.Name == "volume" && on.Kind == access.Pool:
			on.Part = name
		case known && on.Name == "":
			on = access.Object{Kind: kind, Name: name}
		}
		return false
	})
	return on
}
