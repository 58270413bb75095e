package target

import (
	"context"
	"errors"
	"strings"

	"github.com/lodge-kvm/lodge/lab/pool"
	"github.com/lodge-kvm/lodge/xdr"
)

// Sweep takes away every guest, pool and network whose name begins with a run's,
// whoever made them. Of a daemon that is away the files in the pools go, too; else
// they are left.
func (t *Target) Sweep(ctx context.Context, run string) error {
	if run == "" {
		return errors.New("a run has a name")
	}
	return errors.Join(t.sweepGuests(ctx, run), t.sweepPools(ctx, run), t.sweepNetworks(ctx, run))
}

func (t *Target) sweepGuests(ctx context.Context, run string) error {
	var ret xdr.ConnectListAllDomainsRet
	err := t.call(ctx, xdr.ProcConnectListAllDomains, &xdr.ConnectListAllDomainsArgs{NeedResults: true}, &ret)
	for _, d := range ret.Domains {
		if !strings.HasPrefix(d.Name, run+"-") {
			continue
		}
		if failure := t.call(ctx, xdr.ProcDomainDestroy, &xdr.DomainDestroyArgs{Domain: d}, nil); failure != nil && !gone(failure) {
			err = errors.Join(err, failure)
		}
	}
	return err
}

func (t *Target) sweepPools(ctx context.Context, run string) error {
	var ret xdr.ConnectListAllStoragePoolsRet
	err := t.call(ctx, xdr.ProcConnectListAllStoragePools, &xdr.ConnectListAllStoragePoolsArgs{NeedResults: true}, &ret)
	for _, p := range ret.Pools {
		if strings.HasPrefix(p.Name, run+"-") && t.Away() {
			err = errors.Join(err, pool.Remove(ctx, t, p))
		} else if strings.HasPrefix(p.Name, run+"-") {
			err = errors.Join(err, t.call(ctx, xdr.ProcStoragePoolDestroy, &xdr.StoragePoolDestroyArgs{Pool: p}, nil))
		}
	}
	return err
}

func (t *Target) sweepNetworks(ctx context.Context, run string) error {
	var ret xdr.ConnectListAllNetworksRet
	err := t.call(ctx, xdr.ProcConnectListAllNetworks, &xdr.ConnectListAllNetworksArgs{NeedResults: true}, &ret)
	for _, n := range ret.Networks {
		if strings.HasPrefix(n.Name, run+"-") {
			err = errors.Join(err, t.call(ctx, xdr.ProcNetworkDestroy, &xdr.NetworkDestroyArgs{Network: n}, nil))
		}
	}
	return err
}
