package libvirt

import (
	"context"
	"math"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

// domainAgentCalls are answered by the agent in the guest. Package guest bounds the
// wait for it. The answers are only as true as the agent is honest.
func domainAgentCalls(g group) {
	on(g, xdr.ProcDomainFSFreeze, (*handlers).domainFSFreeze)
	on(g, xdr.ProcDomainFSThaw, (*handlers).domainFSThaw)
	on(g, xdr.ProcDomainFSTrim, (*handlers).domainFSTrim)
	on(g, xdr.ProcDomainGetTime, (*handlers).domainGetTime)
	on(g, xdr.ProcDomainSetTime, (*handlers).domainSetTime)
	on(g, xdr.ProcDomainSetUserPassword, (*handlers).domainSetUserPassword)
	on(g, xdr.ProcDomainGetFSInfo, (*handlers).domainGetFSInfo)
	on(g, xdr.ProcDomainGetGuestInfo, (*handlers).domainGetGuestInfo)
	on(g, xdr.ProcDomainGetGuestVCPUs, (*handlers).domainGetGuestVCPUs)
}

func (h *handlers) domainFSFreeze(ctx context.Context, s *request, args *xdr.DomainFSFreezeArgs) (*xdr.DomainFSFreezeRet, error) {
	if err := checkFlags("DOMAIN_FSFREEZE", args.Flags, 0); err != nil {
		return nil, err
	}
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, err
	}
	frozen, err := provision.Freeze(ctx, g, s.scope, args.MountPoints)
	return &xdr.DomainFSFreezeRet{Filesystems: int32(frozen)}, err
}

// domainFSThaw thaws everything: an agent cannot thaw single filesystems.
func (h *handlers) domainFSThaw(ctx context.Context, s *request, args *xdr.DomainFSThawArgs) (*xdr.DomainFSThawRet, error) {
	if err := checkFlags("DOMAIN_FSTHAW", args.Flags, 0); err != nil {
		return nil, err
	}
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, err
	}
	thawed, err := provision.Thaw(ctx, g, s.scope)
	return &xdr.DomainFSThawRet{Filesystems: int32(thawed)}, err
}

func (h *handlers) domainFSTrim(ctx context.Context, s *request, args *xdr.DomainFSTrimArgs) (*void, error) {
	if err := checkFlags("DOMAIN_FSTRIM", args.Flags, 0); err != nil {
		return nil, err
	}
	if args.MountPoint != nil {
		return nil, withCode(codeArgUnsupported, fault.New(fault.Unsupported, fault.Call, "an agent trims all file systems, and not one mount point"))
	}
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, provision.Trim(ctx, g, s.scope, args.Minimum)
}

func (h *handlers) domainGetTime(ctx context.Context, s *request, args *xdr.DomainGetTimeArgs) (*xdr.DomainGetTimeRet, error) {
	if err := checkFlags("DOMAIN_GET_TIME", args.Flags, 0); err != nil {
		return nil, err
	}
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, err
	}
	t, err := provision.Time(ctx, g, s.scope)
	return &xdr.DomainGetTimeRet{Seconds: t.Unix(), Nanoseconds: uint32(t.Nanosecond())}, err
}

// timeSync sets the guest's time from its own hardware clock.
const timeSync = 1

func (h *handlers) domainSetTime(ctx context.Context, s *request, args *xdr.DomainSetTimeArgs) (*void, error) {
	if err := checkFlags("DOMAIN_SET_TIME", args.Flags, timeSync); err != nil {
		return nil, err
	}
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, err
	}
	if args.Flags&timeSync != 0 {
		return nil, provision.SetTime(ctx, g, s.scope, nil)
	}
	if args.Seconds < 0 || args.Seconds >= math.MaxInt64/int64(time.Second) || args.Nanoseconds >= uint32(time.Second) {
		return nil, fault.New(fault.Invalid, fault.Call, "%d seconds and %d nanoseconds are no time that an agent can set", args.Seconds, args.Nanoseconds)
	}
	to := time.Unix(args.Seconds, int64(args.Nanoseconds))
	return nil, provision.SetTime(ctx, g, s.scope, &to)
}

// passwordEncrypted says that the password is a hash already.
const passwordEncrypted = 1

func (h *handlers) domainSetUserPassword(ctx context.Context, s *request, args *xdr.DomainSetUserPasswordArgs) (*void, error) {
	if err := checkFlags("DOMAIN_SET_USER_PASSWORD", args.Flags, passwordEncrypted); err != nil {
		return nil, err
	}
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, provision.SetPassword(ctx, g, s.scope, given(args.User), given(args.Password), args.Flags&passwordEncrypted != 0)
}

func (h *handlers) domainGetFSInfo(ctx context.Context, s *request, args *xdr.DomainGetFSInfoArgs) (*xdr.DomainGetFSInfoRet, error) {
	if err := checkFlags("DOMAIN_GET_FSINFO", args.Flags, 0); err != nil {
		return nil, err
	}
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, err
	}
	found, err := provision.FileSystems(ctx, g, s.scope)
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

// domainGetGuestVCPUs gives the processors that the guest itself sees, as lists of
// their numbers.
func (h *handlers) domainGetGuestVCPUs(ctx context.Context, s *request, args *xdr.DomainGetGuestVCPUsArgs) (*xdr.DomainGetGuestVCPUsRet, error) {
	if _, err := paramFlags("DOMAIN_GET_GUEST_VCPUS", args.Flags, 0); err != nil {
		return nil, err
	}
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, err
	}
	all, err := guest.AgentVCPUs(ctx, g, s.scope)
	if err != nil {
		return nil, err
	}
	var there, online, offlinable topology.CPUSet
	for _, c := range all {
		there.Add(int(c.ID))
		if c.Online {
			online.Add(int(c.ID))
		}
		if c.CanOffline {
			offlinable.Add(int(c.ID))
		}
	}
	return &xdr.DomainGetGuestVCPUsRet{Params: []xdr.TypedParam{
		{Field: "vcpus", Value: xdr.String(there.String())},
		{Field: "online", Value: xdr.String(online.String())},
		{Field: "offlinable", Value: xdr.String(offlinable.String())},
	}}, nil
}
