package libvirt

import (
	"context"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
)

// qemuCalls are the calls of the QEMU program: commands of the user's own.
func qemuCalls(g group) {
	on(g, xdr.ProcQEMUDomainMonitorCommand, (*handlers).qemuDomainMonitorCommand)
	on(g, xdr.ProcQEMUDomainAgentCommand, (*handlers).qemuDomainAgentCommand)
}

// monitorHuman means a line for the human monitor and not JSON.
const monitorHuman = 1

func (h *handlers) qemuDomainMonitorCommand(ctx context.Context, s *request, args *xdr.QEMUDomainMonitorCommandArgs) (*xdr.QEMUDomainMonitorCommandRet, error) {
	if err := checkFlags("QEMU_DOMAIN_MONITOR_COMMAND", args.Flags, monitorHuman); err != nil {
		return nil, err
	}
	g, _, err := h.active(args.Domain)
	if err != nil {
		return nil, err
	}
	answer, err := g.MonitorCommand(ctx, s.scope, args.Command, args.Flags&monitorHuman != 0)
	return &xdr.QEMUDomainMonitorCommandRet{Result: answer}, err
}

// Timeouts of a command for the agent that are no number of seconds.
const (
	agentBlock   = -2
	agentDefault = -1
	// longestAgentWait stands for an unlimited wait, which Lodge does not offer.
	longestAgentWait = time.Hour
)

func (h *handlers) qemuDomainAgentCommand(ctx context.Context, s *request, args *xdr.QEMUDomainAgentCommandArgs) (*xdr.QEMUDomainAgentCommandRet, error) {
	if err := checkFlags("QEMU_DOMAIN_AGENT_COMMAND", args.Flags, 0); err != nil {
		return nil, err
	}
	var limit time.Duration
	switch {
	case args.Timeout == agentBlock:
		limit = longestAgentWait
	case args.Timeout == agentDefault: // the room's own
	case args.Timeout <= 0:
		return nil, fault.New(fault.Invalid, fault.Call, "an agent cannot be waited for during %d seconds", args.Timeout)
	default:
		limit = min(time.Duration(args.Timeout)*time.Second, longestAgentWait)
	}
	g, _, err := h.active(args.Domain)
	if err != nil {
		return nil, err
	}
	answer, err := provision.AgentCommand(ctx, g, s.scope, args.Command, limit)
	return &xdr.QEMUDomainAgentCommandRet{Result: &answer}, err
}
