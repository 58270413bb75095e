package guest

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// AgentVCPUs asks the agent for the vCPUs that the guest sees.
func AgentVCPUs(ctx context.Context, g *machine.Guest, sc scope.Scope) ([]provision.AgentVCPU, error) {
	var all []provision.AgentVCPU
	if err := provision.Agent(ctx, g, sc, "guest-get-vcpus", nil, &all, 0); err != nil {
		return nil, err
	}
	if len(all) > machine.MaxVCPUs {
		return nil, fault.New(fault.Failed, fault.Agent, "the agent reports %d vCPUs, more than a guest can have", len(all))
	}
	for _, c := range all {
		if c.ID >= machine.MaxVCPUs {
			return nil, fault.New(fault.Failed, fault.Agent, "the agent reports vCPU %d, which no guest can have", c.ID)
		}
	}
	return all, nil
}

// SetAgentVCPUs makes the guest use n of the vCPUs that it sees.
func SetAgentVCPUs(ctx context.Context, g *machine.Guest, sc scope.Scope, n uint) error {
	all, err := AgentVCPUs(ctx, g, sc)
	if err != nil {
		return err
	}
	var change []provision.AgentVCPU
	online := uint(0)
	for _, c := range all {
		if c.Online {
			online++
		}
	}
	for i := 0; i < len(all) && online < n; i++ {
		if !all[i].Online {
			change = append(change, provision.AgentVCPU{ID: all[i].ID, Online: true})
			online++
		}
	}
	for i := len(all) - 1; i >= 0 && online > n; i-- {
		if all[i].Online && all[i].CanOffline {
			change = append(change, provision.AgentVCPU{ID: all[i].ID})
			online--
		}
	}
	if online != n {
		return fault.New(fault.Invalid, fault.Call, "the guest cannot use %d vCPUs: it sees %d and must keep %d", n, len(all), online)
	}
	if len(change) == 0 {
		return nil
	}
	set := make([]map[string]any, len(change))
	for i, c := range change {
		set[i] = map[string]any{"logical-id": c.ID, "online": c.Online}
	}
	var done uint
	if err := provision.Agent(ctx, g, sc, "guest-set-vcpus", map[string]any{"vcpus": set}, &done, 0); err != nil {
		return err
	}
	if done < uint(len(change)) {
		return fault.New(fault.Failed, fault.Agent, "the guest changed only %d of %d vCPUs", done, len(change))
	}
	return nil
}
