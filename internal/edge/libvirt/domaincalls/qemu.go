package domaincalls

import (
	"context"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
)

// QEMUCalls are the calls of the QEMU program: commands of the user's own.
func QEMUCalls(g rpc.Group) {
	rpc.On(g, xdr.ProcQEMUDomainMonitorCommand, qemuDomainMonitorCommand)
	rpc.On(g, xdr.ProcQEMUDomainAgentCommand, qemuDomainAgentCommand)
}

// monitorHuman means a line for the human monitor and not JSON.
const monitorHuman = 1

func qemuDomainMonitorCommand(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.QEMUDomainMonitorCommandArgs) (*xdr.QEMUDomainMonitorCommandRet, error) {
	if err := rpc.CheckFlags("QEMU_DOMAIN_MONITOR_COMMAND", args.Flags, monitorHuman); err != nil {
		return nil, err
	}
	g, _, err := active(h, args.Domain)
	if err != nil {
		return nil, err
	}
	answer, err := g.MonitorCommand(ctx, s.Scope, args.Command, args.Flags&monitorHuman != 0)
	return &xdr.QEMUDomainMonitorCommandRet{Result: answer}, err
}

// Timeouts of a command for the agent that are no number of seconds.
const (
	agentBlock   = -2
	agentDefault = -1
	// longestAgentWait stands for an unlimited wait, which Lodge does not offer.
	longestAgentWait = time.Hour
)

func qemuDomainAgentCommand(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.QEMUDomainAgentCommandArgs) (*xdr.QEMUDomainAgentCommandRet, error) {
	if err := rpc.CheckFlags("QEMU_DOMAIN_AGENT_COMMAND", args.Flags, 0); err != nil {
		return nil, err
	}
	var limit time.Duration
	switch {
	case args.Timeout == agentBlock:
		limit = longestAgentWait
	case args.Timeout == agentDefault: // the limit of package guest
	case args.Timeout <= 0:
		return nil, fault.New(fault.Invalid, fault.Call, "an agent cannot be waited for during %d seconds", args.Timeout)
	default:
		limit = min(time.Duration(args.Timeout)*time.Second, longestAgentWait)
	}
	g, _, err := active(h, args.Domain)
	if err != nil {
		return nil, err
	}
	answer, err := provision.AgentCommand(ctx, g, s.Scope, args.Command, limit)
	return &xdr.QEMUDomainAgentCommandRet{Result: &answer}, err
}
