package rpc

import (
	"context"
	"os"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

// LibraryVersion is the libvirt release that this server reports, as libvirt encodes it:
// 1000000 major + 1000 minor + patch. Clients use the features of that release without
// asking. So it stays below the first release with features that are not built (decision 55).
const LibraryVersion = 10_003_000

// SystemURI is the only URI that can be opened.
const SystemURI = "qemu:///system"

// Flags of opening a connection.
const (
	OpenReadOnly  = 1
	openNoAliases = 2 // has an effect in the client only
)

// Features that a client may ask for. Others, such as migration, are not built.
const (
	featureFDs             = 8
	FeatureTypedStrings    = 9
	featureKeepalive       = 10
	featureEventCallbacks  = 14
	featureCloseCallback   = 15
	featureNetworkArgument = 16 // NETWORK_UPDATE takes command and section in the documented order
)

// ConnectCalls are the calls about the connection itself.
func ConnectCalls(g Group) {
	On(g, xdr.ProcConnectOpen, connectOpen)
	OnAfterReply(g, xdr.ProcConnectClose, connectClose)
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
	// After the question mark are parameters that the client left in the URI; libvirt ignores them, too.
	if name, _, _ := strings.Cut(StringValue(args.Name), "?"); name != "" && name != SystemURI {
		return nil, WithCode(CodeNoConnect, fault.New(fault.Unsupported, fault.Call,
			"no connection driver available for %q: this daemon serves %s", name, SystemURI))
	}
	return nil, s.open(SystemURI, args.Flags&OpenReadOnly != 0)
}

// connectClose ends the connection after the reply.
func connectClose(_ context.Context, h *Handlers, s *Request, _ *Void) (*Void, func(), error) {
	s.unsubscribeAll()
	return nil, func() { s.Client.send(&outgoing{closeAfter: true}) }, nil
}

func connectSupportsFeature(_ context.Context, h *Handlers, s *Request, args *xdr.ConnectSupportsFeatureArgs) (*xdr.ConnectSupportsFeatureRet, error) {
	switch args.Feature {
	case featureKeepalive:
		s.Client.keepalive.startPinging(s.Client.End)
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
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot read the host's name")
	}
	return &xdr.ConnectGetHostnameRet{Hostname: name}, nil
}

func connectGetURI(_ context.Context, h *Handlers, s *Request, _ *Void) (*xdr.ConnectGetURIRet, error) {
	return &xdr.ConnectGetURIRet{URI: s.uri()}, nil
}

// connectIsSecure: a unix socket is secure because its traffic stays on the host, and other connections use TLS.
func connectIsSecure(_ context.Context, h *Handlers, _ *Request, _ *Void) (*xdr.ConnectIsSecureRet, error) {
	return &xdr.ConnectIsSecureRet{Secure: true}, nil
}
