package rpc

import (
	"context"
	"os"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

// LibraryVersion is the libvirt release that this server reports, counted as libvirt
// does: 1000000 major + 1000 minor + patch. Clients use the features of that release
// without asking. So it stays below the first release with features that are not built (decision 55).
const LibraryVersion = 10_003_000

// SystemURI is the only connection there is.
const SystemURI = "qemu:///system"

// Flags of opening a connection.
const (
	OpenReadOnly  = 1
	openNoAliases = 2 // a matter of the client alone
)

// Features that a client may ask for. Others, such as migration, are not built.
const (
	featureFDs             = 8
	FeatureTypedStrings    = 9
	featureKeepalive       = 10
	featureEventCallbacks  = 14
	featureCloseCallback   = 15
	featureNetworkArgument = 16 // NETWORK_UPDATE has its arguments in the right order
)

// ConnectCalls are the calls about the connection itself.
func ConnectCalls(g Group) {
	On(g, xdr.ProcConnectOpen, connectOpen)
	OnThen(g, xdr.ProcConnectClose, connectClose)
	On(g, xdr.ProcConnectSupportsFeature, connectSupportsFeature)
	On(g, xdr.ProcConnectGetType, connectGetType)
	On(g, xdr.ProcConnectGetLibVersion, connectGetLibVersion)
	On(g, xdr.ProcConnectGetHostname, connectGetHostname)
	On(g, xdr.ProcConnectGetURI, connectGetURI)
	On(g, xdr.ProcConnectIsSecure, connectIsSecure)
}

func connectOpen(_ context.Context, h *Handlers, s *Request, args *xdr.ConnectOpenArgs) (*Void, error) {
	if err := CheckFlags("CONNECT_OPEN", args.Flags, OpenReadOnly|openNoAliases); err != nil {
		return nil, err
	}
	// Behind the question mark are parameters that the client did not know itself; libvirt ignores them, too.
	if name, _, _ := strings.Cut(Text(args.Name), "?"); name != "" && name != SystemURI {
		return nil, WithCode(CodeNoConnect, fault.New(fault.Unsupported, fault.Call,
			"no connection driver available for %q: this daemon serves %s", name, SystemURI))
	}
	return nil, s.open(SystemURI, args.Flags&OpenReadOnly != 0)
}

// connectClose ends the connection behind the reply.
func connectClose(_ context.Context, h *Handlers, s *Request, _ *Void) (*Void, func(), error) {
	s.unsubscribeAll()
	return nil, func() { s.Client.send(&outgoing{last: true}) }, nil
}

func connectSupportsFeature(_ context.Context, h *Handlers, s *Request, args *xdr.ConnectSupportsFeatureArgs) (*xdr.ConnectSupportsFeatureRet, error) {
	switch args.Feature {
	case featureKeepalive:
		s.Client.alive.watchOver(s.Client.End)
	case featureFDs:
		return &xdr.ConnectSupportsFeatureRet{Supported: s.Client.tls == nil}, nil
	case FeatureTypedStrings, featureEventCallbacks, featureCloseCallback, featureNetworkArgument:
	default:
		return &xdr.ConnectSupportsFeatureRet{}, nil
	}
	return &xdr.ConnectSupportsFeatureRet{Supported: true}, nil
}

func connectGetType(_ context.Context, h *Handlers, _ *Request, _ *Void) (*xdr.ConnectGetTypeRet, error) {
	return &xdr.ConnectGetTypeRet{Type: "QEMU"}, nil
}

func connectGetLibVersion(_ context.Context, h *Handlers, _ *Request, _ *Void) (*xdr.ConnectGetLibVersionRet, error) {
	return &xdr.ConnectGetLibVersionRet{Version: LibraryVersion}, nil
}

func connectGetHostname(_ context.Context, h *Handlers, _ *Request, _ *Void) (*xdr.ConnectGetHostnameRet, error) {
	name, err := os.Hostname()
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot tell the host's name")
	}
	return &xdr.ConnectGetHostnameRet{Hostname: name}, nil
}

func connectGetURI(_ context.Context, h *Handlers, s *Request, _ *Void) (*xdr.ConnectGetURIRet, error) {
	return &xdr.ConnectGetURIRet{URI: s.address()}, nil
}

// connectIsSecure answers that a unix socket is secure: its traffic stays on the host.
func connectIsSecure(_ context.Context, h *Handlers, _ *Request, _ *Void) (*xdr.ConnectIsSecureRet, error) {
	return &xdr.ConnectIsSecureRet{Secure: true}, nil
}
