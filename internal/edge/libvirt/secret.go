package libvirt

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
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

// secretUsages are libvirt's numbers for the usage types of secrets.
var secretUsages = map[string]int32{"": 0, "volume": 1, "ceph": 2, "iscsi": 3, "tls": 4, "vtpm": 5}

// secretCalls are the calls about secrets. On a read-only connection, the table of
// procedures refuses every call that gives a secret's value.
func secretCalls(g group) {
	on(g, xdr.ProcConnectNumOfSecrets, (*handlers).connectNumOfSecrets)
	on(g, xdr.ProcConnectListSecrets, (*handlers).connectListSecrets)
	on(g, xdr.ProcConnectListAllSecrets, (*handlers).connectListAllSecrets)
	on(g, xdr.ProcSecretLookupByUUID, (*handlers).secretLookupByUUID)
	on(g, xdr.ProcSecretLookupByUsage, (*handlers).secretLookupByUsage)
	on(g, xdr.ProcSecretDefineXML, (*handlers).secretDefineXML)
	on(g, xdr.ProcSecretGetXMLDesc, (*handlers).secretGetXMLDesc)
	on(g, xdr.ProcSecretSetValue, (*handlers).secretSetValue)
	on(g, xdr.ProcSecretGetValue, (*handlers).secretGetValue)
	on(g, xdr.ProcSecretUndefine, (*handlers).secretUndefine)
}

func wireSecret(d secret.Definition) (xdr.Secret, error) {
	id, err := parseUUID(d.UUID)
	return xdr.Secret{UUID: id, UsageType: secretUsages[d.Usage.Type], UsageID: d.Usage.ID}, err
}

// withSecret gives a secret as calls return it, or passes an error on.
func withSecret(d secret.Definition, err error) (*xdr.WithSecret, error) {
	if err != nil {
		return nil, err
	}
	w, err := wireSecret(d)
	return &xdr.WithSecret{Secret: w}, err
}

func (h *handlers) connectNumOfSecrets(_ context.Context, _ *request, _ *void) (*xdr.WithCount, error) {
	return &xdr.WithCount{Count: int32(len(h.Secrets.List()))}, nil
}

func (h *handlers) connectListSecrets(_ context.Context, _ *request, args *xdr.ConnectListSecretsArgs) (*xdr.ConnectListSecretsRet, error) {
	ret := &xdr.ConnectListSecretsRet{}
	for _, d := range h.Secrets.List() {
		ret.UUIDs = append(ret.UUIDs, d.UUID)
	}
	return ret, atMost(&ret.UUIDs, args.MaxUUIDs)
}

func (h *handlers) connectListAllSecrets(_ context.Context, s *request, args *xdr.WithNeedResultsFlags) (*xdr.ConnectListAllSecretsRet, error) {
	if err := checkFlags("CONNECT_LIST_ALL_SECRETS", args.Flags, listSecretAll); err != nil {
		return nil, err
	}
	ret := &xdr.ConnectListAllSecretsRet{}
	if !s.seesEverything() { // nor how many there are
		return ret, nil
	}
	for _, d := range h.Secrets.List() {
		if !either(args.Flags, listSecretEphemeral, listSecretNoEphemeral, d.Ephemeral) ||
			!either(args.Flags, listSecretPrivate, listSecretNoPrivate, d.Private) {
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

func (h *handlers) secretLookupByUUID(_ context.Context, _ *request, args *xdr.WithUUID) (*xdr.WithSecret, error) {
	return withSecret(h.Secrets.ByUUID(formatUUID(args.UUID)))
}

func (h *handlers) secretLookupByUsage(_ context.Context, _ *request, args *xdr.SecretLookupByUsageArgs) (*xdr.WithSecret, error) {
	for usage, number := range secretUsages {
		if number == args.UsageType {
			return withSecret(h.Secrets.ByUsage(secret.Usage{Type: usage, ID: args.UsageID}))
		}
	}
	return nil, fault.New(fault.Invalid, fault.Call, "there are no secrets of the use %d", args.UsageType)
}

func (h *handlers) secretDefineXML(ctx context.Context, s *request, args *xdr.WithXMLFlags) (*xdr.WithSecret, error) {
	if err := checkFlags("SECRET_DEFINE_XML", args.Flags, secretValidate); err != nil {
		return nil, err
	}
	return withSecret(h.Secrets.Define(s.scope, args.XML, args.Flags&secretValidate != 0))
}

func (h *handlers) secretGetXMLDesc(_ context.Context, _ *request, args *xdr.WithSecretFlags) (*xdr.WithXML, error) {
	if err := checkFlags("SECRET_GET_XML_DESC", args.Flags, 0); err != nil {
		return nil, err
	}
	d, err := h.Secrets.ByUUID(formatUUID(args.Secret.UUID))
	if err != nil {
		return nil, err
	}
	doc, err := d.XML()
	return &xdr.WithXML{XML: doc}, err
}

func (h *handlers) secretSetValue(ctx context.Context, s *request, args *xdr.SecretSetValueArgs) (*void, error) {
	defer clear(args.Value)
	if err := checkFlags("SECRET_SET_VALUE", args.Flags, 0); err != nil {
		return nil, err
	}
	return nil, h.Secrets.SetValue(s.scope, formatUUID(args.Secret.UUID), args.Value)
}

func (h *handlers) secretGetValue(ctx context.Context, s *request, args *xdr.WithSecretFlags) (*xdr.SecretGetValueRet, error) {
	if err := checkFlags("SECRET_GET_VALUE", args.Flags, 0); err != nil {
		return nil, err
	}
	value, err := h.Secrets.Show(s.scope, formatUUID(args.Secret.UUID))
	if fault.Is(err, fault.Denied) {
		return nil, withCode(codeInvalidSecret, err)
	}
	return &xdr.SecretGetValueRet{Value: value}, err
}

func (h *handlers) secretUndefine(ctx context.Context, s *request, args *xdr.WithSecret) (*void, error) {
	return nil, h.Secrets.Undefine(s.scope, formatUUID(args.Secret.UUID))
}
