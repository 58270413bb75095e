package workload

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"time"

	"github.com/lodge-kvm/lodge/lab/mariadb"
	"github.com/lodge-kvm/lodge/lab/oltp"
)

// OLTP is the configuration of a load of terminals on a database that oltp-prepare
// filled. Its operations are the transactions by their names; new orders done a
// minute are its metric, NOPM.
type OLTP struct {
	Pace
	Database mariadb.Server `json:"database"`
	Size     oltp.Size      `json:"size"`
}

// OpUndone are transactions that the server had begun anew because of a deadlock:
// they are no errors, and their time is in that of the transaction.
const OpUndone = "undone"

func newOLTP(config json.RawMessage) (Load, error) {
	var o OLTP
	if err := parse(config, &o); err != nil {
		return nil, err
	}
	for _, check := range []func() error{o.settle, o.Database.Check, o.Size.Settle} {
		if err := check(); err != nil {
			return nil, err
		}
	}
	return &paced{o.Pace, func(number int, draw *rand.Rand) worker {
		t, err := oltp.Open(o.Database, o.Size, number, draw)
		return &terminal{t, err}
	}}, nil
}

// terminal is one user of the database.
type terminal struct {
	desk *oltp.Terminal
	err  error // of opening it
}

func (t *terminal) close() {
	if t.desk != nil {
		t.desk.Close()
	}
}

func (t *terminal) do(ctx context.Context, intended time.Time, m *meter) error {
	if t.err != nil {
		m.failed(oltp.NewOrder, intended, t.err)
		return t.err
	}
	started := time.Now()
	op, undone, err := t.desk.Transact(ctx)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	m.note(op, intended, started, 0, err)
	if undone > 0 {
		m.untimed(OpUndone, int64(undone))
	}
	return err
}

// OLTPErrand is the configuration of oltp-prepare, which fills the database,
// whatever was in it, and of oltp-check, which reads from its tables what was
// committed since. Done of the operations oltp.NewOrder and oltp.Payment is what the tables
// have, that of OpCommits what the server counts; errors of OpWrong are rows that break
// the sums.
type OLTPErrand struct {
	Database mariadb.Server `json:"database"`
	Size     oltp.Size      `json:"size"`
	Within   Duration       `json:"within,omitzero"` // 24h
}

// OpCommits are all that a server has counted since it began, by anybody.
const OpCommits = "commits"

func parseOLTPErrand(config json.RawMessage) (e OLTPErrand, err error) {
	if err := parse(config, &e); err != nil {
		return e, err
	}
	if err := e.Database.Check(); err != nil {
		return e, err
	}
	return e, e.Size.Settle()
}

func newOLTPPrepare(config json.RawMessage) (Load, error) {
	e, err := parseOLTPErrand(config)
	if err != nil {
		return nil, err
	}
	return newErrand(e.Within, func(ctx context.Context, m *meter) error {
		return e.Size.Fill(ctx, e.Database, func(rows int64) { m.untimed(OpRows, rows) })
	})
}

func newOLTPCheck(config json.RawMessage) (Load, error) {
	e, err := parseOLTPErrand(config)
	if err != nil {
		return nil, err
	}
	return newErrand(e.Within, func(ctx context.Context, m *meter) error {
		audit, err := e.Size.Audit(ctx, e.Database)
		if err != nil {
			return err
		}
		m.untimed(oltp.NewOrder, audit.NewOrders)
		m.untimed(oltp.Payment, audit.Payments)
		m.untimed(OpCommits, audit.Commits)
		m.untimed(OpWrong, 1)
		for _, w := range audit.Wrong {
			m.wrong(OpWrong, w.Rows, w.What)
		}
		return nil
	})
}
