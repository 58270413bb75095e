package provision

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/mechanism/agent"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// withAgent calls do with the agent's session. It drops the session after an error, unless the agent
// refused the command or is busy, or the rules refused it before it was sent.
func withAgent(ctx context.Context, r *machine.Instance, def *domain.Definition, do func(*agent.Session) error) error {
	c, err := machine.AgentChar(def)
	if err != nil {
		return err
	}
	s, err := r.Agent.Open(ctx, c.Backend.Path, func(ctx context.Context, path string) (net.Conn, error) { return Dial(ctx, r, path) })
	if err != nil {
		return err
	}
	err = do(s)
	var refused *agent.Error
	if err != nil && !errors.As(err, &refused) && !fault.Is(err, fault.Busy) && !fault.Is(err, fault.Denied) { // busy: another command is in progress
		r.Agent.Drop(s)
	}
	return err
}

// AgentShutdown tells the agent to power the guest off or to reboot it. An agent that does so sends no
// answer.
func AgentShutdown(ctx context.Context, r *machine.Instance, def *domain.Definition, mode string) error {
	ctx, stop := context.WithTimeout(ctx, machine.AgentLimit)
	defer stop()
	err := withAgent(ctx, r, def, func(s *agent.Session) error {
		return s.Order(ctx, "guest-shutdown", map[string]any{"mode": mode})
	})
	if r.Ending() {
		return nil // it obeyed, and ended before the time for an answer was over
	}
	return err
}

// Agent sends a command to the guest's agent and waits for the answer up to limit. 0 means machine.AgentLimit.
// The agent takes one command at a time. A command that had to wait for another is authorized again before it is
// sent.
func Agent(ctx context.Context, g *machine.Guest, sc scope.Scope, command string, args, into any, limit time.Duration) error {
	if err := sc.Authorize(g.UUID()); err != nil {
		return err
	}
	v, r := g.View(), g.Live.Load()
	if r == nil || v.Active == nil {
		return fault.New(fault.WrongState, fault.Domain, "domain is not running")
	}
	if err := lifecycle.Admit(lifecycle.State{Phase: v.State}, lifecycle.Change); err != nil {
		return err
	}
	if v.State != domain.Running {
		return fault.New(fault.Unresponsive, fault.Agent, "the domain is %s", v.State)
	}
	if limit == 0 {
		limit = machine.AgentLimit
	}
	ctx, stop := context.WithTimeout(ctx, limit)
	defer stop()
	return withAgent(ctx, r, v.Active, func(s *agent.Session) error {
		return s.ExecuteIf(ctx, func() error { return sc.Authorize(g.UUID()) }, command, args, into)
	})
}

// AgentCommand sends the agent a command of the user, as JSON, and returns its answer.
func AgentCommand(ctx context.Context, g *machine.Guest, sc scope.Scope, command string, limit time.Duration) (string, error) {
	if err := sc.Authorize(g.UUID()); err != nil {
		return "", err
	}
	var c struct {
		Execute   string          `json:"execute"`
		Arguments json.RawMessage `json:"arguments"`
	}
	if err := json.Unmarshal([]byte(command), &c); err != nil || c.Execute == "" {
		return "", fault.New(fault.Invalid, fault.Call, `an agent command is JSON such as {"execute":"guest-ping"}`)
	}
	var args any
	if len(c.Arguments) > 0 {
		args = c.Arguments
	}
	if r := g.Live.Load(); r != nil {
		g.AddMessage(ctx, r, machine.AgentCommanded)
	}
	var answer json.RawMessage
	if err := Agent(ctx, g, sc, c.Execute, args, &answer, limit); err != nil {
		return "", err
	}
	if len(answer) == 0 {
		answer = json.RawMessage("{}")
	}
	return fmt.Sprintf(`{"return":%s}`, answer), nil
}
