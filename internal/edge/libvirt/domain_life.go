package libvirt

import (
	"context"
	"os"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// domainLifeCalls define, start, stop and forget domains.
func domainLifeCalls(g group) {
	on(g, xdr.ProcDomainDefineXML, (*handlers).domainDefineXML)
	on(g, xdr.ProcDomainDefineXMLFlags, (*handlers).domainDefineXMLFlags)
	on(g, xdr.ProcDomainCreate, (*handlers).domainCreate)
	on(g, xdr.ProcDomainCreateWithFlags, (*handlers).domainCreateWithFlags)
	on(g, xdr.ProcDomainCreateXML, (*handlers).domainCreateXML)
	onFilesIn(g, xdr.ProcDomainCreateWithFiles, (*handlers).domainCreateWithFiles)
	onFilesIn(g, xdr.ProcDomainCreateXMLWithFiles, (*handlers).domainCreateXMLWithFiles)
	on(g, xdr.ProcDomainSuspend, domainCall(guest.Suspend))
	on(g, xdr.ProcDomainResume, domainCall(guest.Resume))
	on(g, xdr.ProcDomainShutdown, domainCall(func(ctx context.Context, g *guest.Guest, sc scope.Scope) error {
		return guest.Shutdown(ctx, g, sc, guest.ShutdownDefault)
	}))
	on(g, xdr.ProcDomainShutdownFlags, flaggedCall("DOMAIN_SHUTDOWN_FLAGS", byACPI|byAgent, func(ctx context.Context, sc scope.Scope, g *guest.Guest, flags uint32) error {
		return guest.Shutdown(ctx, g, sc, shutdownMode(flags))
	}))
	on(g, xdr.ProcDomainReboot, flaggedCall("DOMAIN_REBOOT", byACPI|byAgent, func(ctx context.Context, sc scope.Scope, g *guest.Guest, flags uint32) error {
		return guest.Reboot(ctx, g, sc, shutdownMode(flags))
	}))
	on(g, xdr.ProcDomainReset, flaggedCall("DOMAIN_RESET", 0, func(ctx context.Context, sc scope.Scope, g *guest.Guest, _ uint32) error {
		return guest.Reset(ctx, g, sc)
	}))
	on(g, xdr.ProcDomainDestroy, domainCall(func(ctx context.Context, g *guest.Guest, sc scope.Scope) error {
		return guest.Destroy(ctx, g, sc, false)
	}))
	on(g, xdr.ProcDomainDestroyFlags, flaggedCall("DOMAIN_DESTROY_FLAGS", destroyGraceful, func(ctx context.Context, sc scope.Scope, g *guest.Guest, flags uint32) error {
		return guest.Destroy(ctx, g, sc, flags&destroyGraceful != 0)
	}))
	on(g, xdr.ProcDomainUndefine, domainCall(func(ctx context.Context, g *guest.Guest, sc scope.Scope) error {
		return guest.Undefine(ctx, g, sc, guest.UndefineOptions{})
	}))
	on(g, xdr.ProcDomainUndefineFlags, flaggedCall("DOMAIN_UNDEFINE_FLAGS", undefineFlags, undefine))
	on(g, xdr.ProcDomainInjectNMI, flaggedCall("DOMAIN_INJECT_NMI", 0, func(ctx context.Context, sc scope.Scope, g *guest.Guest, _ uint32) error {
		return guest.InjectNMI(ctx, g, sc)
	}))
	on(g, xdr.ProcDomainPMWakeup, flaggedCall("DOMAIN_PM_WAKEUP", 0, func(ctx context.Context, sc scope.Scope, g *guest.Guest, _ uint32) error {
		return guest.Wake(ctx, g, sc)
	}))
	on(g, xdr.ProcDomainRename, (*handlers).domainRename)
	on(g, xdr.ProcDomainGetAutostart, (*handlers).domainGetAutostart)
	on(g, xdr.ProcDomainSetAutostart, (*handlers).domainSetAutostart)
	on(g, xdr.ProcDomainGetAutostartOnce, (*handlers).domainGetAutostartOnce)
	on(g, xdr.ProcDomainSetAutostartOnce, (*handlers).domainSetAutostartOnce)
}

const defineValidate = 1

func (h *handlers) domainDefineXML(ctx context.Context, s *request, args *xdr.DomainDefineXMLArgs) (*xdr.DomainDefineXMLRet, error) {
	return reference(guest.Define(ctx, h.Guests, s.scope, args.XML, false))
}

func (h *handlers) domainDefineXMLFlags(ctx context.Context, s *request, args *xdr.DomainDefineXMLFlagsArgs) (*xdr.DomainDefineXMLFlagsRet, error) {
	if err := checkFlags("DOMAIN_DEFINE_XML_FLAGS", args.Flags, defineValidate); err != nil {
		return nil, err
	}
	validate := args.Flags&defineValidate != 0
	g, err := guest.Define(ctx, h.Guests, s.scope, args.XML, validate)
	return reference(g, asValidation(args.XML, validate, err))
}

// Flags of starting a domain.
const (
	startPaused      = 1
	startAutoDestroy = 2
	startBypassCache = 4
	startForceBoot   = 8
	startValidate    = 16
	startResetNVRAM  = 32
)

// startOptions reads the flags of a start. An autodestroy guest is destroyed when the
// session's connection ends, if the rules let the session end the guest then.
func startOptions(s *session, flags uint32) launch.StartOptions {
	return launch.StartOptions{
		Paused: flags&startPaused != 0, AutoDestroy: flags&startAutoDestroy != 0, Owner: s.gone, OwnerMay: s.mayStop,
		BypassCache: flags&startBypassCache != 0, ForceBoot: flags&startForceBoot != 0,
		Validate: flags&startValidate != 0, ResetNVRAM: flags&startResetNVRAM != 0,
	}
}

func (h *handlers) domainCreate(ctx context.Context, s *request, args *xdr.DomainCreateArgs) (*void, error) {
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, launch.Start(ctx, g, s.scope, startOptions(s.session, 0))
}

func (h *handlers) domainCreateWithFlags(ctx context.Context, s *request, args *xdr.DomainCreateWithFlagsArgs) (*xdr.DomainCreateWithFlagsRet, error) {
	const known = startPaused | startAutoDestroy | startBypassCache | startForceBoot | startResetNVRAM
	if err := checkFlags("DOMAIN_CREATE_WITH_FLAGS", args.Flags, known); err != nil {
		return nil, err
	}
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, err
	}
	return reference(g, launch.Start(ctx, g, s.scope, startOptions(s.session, args.Flags)))
}

func (h *handlers) domainCreateXML(ctx context.Context, s *request, args *xdr.DomainCreateXMLArgs) (*xdr.DomainCreateXMLRet, error) {
	const known = startPaused | startAutoDestroy | startValidate | startResetNVRAM
	if err := checkFlags("DOMAIN_CREATE_XML", args.Flags, known); err != nil {
		return nil, err
	}
	o := startOptions(s.session, args.Flags)
	g, err := guest.Create(ctx, h.Guests, s.scope, args.XML, o)
	return reference(g, asValidation(args.XML, o.Validate, err))
}

// refuseFiles refuses descriptors that came for a guest: they are for the first
// process of a container, which a machine does not have.
func refuseFiles(files []*os.File) error {
	if len(files) == 0 {
		return nil
	}
	return withCode(codeArgUnsupported, fault.New(fault.Unsupported, fault.Call, "descriptors cannot be passed to a QEMU guest"))
}

func (h *handlers) domainCreateWithFiles(ctx context.Context, s *request, args *xdr.DomainCreateWithFilesArgs, files []*os.File) (*xdr.DomainCreateWithFilesRet, error) {
	if err := refuseFiles(files); err != nil {
		return nil, err
	}
	return h.domainCreateWithFlags(ctx, s, args)
}

func (h *handlers) domainCreateXMLWithFiles(ctx context.Context, s *request, args *xdr.DomainCreateXMLWithFilesArgs, files []*os.File) (*xdr.DomainCreateXMLWithFilesRet, error) {
	if err := refuseFiles(files); err != nil {
		return nil, err
	}
	return h.domainCreateXML(ctx, s, args)
}

// Ways to ask a guest to go down.
const (
	byACPI  = 1
	byAgent = 2
)

func shutdownMode(flags uint32) guest.ShutdownMode {
	switch flags {
	case byACPI:
		return guest.ShutdownACPI
	case byAgent:
		return guest.ShutdownAgent
	}
	return guest.ShutdownDefault
}

const destroyGraceful = 1

// Flags that say which state goes with a definition, and which stays.
const (
	undefineManagedSave = 1
	undefineSnapshots   = 2
	undefineNVRAM       = 4
	undefineKeepNVRAM   = 8
	undefineCheckpoints = 16
	undefineTPM         = 32
	undefineKeepTPM     = 64
	undefineFlags       = 127
)

func undefine(ctx context.Context, sc scope.Scope, g *guest.Guest, flags uint32) error {
	if flags&(undefineNVRAM|undefineKeepNVRAM) == undefineNVRAM|undefineKeepNVRAM {
		return fault.New(fault.Invalid, fault.Call, "flags to remove and to keep the nvram exclude each other")
	}
	if flags&(undefineTPM|undefineKeepTPM) == undefineTPM|undefineKeepTPM {
		return fault.New(fault.Invalid, fault.Call, "flags to remove and to keep the TPM's state exclude each other")
	}
	return guest.Undefine(ctx, g, sc, guest.UndefineOptions{
		ManagedSave: flags&undefineManagedSave != 0, Snapshots: flags&undefineSnapshots != 0,
		Checkpoints: flags&undefineCheckpoints != 0, NVRAM: flags&undefineNVRAM != 0, KeepNVRAM: flags&undefineKeepNVRAM != 0,
		TPM: flags&undefineTPM != 0, KeepTPM: flags&undefineKeepTPM != 0,
	})
}

func (h *handlers) domainRename(ctx context.Context, s *request, args *xdr.DomainRenameArgs) (*xdr.DomainRenameRet, error) {
	if err := checkFlags("DOMAIN_RENAME", args.Flags, 0); err != nil {
		return nil, err
	}
	if args.NewName == nil {
		return nil, fault.New(fault.Invalid, fault.Call, "a domain cannot be without a name")
	}
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, err
	}
	return &xdr.DomainRenameRet{}, guest.Rename(ctx, g, s.scope, *args.NewName)
}

func (h *handlers) domainGetAutostart(_ context.Context, _ *request, args *xdr.DomainGetAutostartArgs) (*xdr.DomainGetAutostartRet, error) {
	v, err := h.view(args.Domain)
	if err != nil {
		return nil, err
	}
	return &xdr.DomainGetAutostartRet{Autostart: v.Autostart}, nil
}

func (h *handlers) domainSetAutostart(ctx context.Context, s *request, args *xdr.DomainSetAutostartArgs) (*void, error) {
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, guest.SetAutostart(ctx, g, s.scope, args.Autostart)
}

func (h *handlers) domainGetAutostartOnce(_ context.Context, _ *request, args *xdr.DomainGetAutostartOnceArgs) (*xdr.DomainGetAutostartOnceRet, error) {
	v, err := h.view(args.Domain)
	if err != nil {
		return nil, err
	}
	return &xdr.DomainGetAutostartOnceRet{Autostart: v.AutostartOnce}, nil
}

func (h *handlers) domainSetAutostartOnce(ctx context.Context, s *request, args *xdr.DomainSetAutostartOnceArgs) (*void, error) {
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, guest.SetAutostartOnce(ctx, g, s.scope, args.Autostart)
}
