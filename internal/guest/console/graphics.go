package console

import (
	"context"
	"os"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// displayClient is QEMU's name for the socket of a new client, until the display has taken it.
const displayClient = "lodge-display"

// OpenGraphics passes a connected socket to one of the displays of a running guest, counted from 0. The
// peer of the socket becomes a client of the display. The caller must close the socket.
func OpenGraphics(ctx context.Context, g *machine.Guest, sc scope.Scope, index uint, skipAuth bool, client *os.File) error {
	return g.Perform(ctx, sc, lifecycle.Change, domain.JobModify, machine.ModifyLimit, func() (machine.Work, error) {
		r := g.Instance
		displays := r.Definition.Devices.Graphics
		if index >= uint(len(displays)) {
			return nil, fault.New(fault.Invalid, fault.Call, "the domain has %d graphics, and none with index %d", len(displays), index)
		}
		protocol := displays[index].Type
		if protocol != "vnc" && protocol != "spice" {
			return nil, fault.New(fault.Unsupported, fault.Config, "graphics of type %s accept no client sockets", protocol)
		}
		return func(ctx context.Context, sc scope.Scope) (machine.Settle, error) {
			s, err := r.Monitor()
			if err != nil {
				return nil, err
			}
			if err := s.ExecuteFD(ctx, client, "getfd", map[string]any{"fdname": displayClient}, nil); err != nil {
				return nil, err
			}
			err = s.Execute(ctx, "add_client", map[string]any{"protocol": protocol, "fdname": displayClient, "skipauth": skipAuth}, nil)
			if err != nil { // QEMU still has the socket; report its refusal, not a failure of this
				_ = s.Execute(ctx, "closefd", map[string]any{"fdname": displayClient}, nil)
			}
			return nil, err
		}, nil
	})
}
