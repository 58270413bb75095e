package libvirt

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// domainSaveCalls put guests into files and take them out again.
func domainSaveCalls(g group) {
	on(g, xdr.ProcDomainSave, (*handlers).domainSave)
	on(g, xdr.ProcDomainSaveFlags, (*handlers).domainSaveFlags)
	on(g, xdr.ProcDomainSaveParams, (*handlers).domainSaveParams)
	on(g, xdr.ProcDomainRestore, (*handlers).domainRestore)
	on(g, xdr.ProcDomainRestoreFlags, (*handlers).domainRestoreFlags)
	on(g, xdr.ProcDomainRestoreParams, (*handlers).domainRestoreParams)
	on(g, xdr.ProcDomainSaveImageGetXMLDesc, (*handlers).domainSaveImageGetXMLDesc)
	on(g, xdr.ProcDomainSaveImageDefineXML, (*handlers).domainSaveImageDefineXML)
	on(g, xdr.ProcDomainManagedSave, (*handlers).domainManagedSave)
	on(g, xdr.ProcDomainManagedSaveGetXMLDesc, (*handlers).domainManagedSaveGetXMLDesc)
	on(g, xdr.ProcDomainManagedSaveDefineXML, (*handlers).domainManagedSaveDefineXML)
	on(g, xdr.ProcDomainHasManagedSaveImage, (*handlers).domainHasManagedSaveImage)
	on(g, xdr.ProcDomainManagedSaveRemove, flaggedCall("DOMAIN_MANAGED_SAVE_REMOVE", 0, func(ctx context.Context, sc scope.Scope, g *guest.Guest, _ uint32) error {
		return savestate.RemoveManagedSave(ctx, g, sc)
	}))
}

// Flags of saving and restoring.
const (
	saveBypassCache = 1
	saveRunning     = 2
	savePaused      = 4
	saveResetNVRAM  = 8

	saveThen     = saveRunning | savePaused
	saveFlags    = saveBypassCache | saveThen
	restoreFlags = saveFlags | saveResetNVRAM
)

func saveOptions(call string, flags, known uint32, xml *string) (savestate.SaveOptions, error) {
	o := savestate.SaveOptions{BypassCache: flags&saveBypassCache != 0, ResetNVRAM: flags&saveResetNVRAM != 0}
	if err := checkFlags(call, flags, known); err != nil {
		return o, err
	}
	switch flags & saveThen {
	case saveRunning:
		o.Then = domain.Running
	case savePaused:
		o.Then = domain.Paused
	case saveThen:
		return o, fault.New(fault.Invalid, fault.Call, "flags for running and for paused exclude each other")
	}
	if xml != nil {
		o.XML = *xml
	}
	return o, nil
}

func (h *handlers) save(ctx context.Context, sc scope.Scope, d xdr.Domain, to string, o savestate.SaveOptions) (*void, error) {
	g, err := h.guest(d)
	if err != nil {
		return nil, err
	}
	return nil, savestate.Save(ctx, g, sc, to, o)
}

func (h *handlers) domainSave(ctx context.Context, s *request, args *xdr.DomainSaveArgs) (*void, error) {
	return h.save(ctx, s.scope, args.Domain, args.To, savestate.SaveOptions{})
}

func (h *handlers) domainSaveFlags(ctx context.Context, s *request, args *xdr.DomainSaveFlagsArgs) (*void, error) {
	o, err := saveOptions("DOMAIN_SAVE_FLAGS", args.Flags, saveFlags, args.DestXML)
	if err != nil {
		return nil, err
	}
	return h.save(ctx, s.scope, args.Domain, args.To, o)
}

// saveParams reads the typed parameters of a save or restore.
func saveParams(call string, params []xdr.TypedParam) (file string, xml *string, err error) {
	for _, p := range params {
		text := p.Value.Text()
		switch {
		case p.Field == "file" && p.Value.Kind() == xdr.KindString:
			file = text
		case p.Field == "dxml" && p.Value.Kind() == xdr.KindString:
			xml = &text
		default:
			return "", nil, withCode(codeArgUnsupported, fault.New(fault.Unsupported, fault.Call, "parameter '%s' of %s", p.Field, functionName(call)))
		}
	}
	return file, xml, nil
}

// domainSaveParams without a file is a managed save.
func (h *handlers) domainSaveParams(ctx context.Context, s *request, args *xdr.DomainSaveParamsArgs) (*void, error) {
	const call = "DOMAIN_SAVE_PARAMS"
	file, xml, err := saveParams(call, args.Params)
	if err != nil {
		return nil, err
	}
	o, err := saveOptions(call, args.Flags, saveFlags, xml)
	if err != nil {
		return nil, err
	}
	if file != "" {
		return h.save(ctx, s.scope, args.Domain, file, o)
	}
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, savestate.ManagedSave(ctx, g, s.scope, o)
}

func (h *handlers) restore(ctx context.Context, sc scope.Scope, from string, o savestate.SaveOptions) (*void, error) {
	_, err := guest.Restore(ctx, h.Guests, sc, from, o)
	return nil, err
}

func (h *handlers) domainRestore(ctx context.Context, s *request, args *xdr.DomainRestoreArgs) (*void, error) {
	return h.restore(ctx, s.scope, args.From, savestate.SaveOptions{})
}

func (h *handlers) domainRestoreFlags(ctx context.Context, s *request, args *xdr.DomainRestoreFlagsArgs) (*void, error) {
	o, err := saveOptions("DOMAIN_RESTORE_FLAGS", args.Flags, restoreFlags, args.DestXML)
	if err != nil {
		return nil, err
	}
	return h.restore(ctx, s.scope, args.From, o)
}

func (h *handlers) domainRestoreParams(ctx context.Context, s *request, args *xdr.DomainRestoreParamsArgs) (*void, error) {
	const call = "DOMAIN_RESTORE_PARAMS"
	file, xml, err := saveParams(call, args.Params)
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
	return h.restore(ctx, s.scope, file, o)
}

func (h *handlers) domainSaveImageGetXMLDesc(ctx context.Context, s *request, args *xdr.DomainSaveImageGetXMLDescArgs) (*xdr.DomainSaveImageGetXMLDescRet, error) {
	if err := checkFlags("DOMAIN_SAVE_IMAGE_GET_XML_DESC", args.Flags, xmlSecure); err != nil {
		return nil, err
	}
	doc, err := savestate.SavedXML(ctx, h.Guests, s.scope, args.File, args.Flags&xmlSecure != 0)
	return &xdr.DomainSaveImageGetXMLDescRet{XML: doc}, err
}

func (h *handlers) domainSaveImageDefineXML(ctx context.Context, s *request, args *xdr.DomainSaveImageDefineXMLArgs) (*void, error) {
	o, err := saveOptions("DOMAIN_SAVE_IMAGE_DEFINE_XML", args.Flags, saveThen, &args.DestXML)
	if err != nil {
		return nil, err
	}
	return nil, savestate.RedefineSaved(ctx, h.Guests, s.scope, args.File, o)
}

func (h *handlers) domainManagedSaveGetXMLDesc(ctx context.Context, s *request, args *xdr.DomainManagedSaveGetXMLDescArgs) (*xdr.DomainManagedSaveGetXMLDescRet, error) {
	const call = "DOMAIN_MANAGED_SAVE_GET_XML_DESC"
	if err := checkFlags(call, args.Flags, xmlSecure); err != nil {
		return nil, err
	}
	if args.Flags&xmlSecure != 0 {
		if err := s.denyReadOnly(call, "secure flag"); err != nil {
			return nil, err
		}
	}
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, err
	}
	doc, err := savestate.ManagedSavedXML(ctx, g, s.scope, args.Flags&xmlSecure != 0)
	return &xdr.DomainManagedSaveGetXMLDescRet{XML: doc}, err
}

func (h *handlers) domainManagedSaveDefineXML(ctx context.Context, s *request, args *xdr.DomainManagedSaveDefineXMLArgs) (*void, error) {
	o, err := saveOptions("DOMAIN_MANAGED_SAVE_DEFINE_XML", args.Flags, saveThen, args.DestXML)
	if err != nil {
		return nil, err
	}
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, savestate.RedefineManagedSave(ctx, g, s.scope, o)
}

func (h *handlers) domainManagedSave(ctx context.Context, s *request, args *xdr.DomainManagedSaveArgs) (*void, error) {
	o, err := saveOptions("DOMAIN_MANAGED_SAVE", args.Flags, saveFlags, nil)
	if err != nil {
		return nil, err
	}
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, savestate.ManagedSave(ctx, g, s.scope, o)
}

func (h *handlers) domainHasManagedSaveImage(_ context.Context, _ *request, args *xdr.DomainHasManagedSaveImageArgs) (*xdr.DomainHasManagedSaveImageRet, error) {
	if err := checkFlags("DOMAIN_HAS_MANAGED_SAVE_IMAGE", args.Flags, 0); err != nil {
		return nil, err
	}
	v, err := h.view(args.Domain)
	if err != nil {
		return nil, err
	}
	return &xdr.DomainHasManagedSaveImageRet{Result: v.ManagedSave}, nil
}
