package lab

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/lab/remote"
	"github.com/lodge-kvm/lodge/xdr"
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
	running bool
}

func newGuests(conn *remote.Conn) *guests {
	return &guests{conn: conn, prefix: "lab-" + rand.Text()[:8], made: map[string]*guest{}}
}

// name is that of the run's guest with a number.
func (g *guests) name(number int) string { return fmt.Sprintf("%s-%d", g.prefix, number) }

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
	var ret xdr.DomainDefineXMLRet
	took, err := g.call(ctx, xdr.ProcDomainDefineXML, &xdr.DomainDefineXMLArgs{XML: document}, &ret)
	if err == nil {
		g.made[name] = &guest{domain: ret.Domain}
	}
	return took, err
}

func (g *guests) start(ctx context.Context, name string) (time.Duration, error) {
	one := g.made[name]
	// It may run even though the answer did not arrive.
	one.running = true
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
		if g.made[name].running {
			// A guest whose start failed does not run; that it is gone shows below.
			_, _ = g.destroy(ctx, name)
		}
		if _, err := g.undefine(ctx, name); err != nil {
			all = errors.Join(all, fmt.Errorf("guest %s is left behind: %w", name, err))
		}
	}
	return all
}
