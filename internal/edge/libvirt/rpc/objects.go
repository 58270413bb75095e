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

// sorts are the parts of messages that name an object, each with its conversion to the rules' form.
var sorts = map[reflect.Type]func(*Session, any) authz.Resource{
	reflect.TypeFor[xdr.Domain](): func(s *Session, v any) authz.Resource {
		d := v.(xdr.Domain)
		return called(d.Name, d.UUID, s.Gate().GuestByUUID)
	},
	reflect.TypeFor[xdr.StoragePool](): func(s *Session, v any) authz.Resource {
		p := v.(xdr.StoragePool)
		return called(p.Name, p.UUID, s.Gate().PoolByUUID)
	},
	reflect.TypeFor[xdr.StorageVol](): func(_ *Session, v any) authz.Resource {
		named := v.(xdr.StorageVol)
		return authz.Resource{Kind: authz.Pool, Name: named.Pool, Part: named.Name}
	},
	reflect.TypeFor[xdr.Network](): func(s *Session, v any) authz.Resource {
		n := v.(xdr.Network)
		return called(n.Name, n.UUID, s.Gate().NetworkByUUID)
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

// called is the object with a UUID. The name that the client gives may differ from the object's.
func called(name string, id xdr.UUID, find func(uuid string) authz.Resource) authz.Resource {
	uuid := FormatUUID(id)
	o := find(uuid)
	switch {
	case o.Kind == authz.Everything:
		o.Name = name // only the client's own words for it are known
	case o.Name != name:
		o.Found = "with the UUID " + uuid
	}
	return o
}

// naming says which types name objects somewhere in them; by reflect.Type.
var naming sync.Map

// Names says whether a value of the type can name an object.
func Names(t reflect.Type) bool {
	if known, ok := naming.Load(t); ok {
		return known.(bool)
	}
	found := sorts[t] != nil
	if !found {
		switch t.Kind() {
		case reflect.Pointer, reflect.Slice:
			found = Names(t.Elem())
		case reflect.Struct:
			for field := range t.Fields() {
				found = found || Names(field.Type)
			}
		}
	}
	naming.Store(t, found)
	return found
}

// objects gives the objects that a message names.
func (s *Session) objects(m xdr.Message) []authz.Resource {
	if m == nil || reflect.ValueOf(m).IsNil() {
		return nil
	}
	var found []authz.Resource
	s.collect(reflect.ValueOf(m).Elem(), &found)
	return found
}

func (s *Session) collect(v reflect.Value, found *[]authz.Resource) {
	if !Names(v.Type()) {
		return
	}
	if sort := sorts[v.Type()]; sort != nil {
		*found = append(*found, sort(s, v.Interface()))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			s.collect(v.Elem(), found)
		}
	case reflect.Slice:
		for i := range v.Len() {
			s.collect(v.Index(i), found)
		}
	case reflect.Struct:
		for _, field := range v.Fields() {
			s.collect(field, found)
		}
	}
}

// veil removes objects that the client may not see from the lists in a result. It
// refuses a result that is itself such an object.
func (c *Permission) veil(m xdr.Message) error {
	v := reflect.ValueOf(m)
	if v.IsNil() || !Names(v.Type()) {
		return nil
	}
	v = v.Elem()
	for _, field := range v.Fields() {
		if field.Kind() == reflect.Slice && Names(field.Type()) {
			c.s.thin(v, field)
			continue
		}
		var found []authz.Resource
		c.s.collect(field, &found)
		for _, o := range found {
			if !c.names(o.Name) {
				o.Found = "that it asks for"
			}
			if err := c.s.Gate().Check(c.s.Who(), authz.Read, o); err != nil {
				return err
			}
		}
	}
	return nil
}

// names says whether the client itself wrote a name in the call's arguments.
func (c *Permission) names(name string) bool {
	return c.args != nil && !EachText(reflect.ValueOf(c.args).Elem(), "", func(_, text string) bool { return text != name })
}

// thin removes from a list the objects that the client may not see, and corrects the count.
func (s *Session) thin(of, list reflect.Value) {
	kept := reflect.MakeSlice(list.Type(), 0, list.Len())
	for i := range list.Len() {
		var found []authz.Resource
		s.collect(list.Index(i), &found)
		seen := true
		for _, o := range found {
			seen = seen && s.Sees(o)
		}
		if seen {
			kept = reflect.Append(kept, list.Index(i))
		}
	}
	before := list.Len()
	list.Set(kept)
	count := of.FieldByName("Count")
	switch {
	case !count.IsValid():
	case count.CanUint() && count.Uint() == uint64(before):
		count.SetUint(uint64(kept.Len()))
	case count.CanInt() && count.Int() == int64(before):
		count.SetInt(int64(kept.Len()))
	}
}

// Sees says whether the rules let the client read an object.
func (s *Session) Sees(o authz.Resource) bool { return s.Gate().May(s.Who(), authz.Read, o) }

// EachText visits the texts of a message, except the names of objects, until visit
// returns false.
func EachText(v reflect.Value, field string, visit func(field, text string) bool) bool {
	if sorts[v.Type()] != nil {
		return true
	}
	if p, is := reflect.TypeAssert[xdr.TypedParam](v); is { // "dxml" is a document by its place
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

// IsDocument says whether a text is XML, by its place or by its looks.
func IsDocument(field, text string) bool {
	return text != "" && strings.Contains(strings.ToUpper(field), "XML") || xmltree.StartsLikeXML(text)
}

// SeesGuest says whether the client may see a guest. A client that no rule holds sees all.
func (s *Session) SeesGuest(g *guest.Guest) bool {
	return !s.Gate().Restricted(s.Who()) || s.Sees(s.Gate().Guest(g))
}

// SeesPool says whether the client may see a pool.
func (s *Session) SeesPool(p *volume.Pool) bool {
	return s.Sees(authz.Resource{Kind: authz.Pool, Name: p.Name()})
}

// SeesNetwork says whether the client may see a network.
func (s *Session) SeesNetwork(n *network.Network) bool {
	return s.Sees(authz.Resource{Kind: authz.Network, Name: n.Name()})
}

// SeesNotice says whether the client may see the object of an event.
func (s *Session) SeesNotice(n Notice) bool {
	if !s.Gate().Restricted(s.Who()) {
		return true
	}
	switch n.Topic.Family {
	case OfDomain:
		return s.Gate().CanSeeEvent(s.Who(), n.name, n.object)
	case OfNetwork:
		return s.Sees(authz.Resource{Kind: authz.Network, Name: n.name})
	case OfPool:
		return s.Sees(authz.Resource{Kind: authz.Pool, Name: n.name})
	case OfNodeDevice: // the owner of a removed link is unknown
		return !strings.HasPrefix(n.object, "net_") || s.Sees(authz.Resource{Kind: authz.Everything})
	case OfSecret:
		return s.Sees(authz.Resource{Kind: authz.Everything})
	}
	return false
}

// recheck ends the connection, or those of its streams, that changed rules no longer allow.
func (c *Client) recheck() {
	if !c.Session.authenticated() {
		return
	}
	if err := c.Server.Gate.Admit(c.Session.Who()); err != nil {
		c.End(fault.Wrap(err, fault.Denied, fault.Call, "the rules have changed"))
		return
	}
	c.Streams.endDenied("")
}
