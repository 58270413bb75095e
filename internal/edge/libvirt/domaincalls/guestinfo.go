package domaincalls

import (
	"context"
	"fmt"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// guestInfo is one type of information from an agent: its flag, and the function that asks the agent
// and adds the parameters.
type guestInfo struct {
	bit uint32
	add func(context.Context, scope.Scope, *guest.Guest, *rpc.ParamList) error
}

var guestInfos = []guestInfo{
	{1, addUsers},
	{2, addOS},
	{4, addTimezone},
	{8, addHostname},
	{16, addFileSystems},
	{64, addInterfaces},
}

// domainGetGuestInfo returns the types of information that the client asked for. If the
// client names none, it returns all that the agent supports.
func domainGetGuestInfo(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainGetGuestInfoArgs) (*xdr.DomainGetGuestInfoRet, error) {
	if _, err := rpc.ParamFlags("DOMAIN_GET_GUEST_INFO", args.Flags, 0); err != nil {
		return nil, err
	}
	known := uint32(0)
	for _, i := range guestInfos {
		known |= i.bit
	}
	if unknown := args.Types &^ known; unknown != 0 {
		return nil, fault.New(fault.Invalid, fault.Call, "guest information types 0x%x are not supported", unknown)
	}
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	p := &rpc.ParamList{Max: xdr.MaxDomainGuestInfoParams}
	for _, i := range guestInfos {
		if args.Types != 0 && args.Types&i.bit == 0 {
			continue
		}
		err := i.add(ctx, s.Scope, g, p)
		if args.Types == 0 && fault.Is(err, fault.Unsupported) {
			continue
		}
		if err != nil {
			return nil, err
		}
	}
	return &xdr.DomainGetGuestInfoRet{Params: p.List}, nil
}

func addUsers(ctx context.Context, sc scope.Scope, g *guest.Guest, p *rpc.ParamList) error {
	users, err := provision.Users(ctx, g, sc)
	if err != nil {
		return err
	}
	p.AddCount("user.count", len(users))
	for i, u := range users {
		prefix := fmt.Sprintf("user.%d.", i)
		p.Add(prefix+"name", xdr.String(u.Name))
		p.AddString(prefix+"domain", u.Domain)
		p.AddUint64(prefix+"login-time", uint64(max(0, u.Login*1000)))
	}
	return nil
}

func addOS(ctx context.Context, sc scope.Scope, g *guest.Guest, p *rpc.ParamList) error {
	info, err := provision.OSInfo(ctx, g, sc)
	if err != nil {
		return err
	}
	for _, field := range []string{"id", "name", "pretty-name", "version", "version-id", "machine", "variant", "variant-id", "kernel-release", "kernel-version"} {
		p.AddString("os."+field, info[field])
	}
	return nil
}

func addTimezone(ctx context.Context, sc scope.Scope, g *guest.Guest, p *rpc.ParamList) error {
	name, ahead, err := provision.Timezone(ctx, g, sc)
	if err != nil {
		return err
	}
	p.AddString("timezone.name", name)
	p.Add("timezone.offset", xdr.Int(int32(ahead.Seconds())))
	return nil
}

func addHostname(ctx context.Context, sc scope.Scope, g *guest.Guest, p *rpc.ParamList) error {
	name, err := provision.AgentHostname(ctx, g, sc)
	p.AddString("hostname", name)
	return err
}

func addFileSystems(ctx context.Context, sc scope.Scope, g *guest.Guest, p *rpc.ParamList) error {
	found, err := provision.FileSystems(ctx, g, sc)
	if err != nil {
		return err
	}
	p.AddCount("fs.count", len(found))
	for i, f := range found {
		prefix := fmt.Sprintf("fs.%d.", i)
		p.Add(prefix+"name", xdr.String(f.Name))
		p.Add(prefix+"mountpoint", xdr.String(f.MountPoint))
		p.Add(prefix+"fstype", xdr.String(f.Type))
		if f.Total != nil {
			p.AddUint64(prefix+"total-bytes", *f.Total)
		}
		if f.Used != nil {
			p.AddUint64(prefix+"used-bytes", *f.Used)
		}
		p.AddCount(prefix+"disk.count", len(f.Disks))
		for j, d := range f.Disks {
			disk := fmt.Sprintf("%sdisk.%d.", prefix, j)
			p.AddString(disk+"alias", d.Target)
			p.AddString(disk+"serial", d.Serial)
			p.AddString(disk+"device", d.Device)
		}
	}
	return nil
}

func addInterfaces(ctx context.Context, sc scope.Scope, g *guest.Guest, p *rpc.ParamList) error {
	found, err := hotplug.Addresses(ctx, g, sc, hotplug.ByAgent)
	if err != nil {
		return err
	}
	p.AddCount("if.count", len(found))
	for i, f := range found {
		prefix := fmt.Sprintf("if.%d.", i)
		p.Add(prefix+"name", xdr.String(f.Name))
		p.AddString(prefix+"hwaddr", f.MAC)
		if len(f.Addresses) > 0 {
			p.AddCount(prefix+"addr.count", len(f.Addresses))
		}
		for j, a := range f.Addresses {
			address, kind := fmt.Sprintf("%saddr.%d.", prefix, j), "ipv4"
			if a.IPv6 {
				kind = "ipv6"
			}
			p.Add(address+"type", xdr.String(kind))
			p.Add(address+"addr", xdr.String(a.IP))
			p.Add(address+"prefix", xdr.Uint(uint32(a.Prefix)))
		}
	}
	return nil
}
