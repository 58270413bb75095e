package libvirt

import (
	"context"
	"os"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

// libraryVersion is the libvirt release that this server reports, counted as libvirt
// does: 1000000 major + 1000 minor + patch. Clients use the features of that release
// without asking. So it stays below the first release with features that are not built (decision 55).
const libraryVersion = 10_003_000

// systemURI is the only connection there is.
const systemURI = "qemu:///system"

// Flags of opening a connection.
const (
	openReadOnly  = 1
	openNoAliases = 2 // a matter of the client alone
)

// Features that a client may ask for. Others, such as migration, are not built.
const (
	featureFDs             = 8
	featureTypedStrings    = 9
	featureKeepalive       = 10
	featureEventCallbacks  = 14
	featureCloseCallback   = 15
	featureNetworkArgument = 16 // NETWORK_UPDATE has its arguments in the right order
)

// connectCalls are the calls about the connection itself.
func connectCalls(g group) {
	on(g, xdr.ProcConnectOpen, (*handlers).connectOpen)
	onThen(g, xdr.ProcConnectClose, (*handlers).connectClose)
	on(g, xdr.ProcConnectSupportsFeature, (*handlers).connectSupportsFeature)
	on(g, xdr.ProcConnectGetType, (*handlers).connectGetType)
	on(g, xdr.ProcConnectGetLibVersion, (*handlers).connectGetLibVersion)
	on(g, xdr.ProcConnectGetHostname, (*handlers).connectGetHostname)
	on(g, xdr.ProcConnectGetURI, (*handlers).connectGetURI)
	on(g, xdr.ProcConnectIsSecure, (*handlers).connectIsSecure)
}

func (h *handlers) connectOpen(_ context.Context, s *request, args *xdr.ConnectOpenArgs) (*void, error) {
	if err := checkFlags("CONNECT_OPEN", args.Flags, openReadOnly|openNoAliases); err != nil {
		return nil, err
	}
	// Behind the question mark are parameters that the client did not know itself; libvirt ignores them, too.
	if name, _, _ := strings.Cut(text(args.Name), "?"); name != "" && name != systemURI {
		return nil, withCode(codeNoConnect, fault.New(fault.Unsupported, fault.Call,
			"no connection driver available for %q: this daemon serves %s", name, systemURI))
	}
	return nil, s.open(systemURI, args.Flags&openReadOnly != 0)
}

// connectClose ends the connection behind the reply.
func (h *handlers) connectClose(_ context.Context, s *request, _ *void) (*void, func(), error) {
	s.unsubscribeAll()
	return nil, func() { s.client.send(&outgoing{last: true}) }, nil
}

func (h *handlers) connectSupportsFeature(_ context.Context, s *request, args *xdr.ConnectSupportsFeatureArgs) (*xdr.ConnectSupportsFeatureRet, error) {
	switch args.Feature {
	case featureKeepalive:
		s.client.alive.watchOver(s.client.end)
	case featureFDs:
		return &xdr.ConnectSupportsFeatureRet{Supported: s.client.tls == nil}, nil
	case featureTypedStrings, featureEventCallbacks, featureCloseCallback, featureNetworkArgument:
	default:
		return &xdr.ConnectSupportsFeatureRet{}, nil
	}
	return &xdr.ConnectSupportsFeatureRet{Supported: true}, nil
}

func (h *handlers) connectGetType(_ context.Context, _ *request, _ *void) (*xdr.ConnectGetTypeRet, error) {
	return &xdr.ConnectGetTypeRet{Type: "QEMU"}, nil
}

func (h *handlers) connectGetLibVersion(_ context.Context, _ *request, _ *void) (*xdr.ConnectGetLibVersionRet, error) {
	return &xdr.ConnectGetLibVersionRet{Version: libraryVersion}, nil
}

func (h *handlers) connectGetHostname(_ context.Context, _ *request, _ *void) (*xdr.ConnectGetHostnameRet, error) {
	name, err := os.Hostname()
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot tell the host's name")
	}
	return &xdr.ConnectGetHostnameRet{Hostname: name}, nil
}

func (h *handlers) connectGetURI(_ context.Context, s *request, _ *void) (*xdr.ConnectGetURIRet, error) {
	return &xdr.ConnectGetURIRet{URI: s.address()}, nil
}

// connectIsSecure answers that a unix socket is secure: its traffic stays on the host.
func (h *handlers) connectIsSecure(_ context.Context, _ *request, _ *void) (*xdr.ConnectIsSecureRet, error) {
	return &xdr.ConnectIsSecureRet{Secure: true}, nil
}
