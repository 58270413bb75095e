package domaincalls

import (
	"context"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
)

// QEMUCalls are the calls of the QEMU program: a user's own commands for the monitor and the agent.
func QEMUCalls(g rpc.Group) {
	rpc.On(g, xdr.ProcQEMUDomainMonitorCommand, qemuDomainMonitorCommand)
	rpc.On(g, xdr.ProcQEMUDomainAgentCommand, qemuDomainAgentCommand)
}

// monitorHuman: the command is a line for the human monitor, and not JSON.
const monitorHuman = 1

func qemuDomainMonitorCommand(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.QEMUDomainMonitorCommandArgs) (*xdr.QEMUDomainMonitorCommandRet, error) {
	if err := rpc.CheckFlags("QEMU_DOMAIN_MONITOR_COMMAND", args.Flags, monitorHuman); err != nil {
		return nil, err
	}
	g, _, err := activeGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	answer, err := g.MonitorCommand(ctx, s.Scope, args.Command, args.Flags&monitorHuman != 0)
	return &xdr.QEMUDomainMonitorCommandRet{Result: answer}, err
}

// Timeouts of an agent command that are not a number of seconds.
const (
	agentBlock   = -2
	agentDefault = -1
	// maxAgentWait is used for an unlimited wait, which Lodge does not offer.
	maxAgentWait = time.Hour
)

func qemuDomainAgentCommand(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.QEMUDomainAgentCommandArgs) (*xdr.QEMUDomainAgentCommandRet, error) {
	if err := rpc.CheckFlags("QEMU_DOMAIN_AGENT_COMMAND", args.Flags, 0); err != nil {
		return nil, err
	}
	var limit time.Duration
	switch {
	case args.Timeout == agentBlock:
		limit = maxAgentWait
	case args.Timeout == agentDefault: // 0: the default of package provision
	case args.Timeout <= 0:
		return nil, fault.New(fault.Invalid, fault.Call, "an agent timeout cannot be %d seconds", args.Timeout)
	default:
		limit = min(time.Duration(args.Timeout)*time.Second, maxAgentWait)
	}
	g, _, err := activeGuest(h, args.Domain)
	if err != nil {
		return nil, err
	}
	answer, err := provision.AgentCommand(ctx, g, s.Scope, args.Command, limit)
	return &xdr.QEMUDomainAgentCommandRet{Result: &answer}, err
}
