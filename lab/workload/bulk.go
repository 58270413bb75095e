package workload

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/lodge-kvm/lodge/lab/bulk"
)

// Bulk is the configuration of a job for fio, which must be installed where the
// load runs. Its operations are "read" and "write". It tells about once in a second
// what was done, without the time in which fio laid its files out.
type Bulk struct {
	Duration Duration `json:"duration"`
	bulk.Job
	// Setup bounds how long files may take to be laid out: 1h.
	Setup Duration `json:"setup,omitzero"`
}

func newBulk(config json.RawMessage) (Load, error) {
	var b Bulk
	if err := parse(config, &b); err != nil {
		return nil, err
	}
	orElse(&b.Setup, Duration(time.Hour))
	if b.Duration < Duration(time.Second) || time.Duration(b.Duration) > maxDuration || b.Setup < 0 || time.Duration(b.Setup) > maxDuration {
		return nil, invalid("duration is %v and setup %v: 1s to %v are possible", time.Duration(b.Duration), time.Duration(b.Setup), maxDuration)
	}
	return &b, b.Settle()
}

// Run has fio do the job.
func (b *Bulk) Run(ctx context.Context, out func(Interval)) error {
	longest := time.Duration(b.Duration) + time.Duration(b.Setup)
	within, cancel := context.WithTimeoutCause(ctx, longest, errLate)
	defer cancel()
	known := map[string]bool{} // a direction in which nothing is done any more is told, too
	course := bulk.NewCourse(longest, func(s bulk.Stretch) {
		i := Interval{Start: s.Start, Length: s.Length, Ops: map[string]Count{}}
		for op, side := range map[string]bulk.Side{"read": s.Read, "write": s.Write} {
			if known[op] = known[op] || side.Requests > 0; known[op] {
				i.Ops[op] = Count{Done: side.Requests, Bytes: side.Bytes, Latency: side.Latency}
			}
		}
		out(i)
	})
	if err := follow(within, course, "fio", b.Arguments(time.Duration(b.Duration))...); course.Err() == nil && err != nil {
		return err
	}
	switch err := course.End(); {
	case err != nil && within.Err() != nil && ctx.Err() != nil:
		return nil // it was stopped before there was a result
	case err != nil:
		return err
	case len(known) == 0 || !known["read"] && !known["write"]:
		if ctx.Err() == nil {
			return errors.New("fio did nothing")
		}
		out(Interval{Start: time.Now()})
	}
	return nil
}

// Varmail is the configuration of a mail server's work on many files. Its
// operations are those of lab/bulk. The files are laid out first, which tells of
// itself as OpSetup; Duration begins after it.
type Varmail struct {
	Pace
	bulk.Mail
}

// OpSetup is what a load does before it is one: Bytes written.
const OpSetup = "setup"

func newVarmail(config json.RawMessage) (Load, error) {
	var v Varmail
	if err := parse(config, &v); err != nil {
		return nil, err
	}
	if err := v.settle(); err != nil {
		return nil, err
	}
	if err := v.Settle(); err != nil {
		return nil, err
	}
	if v.Users > v.Files {
		return nil, invalid("users are %d and files %d: each user has files of its own", v.Users, v.Files)
	}
	return &v, nil
}

// Run lays the files out, does the work, and removes them.
func (v *Varmail) Run(ctx context.Context, out func(Interval)) (err error) {
	var spool *bulk.Spool
	defer func() { err = errors.Join(err, spool.Close()) }()
	setup, err := newErrand(longErrand, func(ctx context.Context, m *meter) (err error) {
		spool, err = v.Open(ctx, rand.New(rand.NewPCG(v.Seed, 0)), func(bytes int64) { m.wrote(OpSetup, bytes) })
		return err
	})
	if err != nil {
		return err
	}
	layOut := func(i Interval) {
		if len(i.Ops) == 0 { // a second without a file, and no work yet
			i.Ops = map[string]Count{OpSetup: {}}
		}
		out(i)
	}
	if err := setup.Run(ctx, layOut); err != nil || ctx.Err() != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	work := &paced{v.Pace, func(number int, draw *rand.Rand) worker {
		return &postman{spool.Box(number, v.Users, draw)}
	}}
	return work.Run(ctx, out)
}

// postman is one thread of a mail server.
type postman struct{ box *bulk.Box }

func (p *postman) close() {}

func (p *postman) do(ctx context.Context, intended time.Time, m *meter) error {
	if ctx.Err() != nil {
		m.failed(bulk.OpDelete, intended, context.Cause(ctx))
		return context.Cause(ctx)
	}
	return p.box.Cycle(func(op string, started time.Time, bytes int64, err error) {
		if intended.IsZero() {
			intended = started // only the first had an arrival to wait for
		}
		m.note(op, intended, started, bytes, err)
		intended = time.Time{}
	})
}
