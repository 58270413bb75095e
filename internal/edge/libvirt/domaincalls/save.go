package domaincalls

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// DomainSaveCalls save domains to images and restore them.
func DomainSaveCalls(g rpc.Group) {
	rpc.On(g, xdr.ProcDomainSave, domainSave)
	rpc.On(g, xdr.ProcDomainSaveFlags, domainSaveFlags)
	rpc.On(g, xdr.ProcDomainSaveParams, domainSaveParams)
	rpc.On(g, xdr.ProcDomainRestore, domainRestore)
	rpc.On(g, xdr.ProcDomainRestoreFlags, domainRestoreFlags)
	rpc.On(g, xdr.ProcDomainRestoreParams, domainRestoreParams)
	rpc.On(g, xdr.ProcDomainSaveImageGetXMLDesc, domainSaveImageGetXMLDesc)
	rpc.On(g, xdr.ProcDomainSaveImageDefineXML, domainSaveImageDefineXML)
	rpc.On(g, xdr.ProcDomainManagedSave, domainManagedSave)
	rpc.On(g, xdr.ProcDomainManagedSaveGetXMLDesc, domainManagedSaveGetXMLDesc)
	rpc.On(g, xdr.ProcDomainManagedSaveDefineXML, domainManagedSaveDefineXML)
	rpc.On(g, xdr.ProcDomainHasManagedSaveImage, domainHasManagedSaveImage)
	rpc.On(g, xdr.ProcDomainManagedSaveRemove, flaggedCall("DOMAIN_MANAGED_SAVE_REMOVE", 0, func(ctx context.Context, sc scope.Scope, g *guest.Guest, _ uint32) error {
		return savestate.RemoveManagedSave(ctx, g, sc)
	}))
}

// Flags of saving and restoring.
const (
	saveBypassCache = 1
	SaveRunning     = 2
	SavePaused      = 4
	SaveResetNVRAM  = 8

	SaveStateFlags = SaveRunning | SavePaused
	saveFlags      = saveBypassCache | SaveStateFlags
	restoreFlags   = saveFlags | SaveResetNVRAM
)

func saveOptions(call string, flags, known uint32, xml *string) (savestate.SaveOptions, error) {
	o := savestate.SaveOptions{BypassCache: flags&saveBypassCache != 0, ResetNVRAM: flags&SaveResetNVRAM != 0}
	if err := rpc.CheckFlags(call, flags, known); err != nil {
		return o, err
	}
	switch flags & SaveStateFlags {
	case SaveRunning:
		o.Then = domain.Running
	case SavePaused:
		o.Then = domain.Paused
	case SaveStateFlags:
		return o, fault.New(fault.Invalid, fault.Call, "the flags running and paused exclude each other")
	}
	if xml != nil {
		o.XML = *xml
	}
	return o, nil
}

func save(ctx context.Context, h *rpc.Handlers, sc scope.Scope, d xdr.Domain, to string, o savestate.SaveOptions) (*rpc.Void, error) {
	g, err := FindGuest(h, d)
	if err != nil {
		return nil, err
	}
	return nil, savestate.Save(ctx, g, sc, to, o)
}

func domainSave(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainSaveArgs) (*rpc.Void, error) {
	return save(ctx, h, s.Scope, args.Domain, args.To, savestate.SaveOptions{})
}

func domainSaveFlags(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainSaveFlagsArgs) (*rpc.Void, error) {
	o, err := saveOptions("DOMAIN_SAVE_FLAGS", args.Flags, saveFlags, args.DestXML)
	if err != nil {
		return nil, err
	}
	return save(ctx, h, s.Scope, args.Domain, args.To, o)
}

// SaveParams converts the typed parameters of a save or restore.
func SaveParams(call string, params []xdr.TypedParam) (file string, xml *string, err error) {
	for _, p := range params {
		text := p.Value.Text()
		switch {
		case p.Field == "file" && p.Value.Kind() == xdr.KindString:
			file = text
		case p.Field == "dxml" && p.Value.Kind() == xdr.KindString:
			xml = &text
		default:
			return "", nil, rpc.WithCode(rpc.CodeArgUnsupported, fault.New(fault.Unsupported, fault.Call, "parameter '%s' of %s", p.Field, rpc.FunctionName(call)))
		}
	}
	return file, xml, nil
}

// domainSaveParams without a file is a managed save.
func domainSaveParams(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainSaveParamsArgs) (*rpc.Void, error) {
	const call = "DOMAIN_SAVE_PARAMS"
	file, xml, err := SaveParams(call, args.Params)
	if err != nil {
		return nil, err
	}
	o, err := saveOptions(call, args.Flags, saveFlags, xml)
	if err != nil {
		return nil, err
	}
	if file != "" {
		return save(ctx, h, s.Scope, args.Domain, file, o)
	}
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, savestate.ManagedSave(ctx, g, s.Scope, o)
}

func restore(ctx context.Context, h *rpc.Handlers, sc scope.Scope, from string, o savestate.SaveOptions) (*rpc.Void, error) {
	_, err := guest.Restore(ctx, h.Guests, sc, from, o)
	return nil, err
}

func domainRestore(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainRestoreArgs) (*rpc.Void, error) {
	return restore(ctx, h, s.Scope, args.From, savestate.SaveOptions{})
}

func domainRestoreFlags(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainRestoreFlagsArgs) (*rpc.Void, error) {
	o, err := saveOptions("DOMAIN_RESTORE_FLAGS", args.Flags, restoreFlags, args.DestXML)
	if err != nil {
		return nil, err
	}
	return restore(ctx, h, s.Scope, args.From, o)
}

func domainRestoreParams(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainRestoreParamsArgs) (*rpc.Void, error) {
	const call = "DOMAIN_RESTORE_PARAMS"
	file, xml, err := SaveParams(call, args.Params)
	if err != nil {
		return nil, err
	}
	if file == "" {
		return nil, fault.New(fault.Invalid, fault.Call, "%s needs the parameter 'file'", call)
	}
	o, err := saveOptions(call, args.Flags, restoreFlags, xml)
	if err != nil {
		return nil, err
	}
	return restore(ctx, h, s.Scope, file, o)
}

func domainSaveImageGetXMLDesc(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainSaveImageGetXMLDescArgs) (*xdr.DomainSaveImageGetXMLDescRet, error) {
	if err := rpc.CheckFlags("DOMAIN_SAVE_IMAGE_GET_XML_DESC", args.Flags, rpc.XMLSecure); err != nil {
		return nil, err
	}
	doc, err := savestate.SavedXML(ctx, h.Guests, s.Scope, args.File, args.Flags&rpc.XMLSecure != 0)
	return &xdr.DomainSaveImageGetXMLDescRet{XML: doc}, err
}

func domainSaveImageDefineXML(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainSaveImageDefineXMLArgs) (*rpc.Void, error) {
	o, err := saveOptions("DOMAIN_SAVE_IMAGE_DEFINE_XML", args.Flags, SaveStateFlags, &args.DestXML)
	if err != nil {
		return nil, err
	}
	return nil, savestate.RedefineSaved(ctx, h.Guests, s.Scope, args.File, o)
}

func domainManagedSaveGetXMLDesc(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainManagedSaveGetXMLDescArgs) (*xdr.DomainManagedSaveGetXMLDescRet, error) {
	const call = "DOMAIN_MANAGED_SAVE_GET_XML_DESC"
	if err := rpc.CheckFlags(call, args.Flags, rpc.XMLSecure); err != nil {
		return nil, err
	}
	if args.Flags&rpc.XMLSecure != 0 {
		if err := s.DenyReadOnly(call, "secure flag"); err != nil {
			return nil, err
		}
	}
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	doc, err := savestate.ManagedSavedXML(ctx, g, s.Scope, args.Flags&rpc.XMLSecure != 0)
	return &xdr.DomainManagedSaveGetXMLDescRet{XML: doc}, err
}

func domainManagedSaveDefineXML(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainManagedSaveDefineXMLArgs) (*rpc.Void, error) {
	o, err := saveOptions("DOMAIN_MANAGED_SAVE_DEFINE_XML", args.Flags, SaveStateFlags, args.DestXML)
	if err != nil {
		return nil, err
	}
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, savestate.RedefineManagedSave(ctx, g, s.Scope, o)
}

func domainManagedSave(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainManagedSaveArgs) (*rpc.Void, error) {
	o, err := saveOptions("DOMAIN_MANAGED_SAVE", args.Flags, saveFlags, nil)
	if err != nil {
		return nil, err
	}
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, savestate.ManagedSave(ctx, g, s.Scope, o)
}

func domainHasManagedSaveImage(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.DomainHasManagedSaveImageArgs) (*xdr.DomainHasManagedSaveImageRet, error) {
	if err := rpc.CheckFlags("DOMAIN_HAS_MANAGED_SAVE_IMAGE", args.Flags, 0); err != nil {
		return nil, err
	}
	v, err := ViewOf(h, args.Domain)
	if err != nil {
		return nil, err
	}
	return &xdr.DomainHasManagedSaveImageRet{Result: v.ManagedSave}, nil
}
