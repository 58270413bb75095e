package hotplug

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// ShrinkNodeList takes the nodes of detached devices off the list of nodes that the guest may open. It runs
// in the loop and writes the list beside it, as a job. It does so only while no attach is in progress:
// the shorter list would refuse the node of the new device.
func ShrinkNodeList(g *machine.Guest) {
	r := g.Instance
	if r == nil || !r.DropNodes || r.User == nil || r.Ops.Has(AttachKind.Name) || g.CurrentJob != nil || g.Finished || r.Ending() {
		return
	}
	r.DropNodes = false
	def := r.Definition
	g.StartInternalJob(domain.JobModify, machine.ModifyLimit, func(ctx context.Context, sc scope.Scope) (machine.Settle, error) {
		failpoint.Reach("unplug.nodes")
		if err := provision.AllowDevices(ctx, g.Reg, r.UUID, def); err != nil {
			g.Log.Warn("cannot revoke device nodes; the guest may still open those of a detached device", "error", err)
			return nil, err
		}
		return func() error {
			r.Surplus = false
			g.WriteInstance()
			return nil
		}, nil
	})
}
