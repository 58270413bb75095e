package libvirt

import (
	"context"
	"slices"

	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// domainListCalls find and list domains.
func domainListCalls(g group) {
	on(g, xdr.ProcDomainLookupByID, (*handlers).domainLookupByID)
	on(g, xdr.ProcDomainLookupByName, (*handlers).domainLookupByName)
	on(g, xdr.ProcDomainLookupByUUID, (*handlers).domainLookupByUUID)
	on(g, xdr.ProcConnectListAllDomains, (*handlers).connectListAllDomains)
	on(g, xdr.ProcConnectListDomains, (*handlers).connectListDomains)
	on(g, xdr.ProcConnectNumOfDomains, (*handlers).connectNumOfDomains)
	on(g, xdr.ProcConnectListDefinedDomains, (*handlers).connectListDefinedDomains)
	on(g, xdr.ProcConnectNumOfDefinedDomains, (*handlers).connectNumOfDefinedDomains)
}

func (h *handlers) domainLookupByID(_ context.Context, _ *request, args *xdr.DomainLookupByIDArgs) (*xdr.DomainLookupByIDRet, error) {
	return reference(h.Guests.ByID(int(args.ID)))
}

func (h *handlers) domainLookupByName(_ context.Context, _ *request, args *xdr.DomainLookupByNameArgs) (*xdr.DomainLookupByNameRet, error) {
	return reference(h.Guests.ByName(args.Name))
}

func (h *handlers) domainLookupByUUID(_ context.Context, _ *request, args *xdr.DomainLookupByUUIDArgs) (*xdr.DomainLookupByUUIDRet, error) {
	return reference(h.Guests.ByUUID(formatUUID(args.UUID)))
}

// filter is a pair or group of flags. If the client sets any of them, a domain must
// match one of those.
type filter struct {
	flag  uint32
	match func(*guest.View) bool
}

// domainFilters are the groups of filters, for lists and for statistics.
var domainFilters = [][]filter{
	{
		{1, func(v *guest.View) bool { return v.Active != nil }},
		{2, func(v *guest.View) bool { return v.Active == nil }},
	}, {
		{4, func(v *guest.View) bool { return v.Persistent }},
		{8, func(v *guest.View) bool { return !v.Persistent }},
	}, {
		{16, func(v *guest.View) bool { return v.State == domain.Running }},
		{32, func(v *guest.View) bool { return v.State == domain.Paused }},
		{64, func(v *guest.View) bool { return v.State == domain.ShutOff }},
		{128, func(v *guest.View) bool {
			return v.State != domain.Running && v.State != domain.Paused && v.State != domain.ShutOff
		}},
	}, {
		{256, func(v *guest.View) bool { return v.ManagedSave }},
		{512, func(v *guest.View) bool { return !v.ManagedSave }},
	}, {
		{1024, func(v *guest.View) bool { return v.Autostart }},
		{2048, func(v *guest.View) bool { return !v.Autostart }},
	}, { // no guest has snapshots, which are not built
		{4096, func(*guest.View) bool { return false }},
		{8192, func(*guest.View) bool { return true }},
	}, { // nor checkpoints
		{16384, func(*guest.View) bool { return false }},
		{32768, func(*guest.View) bool { return true }},
	},
}

// statsFilters are the flags that statistics know of them.
const (
	listFilters  = 1<<16 - 1
	statsFilters = 1<<8 - 1
)

// matches reports whether a guest passes every group of filters.
func matches(v *guest.View, flags uint32) bool {
	for _, group := range domainFilters {
		asked, passed := false, false
		for _, f := range group {
			if flags&f.flag != 0 {
				asked, passed = true, passed || f.match(v)
			}
		}
		if asked && !passed {
			return false
		}
	}
	return true
}

// views gives the guests that pass the filters and that the client may see, by name.
func (h *handlers) views(s *session, flags uint32) []*guest.View {
	var found []*guest.View
	for _, g := range h.Guests.All() {
		if v := g.View(); matches(v, flags) && s.seesGuest(g) {
			found = append(found, v)
		}
	}
	return found
}

func (h *handlers) connectListAllDomains(_ context.Context, s *request, args *xdr.ConnectListAllDomainsArgs) (*xdr.ConnectListAllDomainsRet, error) {
	if err := checkFlags("CONNECT_LIST_ALL_DOMAINS", args.Flags, listFilters); err != nil {
		return nil, err
	}
	found := h.views(s.session, args.Flags)
	ret := &xdr.ConnectListAllDomainsRet{Count: uint32(len(found))}
	if !args.NeedResults {
		return ret, nil
	}
	ret.Domains = make([]xdr.Domain, 0, len(found))
	for _, v := range found {
		d, err := wireDomain(v)
		if err != nil {
			return nil, err
		}
		ret.Domains = append(ret.Domains, d)
	}
	return ret, nil
}

const (
	onlyActive   = 1
	onlyInactive = 2
)

func (h *handlers) connectListDomains(_ context.Context, s *request, args *xdr.ConnectListDomainsArgs) (*xdr.ConnectListDomainsRet, error) {
	ret := new(xdr.ConnectListDomainsRet)
	for _, v := range h.views(s.session, onlyActive) {
		ret.IDs = append(ret.IDs, int32(v.ID))
	}
	slices.Sort(ret.IDs)
	return ret, atMost(&ret.IDs, args.MaxIDs)
}

func (h *handlers) connectNumOfDomains(_ context.Context, s *request, _ *void) (*xdr.ConnectNumOfDomainsRet, error) {
	return &xdr.ConnectNumOfDomainsRet{Count: int32(len(h.views(s.session, onlyActive)))}, nil
}

func (h *handlers) connectListDefinedDomains(_ context.Context, s *request, args *xdr.ConnectListDefinedDomainsArgs) (*xdr.ConnectListDefinedDomainsRet, error) {
	ret := new(xdr.ConnectListDefinedDomainsRet)
	for _, v := range h.views(s.session, onlyInactive) {
		ret.Names = append(ret.Names, v.Name)
	}
	return ret, atMost(&ret.Names, args.MaxNames)
}

func (h *handlers) connectNumOfDefinedDomains(_ context.Context, s *request, _ *void) (*xdr.ConnectNumOfDefinedDomainsRet, error) {
	return &xdr.ConnectNumOfDefinedDomainsRet{Count: int32(len(h.views(s.session, onlyInactive)))}, nil
}
