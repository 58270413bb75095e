package domaincalls

import (
	"context"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest/console"
)

// DomainKeyCalls send key presses to a domain.
func DomainKeyCalls(g rpc.Group) {
	rpc.On(g, xdr.ProcDomainSendKey, domainSendKey)
}

// codesets are the numberings of keys (virKeycodeSet), by libvirt's numbers. Those of
// other systems are not built.
var codesets = map[uint32]func(uint32) (console.Key, error){
	0: console.LinuxKey,
	9: console.ScanKey, // "qnum"
}

func domainSendKey(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainSendKeyArgs) (*rpc.Void, error) {
	if err := rpc.CheckFlags("DOMAIN_SEND_KEY", args.Flags, 0); err != nil {
		return nil, err
	}
	find := codesets[args.Codeset]
	if find == nil {
		return nil, rpc.WithCode(rpc.CodeArgUnsupported, fault.New(fault.Unsupported, fault.Call, "codeset %d; use codeset linux or qnum", args.Codeset))
	}
	if len(args.KeyCodes) == 0 {
		return nil, fault.New(fault.Invalid, fault.Call, "no keys are given")
	}
	keys := make([]console.Key, len(args.KeyCodes))
	for i, code := range args.KeyCodes {
		var err error
		if keys[i], err = find(code); err != nil {
			return nil, err
		}
	}
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, console.SendKeys(ctx, g, s.Scope, keys, time.Duration(args.HoldTime)*time.Millisecond)
}
