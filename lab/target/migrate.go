package target

import (
	"context"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/remote"
)

// The numbers of what a daemon says that it can do.
const (
	featureMigration = 6  // in five phases that a client drives
	featureParams    = 13 // with named parameters
)

// Migrates says why guests cannot be moved from this daemon to another, by asking
// both; nil says that nothing speaks against it.
func (t *Target) Migrates(ctx context.Context, to *Target) error {
	if t.URI == to.URI {
		return fault.New(fault.Invalid, fault.Host, "guests of %s cannot be migrated to itself: --to wants another daemon", t.Name)
	}
	for _, daemon := range []*Target{t, to} {
		for _, feature := range []int32{featureMigration, featureParams} {
			var ret xdr.ConnectSupportsFeatureRet
			if err := daemon.call(ctx, xdr.ProcConnectSupportsFeature, &xdr.ConnectSupportsFeatureArgs{Feature: feature}, &ret); err != nil {
				return err
			}
			if !ret.Supported {
				return fault.New(fault.Unsupported, fault.Host, "the daemon %s (%s) does not migrate guests: it says so by feature %d of libvirt's protocol", daemon.Name, daemon.Daemon, feature)
			}
		}
	}
	return nil
}

// How a guest is moved. Both daemons are on this host and see the same files
// through one page cache, which neither can know.
const (
	migrateLive     = 1 << 0
	migrateUnsafe   = 1 << 9
	migrateConverge = 1 << 13 // slow processors down until the memory that they dirty has been sent

	migrateHere  = migrateLive | migrateUnsafe | migrateConverge
	migrateThere = migrateLive | migrateUnsafe
)

// migratePatience bounds a migration: an emulated guest under load may need several
// rounds, each slowed down more.
const migratePatience = 10 * time.Minute

// between is where QEMU sends the guest to: both ends are on this host.
const between = "tcp://127.0.0.1"

// move is one migration. Each phase leaves a cookie for the next, which is the
// other daemon's.
type move struct {
	from, to *remote.Conn
	domain   xdr.Domain
	params   []xdr.TypedParam
	cookie   []byte
}

// Migrate moves the guest, as it runs, to another daemon, and tells of it what that
// one counted. If it fails, the guest runs on where it was.
//
// The phases: the source describes the guest (begin), the destination starts a QEMU
// that waits (prepare), the source sends (perform), the destination lets the guest
// run (finish), and the source then ends its own, or lets it run on (confirm).
func (g *Guest) Migrate(ctx context.Context, to *Target) (map[string]float64, error) {
	ctx, stop := context.WithTimeoutCause(ctx, migratePatience, fault.New(fault.Timeout, fault.Domain, "the migration of %s has not ended within %s", g.Name, migratePatience))
	defer stop()
	m := &move{from: g.at.conn, to: to.conn, domain: g.domain}
	if err := m.prepare(ctx); err != nil {
		return nil, skip(err)
	}
	moved, err := m.perform(ctx)
	if moved != nil {
		g.at, g.domain = to, *moved
	}
	if err != nil {
		return nil, err
	}
	return counted(ctx, to, *moved)
}

// prepare is begin and prepare: the destination waits then, and names the place.
func (m *move) prepare(ctx context.Context) error {
	m.set("migrate_uri", between)
	m.set("listen_address", "127.0.0.1")
	var begun xdr.DomainMigrateBegin3ParamsRet
	if err := m.from.Call(ctx, xdr.ProcDomainMigrateBegin3Params, &xdr.DomainMigrateBegin3ParamsArgs{Domain: m.domain, Params: m.params, Flags: migrateHere}, &begun); err != nil {
		return err
	}
	m.set("destination_xml", begun.XML)
	var prepared xdr.DomainMigratePrepare3ParamsRet
	if err := m.to.Call(ctx, xdr.ProcDomainMigratePrepare3Params, &xdr.DomainMigratePrepare3ParamsArgs{Params: m.params, CookieIn: begun.CookieOut, Flags: migrateThere}, &prepared); err != nil {
		return err
	}
	if m.cookie = prepared.CookieOut; prepared.URIOut != nil {
		m.set("migrate_uri", *prepared.URIOut)
	}
	return nil
}

// perform is perform, finish and confirm, and gives the guest at its new place, if
// it got there. A destination that waits is told in any case what became of it.
func (m *move) perform(ctx context.Context) (moved *xdr.Domain, err error) {
	var performed xdr.DomainMigratePerform3ParamsRet
	sending := m.from.Call(ctx, xdr.ProcDomainMigratePerform3Params, &xdr.DomainMigratePerform3ParamsArgs{Domain: m.domain, Params: m.params, CookieIn: m.cookie, Flags: migrateHere}, &performed)
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer stop()
	if sending != nil {
		_ = m.from.Call(ctx, xdr.ProcDomainAbortJob, &xdr.DomainAbortJobArgs{Domain: m.domain}, nil) // in case it goes on
	}
	m.set("destination_name", m.domain.Name)
	var finished xdr.DomainMigrateFinish3ParamsRet
	err = m.to.Call(ctx, xdr.ProcDomainMigrateFinish3Params, &xdr.DomainMigrateFinish3ParamsArgs{Params: m.params, CookieIn: performed.CookieOut, Flags: migrateThere, Cancelled: sending != nil}, &finished)
	if sending != nil {
		return nil, sending // the source has let the guest run on by itself
	}
	confirmed := m.from.Call(ctx, xdr.ProcDomainMigrateConfirm3Params, &xdr.DomainMigrateConfirm3ParamsArgs{Domain: m.domain, Params: m.params, CookieIn: finished.CookieOut, Flags: migrateHere, Cancelled: err != nil}, nil)
	if err != nil {
		return nil, err
	}
	return &finished.Domain, confirmed
}

// set gives a parameter its value.
func (m *move) set(name, value string) {
	for i := range m.params {
		if m.params[i].Field == name {
			m.params[i].Value = xdr.String(value)
			return
		}
	}
	m.params = append(m.params, xdr.TypedParam{Field: name, Value: xdr.String(value)})
}

// accounts are the figures that daemons keep of a job, with the lab's names and
// their units in ours.
var accounts = map[string]struct {
	name string
	unit float64
}{
	"time_elapsed":           {"daemon_s", 1e-3},
	"downtime":               {"downtime_s", 1e-3},
	"memory_total":           {"memory_bytes", 1},
	"memory_processed":       {"sent_bytes", 1},
	"memory_iteration":       {"rounds", 1},
	"auto_converge_throttle": {"throttle_percent", 1},
}

// counted reads the destination's account of the job that has just ended there.
func counted(ctx context.Context, t *Target, d xdr.Domain) (map[string]float64, error) {
	const completed = 1
	var ret xdr.DomainGetJobStatsRet
	if err := t.call(ctx, xdr.ProcDomainGetJobStats, &xdr.DomainGetJobStatsArgs{Domain: d, Flags: completed}, &ret); err != nil {
		return nil, fault.Wrap(err, fault.Of(err), fault.Domain, "the guest was moved, and the daemon does not tell how")
	}
	figures := map[string]float64{}
	for _, p := range ret.Params {
		if a, ok := accounts[p.Field]; ok {
			figures[a.name] = numeric(p.Value) * a.unit
		}
	}
	return figures, nil
}

func numeric(v xdr.TypedValue) float64 {
	if k := v.Kind(); k == xdr.KindInt || k == xdr.KindInt64 {
		return float64(v.Int())
	}
	return float64(v.Uint())
}
