package libvirt

import (
	"context"
	"os"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest/console"
)

// domainGraphicsCalls connect clients to a domain's displays, over sockets that
// travel with the call or with its reply.
func domainGraphicsCalls(g group) {
	onFilesIn(g, xdr.ProcDomainOpenGraphics, (*handlers).domainOpenGraphics)
	onFilesOut(g, xdr.ProcDomainOpenGraphicsFD, (*handlers).domainOpenGraphicsFD)
}

// graphicsSkipAuth lets the client in without the display's password.
const graphicsSkipAuth = 1

func (h *handlers) domainOpenGraphics(ctx context.Context, s *request, args *xdr.DomainOpenGraphicsArgs, files []*os.File) (*void, error) {
	const call = "DOMAIN_OPEN_GRAPHICS"
	if err := checkFlags(call, args.Flags, graphicsSkipAuth); err != nil {
		return nil, err
	}
	if len(files) != 1 {
		return nil, fault.New(fault.Invalid, fault.Call, "%s needs one descriptor, and came with %d", call, len(files))
	}
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, err
	}
	return nil, console.OpenGraphics(ctx, g, s.scope, uint(args.Index), args.Flags&graphicsSkipAuth != 0, files[0])
}

func (h *handlers) domainOpenGraphicsFD(ctx context.Context, s *request, args *xdr.DomainOpenGraphicsFDArgs) (*void, []*os.File, error) {
	if err := checkFlags("DOMAIN_OPEN_GRAPHICS_FD", args.Flags, graphicsSkipAuth); err != nil {
		return nil, nil, err
	}
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, nil, err
	}
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, nil, err
	}
	defer ours.Close()
	if err := console.OpenGraphics(ctx, g, s.scope, uint(args.Index), args.Flags&graphicsSkipAuth != 0, ours); err != nil {
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
