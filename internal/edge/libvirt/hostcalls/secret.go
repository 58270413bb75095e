package hostcalls

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/host/secret"
)

// Flags of the calls about secrets.
const (
	secretValidate = 1 << 0

	listSecretEphemeral   = 1 << 0
	listSecretNoEphemeral = 1 << 1
	listSecretPrivate     = 1 << 2
	listSecretNoPrivate   = 1 << 3
	listSecretAll         = 1<<4 - 1
)

// SecretCalls are the calls about secrets. On a read-only connection, the procedure
// table refuses every call that returns a secret's value.
func SecretCalls(g rpc.Group) {
	rpc.On(g, xdr.ProcConnectNumOfSecrets, connectNumOfSecrets)
	rpc.On(g, xdr.ProcConnectListSecrets, connectListSecrets)
	rpc.On(g, xdr.ProcConnectListAllSecrets, ConnectListAllSecrets)
	rpc.On(g, xdr.ProcSecretLookupByUUID, secretLookupByUUID)
	rpc.On(g, xdr.ProcSecretLookupByUsage, secretLookupByUsage)
	rpc.On(g, xdr.ProcSecretDefineXML, secretDefineXML)
	rpc.On(g, xdr.ProcSecretGetXMLDesc, secretGetXMLDesc)
	rpc.On(g, xdr.ProcSecretSetValue, secretSetValue)
	rpc.On(g, xdr.ProcSecretGetValue, secretGetValue)
	rpc.On(g, xdr.ProcSecretUndefine, secretUndefine)
}

func wireSecret(d secret.Definition) (xdr.Secret, error) {
	id, err := rpc.ParseUUID(d.UUID)
	return xdr.Secret{UUID: id, UsageType: rpc.SecretUsages[d.Usage.Type], UsageID: d.Usage.ID}, err
}

// secretReply returns the reply of calls that return a secret, or the error.
func secretReply(d secret.Definition, err error) (*xdr.WithSecret, error) {
	if err != nil {
		return nil, err
	}
	w, err := wireSecret(d)
	return &xdr.WithSecret{Secret: w}, err
}

func connectNumOfSecrets(_ context.Context, h *rpc.Handlers, _ *rpc.Request, _ *rpc.Void) (*xdr.WithCount, error) {
	return &xdr.WithCount{Count: int32(len(h.Secrets.List()))}, nil
}

func connectListSecrets(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.ConnectListSecretsArgs) (*xdr.ConnectListSecretsRet, error) {
	ret := &xdr.ConnectListSecretsRet{}
	for _, d := range h.Secrets.List() {
		ret.UUIDs = append(ret.UUIDs, d.UUID)
	}
	return ret, rpc.TruncateList(&ret.UUIDs, args.MaxUUIDs)
}

// ConnectListAllSecrets serves CONNECT_LIST_ALL_SECRETS.
func ConnectListAllSecrets(_ context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.WithNeedResultsFlags) (*xdr.ConnectListAllSecretsRet, error) {
	if err := rpc.CheckFlags("CONNECT_LIST_ALL_SECRETS", args.Flags, listSecretAll); err != nil {
		return nil, err
	}
	ret := &xdr.ConnectListAllSecretsRet{}
	if !canSeeEverything(s.Session) { // the number is hidden, too
		return ret, nil
	}
	for _, d := range h.Secrets.List() {
		if !rpc.MatchesFilter(args.Flags, listSecretEphemeral, listSecretNoEphemeral, d.Ephemeral) ||
			!rpc.MatchesFilter(args.Flags, listSecretPrivate, listSecretNoPrivate, d.Private) {
			continue
		}
		ret.Count++
		if !args.NeedResults {
			continue
		}
		w, err := wireSecret(d)
		if err != nil {
			return nil, err
		}
		ret.Secrets = append(ret.Secrets, w)
	}
	return ret, nil
}

func secretLookupByUUID(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.WithUUID) (*xdr.WithSecret, error) {
	return secretReply(h.Secrets.ByUUID(rpc.FormatUUID(args.UUID)))
}

func secretLookupByUsage(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.SecretLookupByUsageArgs) (*xdr.WithSecret, error) {
	for usage, number := range rpc.SecretUsages {
		if number == args.UsageType {
			return secretReply(h.Secrets.ByUsage(secret.Usage{Type: usage, ID: args.UsageID}))
		}
	}
	return nil, fault.New(fault.Invalid, fault.Call, "there is no usage type %d of secrets", args.UsageType)
}

func secretDefineXML(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.WithXMLFlags) (*xdr.WithSecret, error) {
	if err := rpc.CheckFlags("SECRET_DEFINE_XML", args.Flags, secretValidate); err != nil {
		return nil, err
	}
	return secretReply(h.Secrets.Define(s.Scope, args.XML, args.Flags&secretValidate != 0))
}

func secretGetXMLDesc(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.WithSecretFlags) (*xdr.WithXML, error) {
	if err := rpc.CheckFlags("SECRET_GET_XML_DESC", args.Flags, 0); err != nil {
		return nil, err
	}
	d, err := h.Secrets.ByUUID(rpc.FormatUUID(args.Secret.UUID))
	if err != nil {
		return nil, err
	}
	doc, err := d.XML()
	return &xdr.WithXML{XML: doc}, err
}

func secretSetValue(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.SecretSetValueArgs) (*rpc.Void, error) {
	defer clear(args.Value)
	if err := rpc.CheckFlags("SECRET_SET_VALUE", args.Flags, 0); err != nil {
		return nil, err
	}
	return nil, h.Secrets.SetValue(s.Scope, rpc.FormatUUID(args.Secret.UUID), args.Value)
}

func secretGetValue(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.WithSecretFlags) (*xdr.SecretGetValueRet, error) {
	if err := rpc.CheckFlags("SECRET_GET_VALUE", args.Flags, 0); err != nil {
		return nil, err
	}
	value, err := h.Secrets.Show(s.Scope, rpc.FormatUUID(args.Secret.UUID))
	if fault.Is(err, fault.Denied) {
		return nil, rpc.WithCode(rpc.CodeInvalidSecret, err)
	}
	return &xdr.SecretGetValueRet{Value: value}, err
}

func secretUndefine(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.WithSecret) (*rpc.Void, error) {
	return nil, h.Secrets.Undefine(s.Scope, rpc.FormatUUID(args.Secret.UUID))
}
