package rpc

import (
	"reflect"

	"github.com/lodge-kvm/lodge/internal/control/authz"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// auditObject returns the object for a call's line in the audit: the object that it made, else
// the object that it names, else the object that its document would have made.
func (c *AuthorizedCall) auditObject(ret xdr.Message, failure error) authz.Resource {
	named := c.objects
	if failure == nil && c.right.Strongest() > authz.Read && c.s.Authorizer() != nil {
		if made := c.s.objects(ret); len(made) > 0 {
			named = made
		}
	}
	o := authz.Resource{}
	if len(named) > 0 {
		o = named[0]
	}
	if failure != nil && o.Part == "" && (o.Name == "" || c.right.Strongest() == authz.Volumes) {
		o = documentObject(c.args, o)
	}
	return o
}

// documentKinds are the kinds of objects by the root elements of their documents.
var documentKinds = map[string]authz.Kind{"domain": authz.Guest, "network": authz.Network, "pool": authz.Pool}

// documentObject returns the object that the document among a call's arguments would have made; for a
// volume, in the pool that the call names. Without such a document it returns the object unchanged.
func documentObject(args xdr.Message, on authz.Resource) authz.Resource {
	if args == nil {
		return on
	}
	EachText(reflect.ValueOf(args).Elem(), "", func(field, text string) bool {
		if !IsDocument(field, text) {
			return true
		}
		root, err := xmltree.Parse(text)
		if err != nil {
			return false // no object has a name from it
		}
		name := root.Child("name").Text()
		kind, known := documentKinds[root.Name]
		switch {
		case root.Name == "volume" && on.Kind == authz.Pool:
			on.Part = name
		case known && on.Name == "":
			on = authz.Resource{Kind: kind, Name: name}
		}
		return false
	})
	return on
}
