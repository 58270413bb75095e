package domaincalls

import (
	"context"
	"os"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest/console"
)

// DomainGraphicsCalls connect clients to a domain's displays, over a socket that
// comes with the call or goes with its reply.
func DomainGraphicsCalls(g rpc.Group) {
	rpc.OnFilesIn(g, xdr.ProcDomainOpenGraphics, domainOpenGraphics)
	rpc.OnFilesOut(g, xdr.ProcDomainOpenGraphicsFD, domainOpenGraphicsFD)
}

// graphicsSkipAuth connects the client without the display's password.
const graphicsSkipAuth = 1

func domainOpenGraphics(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainOpenGraphicsArgs, files []*os.File) (*rpc.Void, error) {
	const call = "DOMAIN_OPEN_GRAPHICS"
	if err := rpc.CheckFlags(call, args.Flags, graphicsSkipAuth); err != nil {
		return nil, err
	}
	if len(files) != 1 {
		return nil, fault.New(fault.Invalid, fault.Call, "%s needs one descriptor and came with %d", call, len(files))
	}
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, console.OpenGraphics(ctx, g, s.Scope, uint(args.Index), args.Flags&graphicsSkipAuth != 0, files[0])
}

func domainOpenGraphicsFD(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainOpenGraphicsFDArgs) (*rpc.Void, []*os.File, error) {
	if err := rpc.CheckFlags("DOMAIN_OPEN_GRAPHICS_FD", args.Flags, graphicsSkipAuth); err != nil {
		return nil, nil, err
	}
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, nil, err
	}
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, nil, err
	}
	defer ours.Close()
	if err := console.OpenGraphics(ctx, g, s.Scope, uint(args.Index), args.Flags&graphicsSkipAuth != 0, ours); err != nil {
		_ = theirs.Close()
		return nil, nil, err
	}
	return nil, []*os.File{theirs}, nil
}

func socketPair() (ours, theirs *os.File, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot make a pair of sockets")
	}
	return os.NewFile(uintptr(pair[0]), "display"), os.NewFile(uintptr(pair[1]), "client"), nil
}
