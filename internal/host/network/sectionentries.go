package network

import (
	"slices"
	"strconv"
	"strings"

	"libvirt.org/go/libvirtxml"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// sectionEntries knows how to parse and match the entries of one section. X is libvirtxml's type of an entry, T
// Lodge's.
type sectionEntries[X, T any] struct {
	element string
	parse   func(*reader, X) T
	check   func(given T) error // of what the section's place allows; nil: anything
	// conflict names a value that an existing and a new entry have in common although it must be unique; "" if
	// there is none.
	conflict func(there, given T) string
	// modified and deleted say whether an entry is the one to modify or delete.
	modified, deleted func(there, given T) bool
	show              func(T) string // as its element
}

// apply applies an update to a copy of a list.
func (e sectionEntries[X, T]) apply(u Update, network string, list []T) ([]T, error) {
	item, err := e.read(u)
	if err != nil {
		return nil, err
	}
	list = slices.Clone(list)
	switch u.Command {
	case AddFirst, AddLast:
		for _, there := range list {
			if what := e.conflict(there, item); what != "" {
				return nil, fault.New(fault.WrongState, fault.Network, "network %q already has an entry with %s: %s", network, what, e.show(there))
			}
		}
		if u.Command == AddFirst {
			return append([]T{item}, list...), nil
		}
		return append(list, item), nil
	case Modify, Delete:
		at, err := e.find(u, network, list, item)
		if err != nil {
			return nil, err
		}
		if u.Command == Modify {
			list[at] = item
			return list, nil
		}
		return slices.Delete(list, at, at+1), nil
	}
	return nil, fault.New(fault.Unsupported, fault.Network, "%q is no command for a section of a network", u.Command)
}

// maxShown bounds how many entries an error lists.
const maxShown = 5

// find returns the index of the one entry that an update selects.
func (e sectionEntries[X, T]) find(u Update, network string, list []T, item T) (int, error) {
	means := e.modified
	if u.Command == Delete {
		means = e.deleted
	}
	var at []int
	var shown []string
	for i, there := range list {
		if means(there, item) {
			if at = append(at, i); len(shown) < maxShown {
				shown = append(shown, e.show(there))
			}
		}
	}
	switch len(at) {
	case 0:
		return 0, fault.New(fault.WrongState, fault.Network, "network %q has no entry in section %s like %s", network, u.Section, e.show(item))
	case 1:
		return at[0], nil
	}
	return 0, fault.New(fault.WrongState, fault.Network, "network %q has %d entries in section %s like %s: %s; give more attributes to select one",
		network, len(at), u.Section, e.show(item), strings.Join(shown, ", "))
}

// read parses the entry of an update.
func (e sectionEntries[X, T]) read(u Update) (item T, err error) {
	root, err := xmltree.Parse(u.XML)
	if err != nil {
		return item, err
	}
	if root.Name != e.element {
		return item, fault.New(fault.Invalid, fault.XML, "section %s takes a <%s>, not a <%s>", u.Section, e.element, root.Name)
	}
	var x X
	if err := root.Unmarshal(&x); err != nil {
		return item, err
	}
	r := &reader{}
	if item = e.parse(r, x); r.err == nil && e.check != nil {
		r.err = e.check(item)
	}
	return item, r.err
}

// missingOrEqual says whether a field is missing or equal.
func missingOrEqual[T comparable](there, given T) bool {
	var none T
	return given == none || there == given
}

// setAndEqual says whether a field is set on both sides and equal.
func setAndEqual[T comparable](a, b T) bool {
	var none T
	return a != none && a == b
}

var hosts = sectionEntries[libvirtxml.NetworkDHCPHost, Host]{
	element: "host", parse: (*reader).dhcpHost,
	conflict: func(a, b Host) string {
		switch {
		case setAndEqual(a.MAC, b.MAC):
			return "the MAC address " + b.MAC
		case setAndEqual(a.ID, b.ID):
			return "the ID " + b.ID
		case setAndEqual(a.Address, b.Address):
			return "the address " + addressText(b.Address)
		case setAndEqual(a.Name, b.Name):
			return "the name " + b.Name
		}
		return ""
	},
	// As libvirt's clients expect, one common value selects the entry to modify.
	modified: func(a, b Host) bool {
		return setAndEqual(a.MAC, b.MAC) || setAndEqual(a.ID, b.ID) || setAndEqual(a.Address, b.Address) || setAndEqual(a.Name, b.Name)
	},
	deleted: func(a, b Host) bool {
		return missingOrEqual(a.MAC, b.MAC) && missingOrEqual(a.ID, b.ID) && missingOrEqual(a.Name, b.Name) && missingOrEqual(a.Address, b.Address)
	},
	show: func(h Host) string {
		return tag("host", "mac", h.MAC, "id", h.ID, "name", h.Name, "ip", addressText(h.Address))
	},
}

var ranges = sectionEntries[libvirtxml.NetworkDHCPRange, Range]{
	element: "range", parse: (*reader).dhcpRange,
	conflict: func(a, b Range) string {
		if a.First == b.First && a.Last == b.Last {
			return "this start and end"
		}
		return ""
	},
	modified: sameRange, deleted: sameRange,
	show: func(r Range) string { return tag("range", "start", addressText(r.First), "end", addressText(r.Last)) },
}

func sameRange(a, b Range) bool { return a.First == b.First && a.Last == b.Last }

var interfaces = sectionEntries[libvirtxml.NetworkForwardInterface, string]{
	element: "interface", parse: (*reader).forwardInterface,
	conflict: func(a, b string) string {
		if a == b {
			return "the name " + b
		}
		return ""
	},
	modified: func(a, b string) bool { return a == b }, deleted: func(a, b string) bool { return a == b },
	show: func(dev string) string { return tag("interface", "dev", dev) },
}

var portGroups = sectionEntries[libvirtxml.NetworkPortGroup, PortGroup]{
	element: "portgroup", parse: (*reader).portGroup,
	conflict: func(a, b PortGroup) string {
		if a.Name == b.Name {
			return "the name " + b.Name
		}
		return ""
	},
	modified: samePortGroup, deleted: samePortGroup,
	show: func(g PortGroup) string { return tag("portgroup", "name", g.Name, "default", yesNo(g.Default)) },
}

func samePortGroup(a, b PortGroup) bool { return a.Name == b.Name }

var nameHosts = sectionEntries[libvirtxml.NetworkDNSHost, NameHost]{
	element: "host", parse: (*reader).nameHost,
	// One name may have several addresses.
	conflict: func(a, b NameHost) string {
		if a.Address == b.Address {
			return "the address " + addressText(b.Address)
		}
		return ""
	},
	modified: sameNameHost, deleted: sameNameHost,
	show: func(h NameHost) string {
		return strings.TrimSuffix(tag("host", "ip", addressText(h.Address)), "/>") + "><hostname>" + strings.Join(h.Names, "</hostname><hostname>") + "</hostname></host>"
	},
}

func sameNameHost(a, b NameHost) bool {
	if b.Address.IsValid() {
		return a.Address == b.Address
	}
	return slices.ContainsFunc(a.Names, func(s string) bool { return slices.Contains(b.Names, s) })
}

var txts = sectionEntries[libvirtxml.NetworkDNSTXT, TXT]{
	element: "txt", parse: func(_ *reader, x libvirtxml.NetworkDNSTXT) TXT { return TXT{x.Name, x.Value} },
	conflict: func(a, b TXT) string {
		if a.Name == b.Name {
			return "the name " + b.Name
		}
		return ""
	},
	modified: sameTXT, deleted: sameTXT,
	show: func(t TXT) string { return tag("txt", "name", t.Name, "value", t.Value) },
}

func sameTXT(a, b TXT) bool { return a.Name == b.Name }

var srvs = sectionEntries[libvirtxml.NetworkDNSSRV, SRV]{
	element: "srv", parse: func(_ *reader, x libvirtxml.NetworkDNSSRV) SRV { return srv(x) },
	conflict: func(a, b SRV) string {
		if a.Service == b.Service && a.Protocol == b.Protocol && a.Domain == b.Domain && a.Target == b.Target {
			return "this service, protocol, domain and target"
		}
		return ""
	},
	modified: sameSRV, deleted: sameSRV,
	show: func(s SRV) string {
		return tag("srv", "service", s.Service, "protocol", s.Protocol, "domain", s.Domain, "target", s.Target, "port", number(s.Port))
	},
}

func sameSRV(a, b SRV) bool {
	return a.Service == b.Service && a.Protocol == b.Protocol && missingOrEqual(a.Domain, b.Domain) && missingOrEqual(a.Target, b.Target)
}

func number(n uint) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatUint(uint64(n), 10)
}

// tag formats an element with its attributes, for errors.
func tag(name string, attrs ...string) string {
	var b strings.Builder
	b.WriteString("<" + name)
	for i := 0; i < len(attrs); i += 2 {
		if attrs[i+1] != "" {
			b.WriteString(" " + attrs[i] + "='" + attrs[i+1] + "'")
		}
	}
	return b.String() + "/>"
}
