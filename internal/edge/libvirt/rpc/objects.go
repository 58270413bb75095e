package rpc

import (
	"reflect"
	"strings"
	"sync"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/control/authz"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/host/network"
	"github.com/lodge-kvm/lodge/internal/host/volume"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// resourceConverters are the types in messages that name an object, each with its conversion to a resource
// of the rules.
var resourceConverters = map[reflect.Type]func(*Session, any) authz.Resource{
	reflect.TypeFor[xdr.Domain](): func(s *Session, v any) authz.Resource {
		d := v.(xdr.Domain)
		return resourceByUUID(d.Name, d.UUID, s.Authorizer().GuestByUUID)
	},
	reflect.TypeFor[xdr.StoragePool](): func(s *Session, v any) authz.Resource {
		p := v.(xdr.StoragePool)
		return resourceByUUID(p.Name, p.UUID, s.Authorizer().PoolByUUID)
	},
	reflect.TypeFor[xdr.StorageVol](): func(_ *Session, v any) authz.Resource {
		named := v.(xdr.StorageVol)
		return authz.Resource{Kind: authz.Pool, Name: named.Pool, Part: named.Name}
	},
	reflect.TypeFor[xdr.Network](): func(s *Session, v any) authz.Resource {
		n := v.(xdr.Network)
		return resourceByUUID(n.Name, n.UUID, s.Authorizer().NetworkByUUID)
	},
	reflect.TypeFor[xdr.Secret](): func(_ *Session, v any) authz.Resource {
		return authz.Resource{Kind: authz.Everything, Name: "secret '" + FormatUUID(v.(xdr.Secret).UUID) + "'"}
	},
	reflect.TypeFor[xdr.NWFilter](): func(_ *Session, v any) authz.Resource {
		return authz.Resource{Kind: authz.Everything, Name: "filter '" + v.(xdr.NWFilter).Name + "'"}
	},
	reflect.TypeFor[xdr.NWFilterBinding](): func(_ *Session, v any) authz.Resource {
		return authz.Resource{Kind: authz.Everything, Name: "filter binding '" + v.(xdr.NWFilterBinding).PortDevice + "'"}
	},
}

// resourceByUUID returns the object with a UUID. The name that the client sent may differ from the object's.
func resourceByUUID(name string, id xdr.UUID, find func(uuid string) authz.Resource) authz.Resource {
	uuid := FormatUUID(id)
	o := find(uuid)
	switch {
	case o.Kind == authz.Everything:
		o.Name = name // not found: only the name that the client sent is known
	case o.Name != name:
		o.Found = "with the UUID " + uuid
	}
	return o
}

// namesObjectCache has the results of NamesObject, by reflect.Type.
var namesObjectCache sync.Map

// NamesObject reports whether a value of the type can name an object, in any part of it.
func NamesObject(t reflect.Type) bool {
	if known, ok := namesObjectCache.Load(t); ok {
		return known.(bool)
	}
	found := resourceConverters[t] != nil
	if !found {
		switch t.Kind() {
		case reflect.Pointer, reflect.Slice:
			found = NamesObject(t.Elem())
		case reflect.Struct:
			for field := range t.Fields() {
				found = found || NamesObject(field.Type)
			}
		}
	}
	namesObjectCache.Store(t, found)
	return found
}

// objects returns the objects that a message names.
func (s *Session) objects(m xdr.Message) []authz.Resource {
	if m == nil || reflect.ValueOf(m).IsNil() {
		return nil
	}
	var found []authz.Resource
	s.collectObjects(reflect.ValueOf(m).Elem(), &found)
	return found
}

func (s *Session) collectObjects(v reflect.Value, found *[]authz.Resource) {
	if !NamesObject(v.Type()) {
		return
	}
	if sort := resourceConverters[v.Type()]; sort != nil {
		*found = append(*found, sort(s, v.Interface()))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			s.collectObjects(v.Elem(), found)
		}
	case reflect.Slice:
		for i := range v.Len() {
			s.collectObjects(v.Index(i), found)
		}
	case reflect.Struct:
		for _, field := range v.Fields() {
			s.collectObjects(field, found)
		}
	}
}

// redactResult removes the objects that the client may not see from the lists in a result. It
// refuses a result that is itself such an object.
func (c *AuthorizedCall) redactResult(m xdr.Message) error {
	v := reflect.ValueOf(m)
	if v.IsNil() || !NamesObject(v.Type()) {
		return nil
	}
	v = v.Elem()
	for _, field := range v.Fields() {
		if field.Kind() == reflect.Slice && NamesObject(field.Type()) {
			c.s.filterList(v, field)
			continue
		}
		var found []authz.Resource
		c.s.collectObjects(field, &found)
		for _, o := range found {
			if !c.namedByClient(o.Name) {
				o.Found = "that it asks for"
			}
			if err := c.s.Authorizer().Check(c.s.Principal(), authz.Read, o); err != nil {
				return err
			}
		}
	}
	return nil
}

// namedByClient reports whether the call's arguments contain a name: then an error may repeat it.
func (c *AuthorizedCall) namedByClient(name string) bool {
	return c.args != nil && !EachText(reflect.ValueOf(c.args).Elem(), "", func(_, text string) bool { return text != name })
}

// filterList removes from a list of a result the objects that the client may not see, and corrects the
// result's count.
func (s *Session) filterList(result, list reflect.Value) {
	kept := reflect.MakeSlice(list.Type(), 0, list.Len())
	for i := range list.Len() {
		var found []authz.Resource
		s.collectObjects(list.Index(i), &found)
		seen := true
		for _, o := range found {
			seen = seen && s.CanSee(o)
		}
		if seen {
			kept = reflect.Append(kept, list.Index(i))
		}
	}
	before := list.Len()
	list.Set(kept)
	count := result.FieldByName("Count")
	switch {
	case !count.IsValid():
	case count.CanUint() && count.Uint() == uint64(before):
		count.SetUint(uint64(kept.Len()))
	case count.CanInt() && count.Int() == int64(before):
		count.SetInt(int64(kept.Len()))
	}
}

// CanSee reports whether the rules let the client read an object.
func (s *Session) CanSee(o authz.Resource) bool {
	return s.Authorizer().May(s.Principal(), authz.Read, o)
}

// EachText visits the strings of a message, except those that name objects, until visit
// returns false.
func EachText(v reflect.Value, field string, visit func(field, text string) bool) bool {
	if resourceConverters[v.Type()] != nil {
		return true
	}
	if p, is := reflect.TypeAssert[xdr.TypedParam](v); is { // so that "dxml" is recognized as a document by its field
		return visit(p.Field, p.Value.Text())
	}
	switch v.Kind() {
	case reflect.String:
		return visit(field, v.String())
	case reflect.Pointer, reflect.Interface:
		return v.IsNil() || EachText(v.Elem(), field, visit)
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return true
		}
		for i := range v.Len() {
			if !EachText(v.Index(i), field, visit) {
				return false
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && !EachText(v.Field(i), f.Name, visit) {
				return false
			}
		}
	}
	return true
}

// IsDocument reports whether a string is an XML document, by its field's name or by its beginning.
func IsDocument(field, text string) bool {
	return text != "" && strings.Contains(strings.ToUpper(field), "XML") || xmltree.StartsLikeXML(text)
}

// CanSeeGuest reports whether the client may see a guest. A client that no rule restricts sees all.
func (s *Session) CanSeeGuest(g *guest.Guest) bool {
	return !s.Authorizer().Restricted(s.Principal()) || s.CanSee(s.Authorizer().Guest(g))
}

// CanSeePool reports whether the client may see a pool.
func (s *Session) CanSeePool(p *volume.Pool) bool {
	return s.CanSee(authz.Resource{Kind: authz.Pool, Name: p.Name()})
}

// CanSeeNetwork reports whether the client may see a network.
func (s *Session) CanSeeNetwork(n *network.Network) bool {
	return s.CanSee(authz.Resource{Kind: authz.Network, Name: n.Name()})
}

// CanSeeNotice reports whether the client may see the object of an event.
func (s *Session) CanSeeNotice(n Notice) bool {
	if !s.Authorizer().Restricted(s.Principal()) {
		return true
	}
	switch n.Topic.Family {
	case DomainEvents:
		return s.Authorizer().CanSeeEvent(s.Principal(), n.name, n.object)
	case NetworkEvents:
		return s.CanSee(authz.Resource{Kind: authz.Network, Name: n.name})
	case PoolEvents:
		return s.CanSee(authz.Resource{Kind: authz.Pool, Name: n.name})
	case NodeDeviceEvents: // the owner of a removed link is unknown
		return !strings.HasPrefix(n.object, "net_") || s.CanSee(authz.Resource{Kind: authz.Everything})
	case SecretEvents:
		return s.CanSee(authz.Resource{Kind: authz.Everything})
	}
	return false
}

// recheckRules ends the connection, or some of its streams, if changed rules no longer allow them.
func (c *Client) recheckRules() {
	if !c.Session.authenticated() {
		return
	}
	if err := c.Server.Authorizer.Admit(c.Session.Principal()); err != nil {
		c.End(fault.Wrap(err, fault.Denied, fault.Call, "the rules have changed"))
		return
	}
	c.Streams.endDenied("")
}
