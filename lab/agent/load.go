package agent

import (
	"context"
	"encoding/json"
	"errors"
	"io"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/wire"
	"github.com/lodge-kvm/lodge/lab/workload"
)

var errStopped = errors.New("the host has stopped the load")

// load runs a load until it ends by itself or the host ends the call's input. Its
// intervals go out one a line; a host that does not take them makes them longer
// and not the load slower.
func load(c *call, w wire.Work) (any, error) {
	l, err := workload.New(w.Kind, w.Config)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancelCause(c.ctx)
	defer stop(nil)
	listening := make(chan struct{})
	go func() {
		defer close(listening)
		_, _ = io.Copy(io.Discard, c.input)
		stop(errStopped)
	}()
	lines := json.NewEncoder(c.outlets[wire.Output])
	var lost error
	err = l.Run(ctx, func(i workload.Interval) {
		if lost == nil {
			lost = lines.Encode(i)
		}
	})
	c.input.Finish(io.EOF)
	<-listening
	if err == nil {
		err = lost
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.Of(err), fault.Agent, "load %s", w.Kind)
	}
	return nil, c.outlets[wire.Output].Close()
}
