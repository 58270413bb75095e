package session

import (
	"bufio"
	"context"
	"encoding/json"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/wire"
	"github.com/lodge-kvm/lodge/lab/workload"
)

const (
	// backlog bounds the intervals that wait to be taken. Beyond it the guest
	// waits with them, and they grow longer.
	backlog = 256
	// maxInterval bounds one interval as text: guests are not trusted.
	maxInterval = 16 << 20
)

// Job is a load that runs in the guest.
type Job struct {
	call      *call
	intervals chan workload.Interval
	total     workload.Total
	err       error
	done      chan struct{} // total and err are set
}

// Start runs a load in the guest. When ctx ends, the load is given up: use Stop
// to have its total.
func (s *Session) Start(ctx context.Context, load string, config json.RawMessage) (*Job, error) {
	c, err := s.open(ctx, wire.Load, wire.Work{Kind: load, Config: config})
	if err != nil {
		return nil, err
	}
	j := &Job{call: c, intervals: make(chan workload.Interval, backlog), done: make(chan struct{})}
	go j.read(ctx)
	return j, nil
}

// Intervals gives what the load did, as it tells, and is closed at its end. It
// must be read until then. Times are of the guest's clock.
func (j *Job) Intervals() <-chan workload.Interval { return j.intervals }

// Wait gives the sum of all intervals once the load has ended by itself.
func (j *Job) Wait(ctx context.Context) (workload.Total, error) {
	select {
	case <-j.done:
		return j.total, j.err
	case <-ctx.Done():
		return workload.Total{}, fault.Wrap(context.Cause(ctx), fault.Of(ctx.Err()), fault.Agent, "the load has not ended in time")
	}
}

// Stop ends the load and gives the sum of all its intervals, the last one
// included.
func (j *Job) Stop(ctx context.Context) (workload.Total, error) {
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_ = j.call.input.Close() // should the session be over, so is the load
	}()
	select {
	case <-sent:
	case <-ctx.Done():
	}
	return j.Wait(ctx)
}

func (j *Job) read(ctx context.Context) {
	defer close(j.done)
	defer close(j.intervals)
	lines := bufio.NewScanner(j.call.inlets[wire.Output])
	lines.Buffer(nil, maxInterval)
	stop := context.AfterFunc(ctx, func() { j.call.abandon(context.Cause(ctx)) })
	defer stop()
	for lines.Scan() {
		var i workload.Interval
		err := json.Unmarshal(lines.Bytes(), &i)
		if err == nil {
			err = j.total.Add(i)
		}
		if err != nil {
			err = fault.Wrap(err, fault.Failed, fault.Agent, "cannot read what the load did")
			j.call.abandon(err)
			j.err = err
			return
		}
		select {
		case j.intervals <- i:
		case <-j.call.session.over:
		case <-ctx.Done():
		}
	}
	if err := lines.Err(); err != nil {
		j.call.abandon(err)
	}
	<-j.call.done
	j.err = j.call.err
}
