package target

import (
	"context"
	"errors"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/lab/node"
	"github.com/lodge-kvm/lodge/lab/pool"
)

// Sweep takes away every guest, pool and network whose name begins with a run's,
// whoever made them. Of a daemon that is away the files in the pools go, too; else
// they are left.
func (t *Target) Sweep(ctx context.Context, run string) error {
	if run == "" {
		return errors.New("a run has a name")
	}
	return sweep(ctx, t, run, t.Away())
}

func sweep(ctx context.Context, daemon node.Caller, run string, away bool) error {
	ctx, lost := context.WithCancelCause(ctx)
	defer lost(nil)
	c := impatient{daemon, lost}
	mine := func(name string) bool { return strings.HasPrefix(name, run+"-") }
	return errors.Join(sweepGuests(ctx, c, mine), sweepPools(ctx, c, mine, away), sweepNetworks(ctx, c, mine))
}

// impatient is a daemon that is asked for many things, but for nothing more once it
// has not answered in time: each would wait as long.
type impatient struct {
	node.Caller
	lost context.CancelCauseFunc
}

func (c impatient) Call(ctx context.Context, proc int32, args, ret xdr.Message) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	err := c.Caller.Call(ctx, proc, args, ret)
	if fault.Is(err, fault.Timeout) {
		c.lost(err)
	}
	return err
}

func sweepGuests(ctx context.Context, c node.Caller, mine func(string) bool) error {
	var ret xdr.ConnectListAllDomainsRet
	err := c.Call(ctx, xdr.ProcConnectListAllDomains, &xdr.ConnectListAllDomainsArgs{NeedResults: true}, &ret)
	for _, d := range ret.Domains {
		if !mine(d.Name) {
			continue
		}
		if failure := c.Call(ctx, xdr.ProcDomainDestroy, &xdr.DomainDestroyArgs{Domain: d}, nil); failure != nil && !gone(failure) {
			err = errors.Join(err, failure)
		}
	}
	return err
}

func sweepPools(ctx context.Context, c node.Caller, mine func(string) bool, away bool) error {
	var ret xdr.ConnectListAllStoragePoolsRet
	err := c.Call(ctx, xdr.ProcConnectListAllStoragePools, &xdr.ConnectListAllStoragePoolsArgs{NeedResults: true}, &ret)
	for _, p := range ret.Pools {
		if mine(p.Name) && away {
			err = errors.Join(err, pool.Remove(ctx, c, p))
		} else if mine(p.Name) {
			err = errors.Join(err, c.Call(ctx, xdr.ProcStoragePoolDestroy, &xdr.StoragePoolDestroyArgs{Pool: p}, nil))
		}
	}
	return err
}

func sweepNetworks(ctx context.Context, c node.Caller, mine func(string) bool) error {
	var ret xdr.ConnectListAllNetworksRet
	err := c.Call(ctx, xdr.ProcConnectListAllNetworks, &xdr.ConnectListAllNetworksArgs{NeedResults: true}, &ret)
	for _, n := range ret.Networks {
		if mine(n.Name) {
			err = errors.Join(err, c.Call(ctx, xdr.ProcNetworkDestroy, &xdr.NetworkDestroyArgs{Network: n}, nil))
		}
	}
	return err
}
