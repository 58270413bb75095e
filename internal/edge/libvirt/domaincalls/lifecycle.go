package domaincalls

import (
	"context"
	"os"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// DomainLifecycleCalls define, start, stop and undefine domains.
func DomainLifecycleCalls(g rpc.Group) {
	rpc.On(g, xdr.ProcDomainDefineXML, domainDefineXML)
	rpc.On(g, xdr.ProcDomainDefineXMLFlags, domainDefineXMLFlags)
	rpc.On(g, xdr.ProcDomainCreate, domainCreate)
	rpc.On(g, xdr.ProcDomainCreateWithFlags, domainCreateWithFlags)
	rpc.On(g, xdr.ProcDomainCreateXML, domainCreateXML)
	rpc.OnFilesIn(g, xdr.ProcDomainCreateWithFiles, domainCreateWithFiles)
	rpc.OnFilesIn(g, xdr.ProcDomainCreateXMLWithFiles, domainCreateXMLWithFiles)
	rpc.On(g, xdr.ProcDomainSuspend, domainCall(guest.Suspend))
	rpc.On(g, xdr.ProcDomainResume, domainCall(guest.Resume))
	rpc.On(g, xdr.ProcDomainShutdown, domainCall(func(ctx context.Context, g *guest.Guest, sc scope.Scope) error {
		return guest.Shutdown(ctx, g, sc, guest.ShutdownDefault)
	}))
	rpc.On(g, xdr.ProcDomainShutdownFlags, flaggedCall("DOMAIN_SHUTDOWN_FLAGS", shutdownACPI|shutdownAgent, func(ctx context.Context, sc scope.Scope, g *guest.Guest, flags uint32) error {
		return guest.Shutdown(ctx, g, sc, shutdownMode(flags))
	}))
	rpc.On(g, xdr.ProcDomainReboot, flaggedCall("DOMAIN_REBOOT", shutdownACPI|shutdownAgent, func(ctx context.Context, sc scope.Scope, g *guest.Guest, flags uint32) error {
		return guest.Reboot(ctx, g, sc, shutdownMode(flags))
	}))
	rpc.On(g, xdr.ProcDomainReset, flaggedCall("DOMAIN_RESET", 0, func(ctx context.Context, sc scope.Scope, g *guest.Guest, _ uint32) error {
		return guest.Reset(ctx, g, sc)
	}))
	rpc.On(g, xdr.ProcDomainDestroy, domainCall(func(ctx context.Context, g *guest.Guest, sc scope.Scope) error {
		return guest.Destroy(ctx, g, sc, false)
	}))
	rpc.On(g, xdr.ProcDomainDestroyFlags, flaggedCall("DOMAIN_DESTROY_FLAGS", destroyGraceful, func(ctx context.Context, sc scope.Scope, g *guest.Guest, flags uint32) error {
		return guest.Destroy(ctx, g, sc, flags&destroyGraceful != 0)
	}))
	rpc.On(g, xdr.ProcDomainUndefine, domainCall(func(ctx context.Context, g *guest.Guest, sc scope.Scope) error {
		return guest.Undefine(ctx, g, sc, guest.UndefineOptions{})
	}))
	rpc.On(g, xdr.ProcDomainUndefineFlags, flaggedCall("DOMAIN_UNDEFINE_FLAGS", UndefineFlags, undefine))
	rpc.On(g, xdr.ProcDomainInjectNMI, flaggedCall("DOMAIN_INJECT_NMI", 0, func(ctx context.Context, sc scope.Scope, g *guest.Guest, _ uint32) error {
		return guest.InjectNMI(ctx, g, sc)
	}))
	rpc.On(g, xdr.ProcDomainPMWakeup, flaggedCall("DOMAIN_PM_WAKEUP", 0, func(ctx context.Context, sc scope.Scope, g *guest.Guest, _ uint32) error {
		return guest.Wake(ctx, g, sc)
	}))
	rpc.On(g, xdr.ProcDomainRename, domainRename)
	rpc.On(g, xdr.ProcDomainGetAutostart, domainGetAutostart)
	rpc.On(g, xdr.ProcDomainSetAutostart, domainSetAutostart)
	rpc.On(g, xdr.ProcDomainGetAutostartOnce, domainGetAutostartOnce)
	rpc.On(g, xdr.ProcDomainSetAutostartOnce, domainSetAutostartOnce)
}

const defineValidate = 1

func domainDefineXML(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainDefineXMLArgs) (*xdr.DomainDefineXMLRet, error) {
	return domainReply(guest.Define(ctx, h.Guests, s.Scope, args.XML, false))
}

func domainDefineXMLFlags(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainDefineXMLFlagsArgs) (*xdr.DomainDefineXMLFlagsRet, error) {
	if err := rpc.CheckFlags("DOMAIN_DEFINE_XML_FLAGS", args.Flags, defineValidate); err != nil {
		return nil, err
	}
	validate := args.Flags&defineValidate != 0
	g, err := guest.Define(ctx, h.Guests, s.Scope, args.XML, validate)
	return domainReply(g, validationError(args.XML, validate, err))
}

// startOptions converts the flags of a start. An auto-destroy guest is destroyed when the
// session's connection ends, if the rules let the client stop the guest then.
func startOptions(s *rpc.Session, flags uint32) launch.StartOptions {
	return launch.StartOptions{
		Paused: flags&rpc.StartPaused != 0, AutoDestroy: flags&rpc.StartAutoDestroy != 0, Owner: s.Closed, OwnerMayDestroy: s.CheckStop,
		BypassCache: flags&rpc.StartBypassCache != 0, ForceBoot: flags&rpc.StartForceBoot != 0,
		Validate: flags&rpc.StartValidate != 0, ResetNVRAM: flags&rpc.StartResetNVRAM != 0,
	}
}

func domainCreate(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainCreateArgs) (*rpc.Void, error) {
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, launch.Start(ctx, g, s.Scope, startOptions(s.Session, 0))
}

func domainCreateWithFlags(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainCreateWithFlagsArgs) (*xdr.DomainCreateWithFlagsRet, error) {
	const known = rpc.StartPaused | rpc.StartAutoDestroy | rpc.StartBypassCache | rpc.StartForceBoot | rpc.StartResetNVRAM
	if err := rpc.CheckFlags("DOMAIN_CREATE_WITH_FLAGS", args.Flags, known); err != nil {
		return nil, err
	}
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	return domainReply(g, launch.Start(ctx, g, s.Scope, startOptions(s.Session, args.Flags)))
}

func domainCreateXML(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainCreateXMLArgs) (*xdr.DomainCreateXMLRet, error) {
	const known = rpc.StartPaused | rpc.StartAutoDestroy | rpc.StartValidate | rpc.StartResetNVRAM
	if err := rpc.CheckFlags("DOMAIN_CREATE_XML", args.Flags, known); err != nil {
		return nil, err
	}
	o := startOptions(s.Session, args.Flags)
	g, err := guest.Create(ctx, h.Guests, s.Scope, args.XML, o)
	return domainReply(g, validationError(args.XML, o.Validate, err))
}

// refuseFiles refuses descriptors that came with a start: they are for the first
// process of a container, and a virtual machine has none.
func refuseFiles(files []*os.File) error {
	if len(files) == 0 {
		return nil
	}
	return rpc.WithCode(rpc.CodeArgUnsupported, fault.New(fault.Unsupported, fault.Call, "descriptors cannot be passed to a QEMU guest"))
}

func domainCreateWithFiles(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainCreateWithFilesArgs, files []*os.File) (*xdr.DomainCreateWithFilesRet, error) {
	if err := refuseFiles(files); err != nil {
		return nil, err
	}
	return domainCreateWithFlags(ctx, h, s, args)
}

func domainCreateXMLWithFiles(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainCreateXMLWithFilesArgs, files []*os.File) (*xdr.DomainCreateXMLWithFilesRet, error) {
	if err := refuseFiles(files); err != nil {
		return nil, err
	}
	return domainCreateXML(ctx, h, s, args)
}

// Flags for shutting down and rebooting: how to ask the guest.
const (
	shutdownACPI  = 1
	shutdownAgent = 2
)

func shutdownMode(flags uint32) guest.ShutdownMode {
	switch flags {
	case shutdownACPI:
		return guest.ShutdownACPI
	case shutdownAgent:
		return guest.ShutdownAgent
	}
	return guest.ShutdownDefault
}

const destroyGraceful = 1

// Flags for undefining: which state is removed with the definition, and which is kept.
const (
	undefineManagedSave = 1
	undefineSnapshots   = 2
	undefineNVRAM       = 4
	undefineKeepNVRAM   = 8
	undefineCheckpoints = 16
	undefineTPM         = 32
	UndefineKeepTPM     = 64
	UndefineFlags       = 127
)

func undefine(ctx context.Context, sc scope.Scope, g *guest.Guest, flags uint32) error {
	if flags&(undefineNVRAM|undefineKeepNVRAM) == undefineNVRAM|undefineKeepNVRAM {
		return fault.New(fault.Invalid, fault.Call, "the flags to remove and to keep the UEFI variables exclude each other")
	}
	if flags&(undefineTPM|UndefineKeepTPM) == undefineTPM|UndefineKeepTPM {
		return fault.New(fault.Invalid, fault.Call, "the flags to remove and to keep the TPM's state exclude each other")
	}
	return guest.Undefine(ctx, g, sc, guest.UndefineOptions{
		ManagedSave: flags&undefineManagedSave != 0, Snapshots: flags&undefineSnapshots != 0,
		Checkpoints: flags&undefineCheckpoints != 0, NVRAM: flags&undefineNVRAM != 0, KeepNVRAM: flags&undefineKeepNVRAM != 0,
		TPM: flags&undefineTPM != 0, KeepTPM: flags&UndefineKeepTPM != 0,
	})
}

func domainRename(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainRenameArgs) (*xdr.DomainRenameRet, error) {
	if err := rpc.CheckFlags("DOMAIN_RENAME", args.Flags, 0); err != nil {
		return nil, err
	}
	if args.NewName == nil {
		return nil, fault.New(fault.Invalid, fault.Call, "a domain must have a name")
	}
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	return &xdr.DomainRenameRet{}, guest.Rename(ctx, g, s.Scope, *args.NewName)
}

func domainGetAutostart(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.DomainGetAutostartArgs) (*xdr.DomainGetAutostartRet, error) {
	v, err := ViewOf(h, args.Domain)
	if err != nil {
		return nil, err
	}
	return &xdr.DomainGetAutostartRet{Autostart: v.Autostart}, nil
}

func domainSetAutostart(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainSetAutostartArgs) (*rpc.Void, error) {
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, guest.SetAutostart(ctx, g, s.Scope, args.Autostart)
}

func domainGetAutostartOnce(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.DomainGetAutostartOnceArgs) (*xdr.DomainGetAutostartOnceRet, error) {
	v, err := ViewOf(h, args.Domain)
	if err != nil {
		return nil, err
	}
	return &xdr.DomainGetAutostartOnceRet{Autostart: v.AutostartOnce}, nil
}

func domainSetAutostartOnce(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainSetAutostartOnceArgs) (*rpc.Void, error) {
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, guest.SetAutostartOnce(ctx, g, s.Scope, args.Autostart)
}
