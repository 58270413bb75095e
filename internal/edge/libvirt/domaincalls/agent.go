package domaincalls

import (
	"context"
	"math"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

// DomainAgentCalls are answered by the agent in the guest. Package guest bounds the
// wait for it. The guest controls the agent, so the answers cannot be trusted.
func DomainAgentCalls(g rpc.Group) {
	rpc.On(g, xdr.ProcDomainFSFreeze, domainFSFreeze)
	rpc.On(g, xdr.ProcDomainFSThaw, domainFSThaw)
	rpc.On(g, xdr.ProcDomainFSTrim, domainFSTrim)
	rpc.On(g, xdr.ProcDomainGetTime, domainGetTime)
	rpc.On(g, xdr.ProcDomainSetTime, domainSetTime)
	rpc.On(g, xdr.ProcDomainSetUserPassword, domainSetUserPassword)
	rpc.On(g, xdr.ProcDomainGetFSInfo, domainGetFSInfo)
	rpc.On(g, xdr.ProcDomainGetGuestInfo, domainGetGuestInfo)
	rpc.On(g, xdr.ProcDomainGetGuestVCPUs, domainGetGuestVCPUs)
}

func domainFSFreeze(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainFSFreezeArgs) (*xdr.DomainFSFreezeRet, error) {
	if err := rpc.CheckFlags("DOMAIN_FSFREEZE", args.Flags, 0); err != nil {
		return nil, err
	}
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	frozen, err := provision.Freeze(ctx, g, s.Scope, args.MountPoints)
	return &xdr.DomainFSFreezeRet{Filesystems: int32(frozen)}, err
}

// domainFSThaw thaws all file systems: an agent cannot thaw single ones.
func domainFSThaw(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainFSThawArgs) (*xdr.DomainFSThawRet, error) {
	if err := rpc.CheckFlags("DOMAIN_FSTHAW", args.Flags, 0); err != nil {
		return nil, err
	}
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	thawed, err := provision.Thaw(ctx, g, s.Scope)
	return &xdr.DomainFSThawRet{Filesystems: int32(thawed)}, err
}

func domainFSTrim(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainFSTrimArgs) (*rpc.Void, error) {
	if err := rpc.CheckFlags("DOMAIN_FSTRIM", args.Flags, 0); err != nil {
		return nil, err
	}
	if args.MountPoint != nil {
		return nil, rpc.WithCode(rpc.CodeArgUnsupported, fault.New(fault.Unsupported, fault.Call, "an agent trims all file systems, and not one mount point"))
	}
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, provision.Trim(ctx, g, s.Scope, args.Minimum)
}

func domainGetTime(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainGetTimeArgs) (*xdr.DomainGetTimeRet, error) {
	if err := rpc.CheckFlags("DOMAIN_GET_TIME", args.Flags, 0); err != nil {
		return nil, err
	}
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	t, err := provision.Time(ctx, g, s.Scope)
	return &xdr.DomainGetTimeRet{Seconds: t.Unix(), Nanoseconds: uint32(t.Nanosecond())}, err
}

// timeSync sets the guest's time from its hardware clock.
const timeSync = 1

func domainSetTime(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainSetTimeArgs) (*rpc.Void, error) {
	if err := rpc.CheckFlags("DOMAIN_SET_TIME", args.Flags, timeSync); err != nil {
		return nil, err
	}
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	if args.Flags&timeSync != 0 {
		return nil, provision.SetTime(ctx, g, s.Scope, nil)
	}
	if args.Seconds < 0 || args.Seconds >= math.MaxInt64/int64(time.Second) || args.Nanoseconds >= uint32(time.Second) {
		return nil, fault.New(fault.Invalid, fault.Call, "an agent cannot set a time of %d seconds and %d nanoseconds", args.Seconds, args.Nanoseconds)
	}
	to := time.Unix(args.Seconds, int64(args.Nanoseconds))
	return nil, provision.SetTime(ctx, g, s.Scope, &to)
}

// passwordEncrypted: the password is already a hash.
const passwordEncrypted = 1

func domainSetUserPassword(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainSetUserPasswordArgs) (*rpc.Void, error) {
	if err := rpc.CheckFlags("DOMAIN_SET_USER_PASSWORD", args.Flags, passwordEncrypted); err != nil {
		return nil, err
	}
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, provision.SetPassword(ctx, g, s.Scope, rpc.StringValue(args.User), rpc.StringValue(args.Password), args.Flags&passwordEncrypted != 0)
}

func domainGetFSInfo(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainGetFSInfoArgs) (*xdr.DomainGetFSInfoRet, error) {
	if err := rpc.CheckFlags("DOMAIN_GET_FSINFO", args.Flags, 0); err != nil {
		return nil, err
	}
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	found, err := provision.FileSystems(ctx, g, s.Scope)
	if err != nil {
		return nil, err
	}
	ret := new(xdr.DomainGetFSInfoRet)
	for _, f := range found[:min(len(found), xdr.MaxDomainFSInfo)] {
		info := xdr.DomainFSInfo{MountPoint: f.MountPoint, Name: f.Name, FSType: f.Type}
		for _, d := range f.Disks[:min(len(f.Disks), xdr.MaxDomainFSInfoDisks)] {
			if d.Target != "" {
				info.DeviceAliases = append(info.DeviceAliases, d.Target)
			}
		}
		ret.Info = append(ret.Info, info)
	}
	ret.Count = uint32(len(ret.Info))
	return ret, nil
}

// domainGetGuestVCPUs returns the vCPUs that the guest itself sees, as lists of their
// numbers.
func domainGetGuestVCPUs(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainGetGuestVCPUsArgs) (*xdr.DomainGetGuestVCPUsRet, error) {
	if _, err := rpc.ParamFlags("DOMAIN_GET_GUEST_VCPUS", args.Flags, 0); err != nil {
		return nil, err
	}
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	all, err := guest.AgentVCPUs(ctx, g, s.Scope)
	if err != nil {
		return nil, err
	}
	var vcpus, online, offlinable topology.CPUSet
	for _, c := range all {
		vcpus.Add(int(c.ID))
		if c.Online {
			online.Add(int(c.ID))
		}
		if c.CanOffline {
			offlinable.Add(int(c.ID))
		}
	}
	return &xdr.DomainGetGuestVCPUsRet{Params: []xdr.TypedParam{
		{Field: "vcpus", Value: xdr.String(vcpus.String())},
		{Field: "online", Value: xdr.String(online.String())},
		{Field: "offlinable", Value: xdr.String(offlinable.String())},
	}}, nil
}
