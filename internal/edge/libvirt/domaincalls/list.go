package domaincalls

import (
	"context"
	"slices"

	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// DomainListCalls find and list domains.
func DomainListCalls(g rpc.Group) {
	rpc.On(g, xdr.ProcDomainLookupByID, domainLookupByID)
	rpc.On(g, xdr.ProcDomainLookupByName, domainLookupByName)
	rpc.On(g, xdr.ProcDomainLookupByUUID, domainLookupByUUID)
	rpc.On(g, xdr.ProcConnectListAllDomains, connectListAllDomains)
	rpc.On(g, xdr.ProcConnectListDomains, connectListDomains)
	rpc.On(g, xdr.ProcConnectNumOfDomains, connectNumOfDomains)
	rpc.On(g, xdr.ProcConnectListDefinedDomains, connectListDefinedDomains)
	rpc.On(g, xdr.ProcConnectNumOfDefinedDomains, connectNumOfDefinedDomains)
}

func domainLookupByID(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.DomainLookupByIDArgs) (*xdr.DomainLookupByIDRet, error) {
	return domainReply(h.Guests.ByID(int(args.ID)))
}

func domainLookupByName(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.DomainLookupByNameArgs) (*xdr.DomainLookupByNameRet, error) {
	return domainReply(h.Guests.ByName(args.Name))
}

func domainLookupByUUID(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.DomainLookupByUUIDArgs) (*xdr.DomainLookupByUUIDRet, error) {
	return domainReply(h.Guests.ByUUID(rpc.FormatUUID(args.UUID)))
}

// filter is one filter flag of a group. If the client sets any flag of a group, a domain
// must match one of those that it sets.
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

// The filter flags of lists, and those of them that statistics accept.
const (
	listFilters  = 1<<16 - 1
	statsFilters = 1<<8 - 1
)

// MatchesFilters reports whether a guest passes every group of filters.
func MatchesFilters(v *guest.View, flags uint32) bool {
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

// visibleGuests returns the guests that pass the filters and that the client may see, sorted by name.
func visibleGuests(h *rpc.Handlers, s *rpc.Session, flags uint32) []*guest.View {
	var found []*guest.View
	for _, g := range h.Guests.All() {
		if v := g.View(); MatchesFilters(v, flags) && s.CanSeeGuest(g) {
			found = append(found, v)
		}
	}
	return found
}

func connectListAllDomains(_ context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.ConnectListAllDomainsArgs) (*xdr.ConnectListAllDomainsRet, error) {
	if err := rpc.CheckFlags("CONNECT_LIST_ALL_DOMAINS", args.Flags, listFilters); err != nil {
		return nil, err
	}
	found := visibleGuests(h, s.Session, args.Flags)
	ret := &xdr.ConnectListAllDomainsRet{Count: uint32(len(found))}
	if !args.NeedResults {
		return ret, nil
	}
	ret.Domains = make([]xdr.Domain, 0, len(found))
	for _, v := range found {
		d, err := WireDomain(v)
		if err != nil {
			return nil, err
		}
		ret.Domains = append(ret.Domains, d)
	}
	return ret, nil
}

const (
	filterActive   = 1
	filterInactive = 2
)

func connectListDomains(_ context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.ConnectListDomainsArgs) (*xdr.ConnectListDomainsRet, error) {
	ret := new(xdr.ConnectListDomainsRet)
	for _, v := range visibleGuests(h, s.Session, filterActive) {
		ret.IDs = append(ret.IDs, int32(v.ID))
	}
	slices.Sort(ret.IDs)
	return ret, rpc.TruncateList(&ret.IDs, args.MaxIDs)
}

func connectNumOfDomains(_ context.Context, h *rpc.Handlers, s *rpc.Request, _ *rpc.Void) (*xdr.ConnectNumOfDomainsRet, error) {
	return &xdr.ConnectNumOfDomainsRet{Count: int32(len(visibleGuests(h, s.Session, filterActive)))}, nil
}

func connectListDefinedDomains(_ context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.ConnectListDefinedDomainsArgs) (*xdr.ConnectListDefinedDomainsRet, error) {
	ret := new(xdr.ConnectListDefinedDomainsRet)
	for _, v := range visibleGuests(h, s.Session, filterInactive) {
		ret.Names = append(ret.Names, v.Name)
	}
	return ret, rpc.TruncateList(&ret.Names, args.MaxNames)
}

func connectNumOfDefinedDomains(_ context.Context, h *rpc.Handlers, s *rpc.Request, _ *rpc.Void) (*xdr.ConnectNumOfDefinedDomainsRet, error) {
	return &xdr.ConnectNumOfDefinedDomainsRet{Count: int32(len(visibleGuests(h, s.Session, filterInactive)))}, nil
}
