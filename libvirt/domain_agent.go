package libvirt

import (
	"context"
	"encoding/base64"
	"math"
	"time"

	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/xdr"
)

// domainAgentCalls are answered by the agent in the guest, which is waited for
// as long as its room says, and whose answers are only as true as it is.
func domainAgentCalls(g group) {
	on(g, xdr.ProcDomainFSFreeze, (*handlers).domainFSFreeze)
	on(g, xdr.ProcDomainFSThaw, (*handlers).domainFSThaw)
	on(g, xdr.ProcDomainFSTrim, (*handlers).domainFSTrim)
	on(g, xdr.ProcDomainGetTime, (*handlers).domainGetTime)
	on(g, xdr.ProcDomainSetTime, (*handlers).domainSetTime)
	on(g, xdr.ProcDomainGetHostname, (*handlers).domainGetHostname)
	on(g, xdr.ProcDomainSetUserPassword, (*handlers).domainSetUserPassword)
}

// freezeLimit is how long freezing and trimming may take: they wait for the guest's disks.
const freezeLimit = 60 * time.Second

// ask finds a running guest and gives its agent a command. A limit of zero is
// the room's own.
func (h *handlers) ask(ctx context.Context, d xdr.Domain, limit time.Duration, command string, args, into any) error {
	g, _, err := h.active(d)
	if err != nil {
		return err
	}
	return g.Agent(ctx, command, args, into, limit)
}

func (h *handlers) domainFSFreeze(ctx context.Context, _ *session, args *xdr.DomainFSFreezeArgs) (*xdr.DomainFSFreezeRet, error) {
	if err := checkFlags("DOMAIN_FSFREEZE", args.Flags, 0); err != nil {
		return nil, err
	}
	ret := new(xdr.DomainFSFreezeRet)
	if len(args.MountPoints) == 0 {
		return ret, h.ask(ctx, args.Domain, freezeLimit, "guest-fsfreeze-freeze", nil, &ret.Filesystems)
	}
	some := map[string]any{"mountpoints": args.MountPoints}
	return ret, h.ask(ctx, args.Domain, freezeLimit, "guest-fsfreeze-freeze-list", some, &ret.Filesystems)
}

// domainFSThaw thaws everything: an agent cannot thaw some of what is frozen.
func (h *handlers) domainFSThaw(ctx context.Context, _ *session, args *xdr.DomainFSThawArgs) (*xdr.DomainFSThawRet, error) {
	if err := checkFlags("DOMAIN_FSTHAW", args.Flags, 0); err != nil {
		return nil, err
	}
	ret := new(xdr.DomainFSThawRet)
	return ret, h.ask(ctx, args.Domain, freezeLimit, "guest-fsfreeze-thaw", nil, &ret.Filesystems)
}

func (h *handlers) domainFSTrim(ctx context.Context, _ *session, args *xdr.DomainFSTrimArgs) (*void, error) {
	if err := checkFlags("DOMAIN_FSTRIM", args.Flags, 0); err != nil {
		return nil, err
	}
	if args.MountPoint != nil {
		return nil, withCode(codeArgUnsupported, fault.New(fault.Unsupported, fault.Call, "an agent trims all file systems, and not one mount point"))
	}
	return nil, h.ask(ctx, args.Domain, freezeLimit, "guest-fstrim", map[string]any{"minimum": args.Minimum}, nil)
}

func (h *handlers) domainGetTime(ctx context.Context, _ *session, args *xdr.DomainGetTimeArgs) (*xdr.DomainGetTimeRet, error) {
	if err := checkFlags("DOMAIN_GET_TIME", args.Flags, 0); err != nil {
		return nil, err
	}
	var nanoseconds int64
	if err := h.ask(ctx, args.Domain, 0, "guest-get-time", nil, &nanoseconds); err != nil {
		return nil, err
	}
	t := time.Unix(0, nanoseconds)
	return &xdr.DomainGetTimeRet{Seconds: t.Unix(), Nanoseconds: uint32(t.Nanosecond())}, nil
}

// timeSync sets the guest's time from its own hardware clock.
const timeSync = 1

func (h *handlers) domainSetTime(ctx context.Context, _ *session, args *xdr.DomainSetTimeArgs) (*void, error) {
	if err := checkFlags("DOMAIN_SET_TIME", args.Flags, timeSync); err != nil {
		return nil, err
	}
	if args.Flags&timeSync != 0 {
		return nil, h.ask(ctx, args.Domain, 0, "guest-set-time", nil, nil)
	}
	if args.Seconds < 0 || args.Seconds >= math.MaxInt64/int64(time.Second) || args.Nanoseconds >= uint32(time.Second) {
		return nil, fault.New(fault.Invalid, fault.Call, "%d seconds and %d nanoseconds are no time that an agent can set", args.Seconds, args.Nanoseconds)
	}
	to := args.Seconds*int64(time.Second) + int64(args.Nanoseconds)
	return nil, h.ask(ctx, args.Domain, 0, "guest-set-time", map[string]any{"time": to}, nil)
}

// hostnameAgent asks the agent for the guest's name, which is done in any case.
const hostnameAgent = 2

func (h *handlers) domainGetHostname(ctx context.Context, _ *session, args *xdr.DomainGetHostnameArgs) (*xdr.DomainGetHostnameRet, error) {
	if err := checkFlags("DOMAIN_GET_HOSTNAME", args.Flags, hostnameAgent); err != nil {
		return nil, err
	}
	var answer struct {
		Name string `json:"host-name"`
	}
	if err := h.ask(ctx, args.Domain, 0, "guest-get-host-name", nil, &answer); err != nil {
		return nil, err
	}
	return &xdr.DomainGetHostnameRet{Hostname: answer.Name}, nil
}

// passwordEncrypted says that the password is a hash already.
const passwordEncrypted = 1

func (h *handlers) domainSetUserPassword(ctx context.Context, _ *session, args *xdr.DomainSetUserPasswordArgs) (*void, error) {
	if err := checkFlags("DOMAIN_SET_USER_PASSWORD", args.Flags, passwordEncrypted); err != nil {
		return nil, err
	}
	return nil, h.ask(ctx, args.Domain, 0, "guest-set-user-password", map[string]any{
		"username": given(args.User), "password": base64.StdEncoding.EncodeToString([]byte(given(args.Password))),
		"crypted": args.Flags&passwordEncrypted != 0,
	}, nil)
}
