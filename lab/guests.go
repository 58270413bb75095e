package lab

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/remote"
)

// patience bounds each call: a daemon may have to find out first what its QEMU
// can do.
const patience = 2 * time.Minute

// startPaused is the flag of DOMAIN_CREATE_WITH_FLAGS with that meaning.
const startPaused = 1

// guests are what a run has made of a daemon's domains. All have a prefix of
// that run's own, and clear leaves none of them.
type guests struct {
	conn   *remote.Conn
	prefix string
	made   map[string]*guest
}

// guest is a domain that is defined, and maybe running.
type guest struct {
	domain  xdr.Domain
	sure    bool // the daemon has said that it is defined
	running bool // or may be
}

func newGuests(conn *remote.Conn) *guests {
	return &guests{conn: conn, prefix: "lab-" + rand.Text()[:8], made: map[string]*guest{}}
}

// name makes the name of a guest of this run.
func (g *guests) name(what string, number int) string {
	return fmt.Sprintf("%s-%s-%d", g.prefix, what, number)
}

// call gives the time that a call took.
func (g *guests) call(ctx context.Context, proc int32, args, ret xdr.Message) (time.Duration, error) {
	ctx, stop := context.WithTimeoutCause(ctx, patience,
		fault.New(fault.Timeout, fault.Call, "the daemon has not answered within %s", patience))
	defer stop()
	begin := time.Now()
	err := g.conn.Call(ctx, proc, args, ret)
	return time.Since(begin), err
}

func (g *guests) define(ctx context.Context, name, document string) (time.Duration, error) {
	one := &guest{}
	g.made[name] = one
	var ret xdr.DomainDefineXMLRet
	took, err := g.call(ctx, xdr.ProcDomainDefineXML, &xdr.DomainDefineXMLArgs{XML: document}, &ret)
	if err == nil {
		one.domain, one.sure = ret.Domain, true
	}
	return took, err
}

func (g *guests) start(ctx context.Context, name string) (time.Duration, error) {
	one := g.made[name]
	one.running = true // even if the answer does not arrive
	var ret xdr.DomainCreateWithFlagsRet
	return g.call(ctx, xdr.ProcDomainCreateWithFlags, &xdr.DomainCreateWithFlagsArgs{Domain: one.domain, Flags: startPaused}, &ret)
}

func (g *guests) destroy(ctx context.Context, name string) (time.Duration, error) {
	one := g.made[name]
	took, err := g.call(ctx, xdr.ProcDomainDestroy, &xdr.DomainDestroyArgs{Domain: one.domain}, nil)
	if err == nil {
		one.running = false
	}
	return took, err
}

func (g *guests) undefine(ctx context.Context, name string) (time.Duration, error) {
	took, err := g.call(ctx, xdr.ProcDomainUndefineFlags, &xdr.DomainUndefineFlagsArgs{Domain: g.made[name].domain}, nil)
	if err == nil {
		delete(g.made, name)
	}
	return took, err
}

// clear ends and forgets all guests, also after the run's context has ended.
func (g *guests) clear(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	var all error
	for _, name := range slices.Sorted(maps.Keys(g.made)) {
		if err := g.remove(ctx, name); err != nil {
			all = errors.Join(all, fmt.Errorf("guest %s is left behind: %w", name, err))
		}
	}
	return all
}

func (g *guests) remove(ctx context.Context, name string) error {
	one := g.made[name]
	if !one.sure {
		var ret xdr.DomainLookupByNameRet
		_, err := g.call(ctx, xdr.ProcDomainLookupByName, &xdr.DomainLookupByNameArgs{Name: name}, &ret)
		if remote.Refused(err) {
			delete(g.made, name)
			return nil // it was not made
		}
		if err != nil {
			return err
		}
		one.domain = ret.Domain
	}
	if one.running {
		_, _ = g.destroy(ctx, name) // one whose start failed does not run; the next call tells
	}
	_, err := g.undefine(ctx, name)
	return err
}
