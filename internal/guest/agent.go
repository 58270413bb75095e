package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/mechanism/agent"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// AgentChannel is the name of the channel of QEMU's guest agent.
const AgentChannel = "org.qemu.guest_agent.0"

// IsAgents reports whether the guest agent may take a channel of that name for its own. udev makes the
// agent's link also for a name that contains the agent's as one of several words, or ends in spaces.
func IsAgents(channel string) bool { return strings.Contains(channel, AgentChannel) }

// agentLimit is how long to wait for an agent's answer, as libvirt does.
const agentLimit = 5 * time.Second

// agentLine is the connection to a guest's agent. It is made at the first use.
type agentLine struct {
	mu      sync.Mutex
	session *agent.Session
}

// open returns the session, and connects if there is none.
func (l *agentLine) open(ctx context.Context, path string, dial func(context.Context, string) (net.Conn, error)) (*agent.Session, error) {
	if s := l.keep(nil); s != nil {
		return s, nil
	}
	s, err := fsguard.Do(ctx, path, func() (*agent.Session, error) {
		conn, err := dial(ctx, path)
		if err != nil {
			return nil, err
		}
		return agent.New(conn), nil
	}, (*agent.Session).Close)
	if err != nil {
		return nil, fault.Wrap(err, fault.Unresponsive, fault.Agent, "cannot reach the channel of the guest agent")
	}
	kept := l.keep(s)
	if kept != s { // another request was faster, and a channel takes one connection
		s.Close()
	}
	return kept, nil
}

// keep returns the present session, or stores s if there is none.
func (l *agentLine) keep(s *agent.Session) *agent.Session {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.session == nil {
		l.session = s
	}
	return l.session
}

// drop closes a session after its connection came into an unknown state.
func (l *agentLine) drop(s *agent.Session) {
	s.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.session == s {
		l.session = nil
	}
}

// close closes the session of a guest that has ended.
func (l *agentLine) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.session != nil {
		l.session.Close()
		l.session = nil
	}
}

// agentChar returns the agent's channel of a running guest, or an error that says why there is none.
func agentChar(def *domain.Definition) (*device.Char, error) {
	for _, c := range def.Devices.Channels {
		if c.Name == AgentChannel && c.Backend.Type == "unix" {
			if c.State != "connected" {
				return nil, fault.New(fault.Unresponsive, fault.Agent, "QEMU guest agent is not connected")
			}
			return c, nil
		}
	}
	return nil, fault.New(fault.WrongState, fault.Agent, "QEMU guest agent is not configured")
}

// agentConnected reports whether an agent listens in the guest. It is called in the loop.
func (r *run) agentConnected() bool {
	_, err := agentChar(r.def)
	return err == nil
}

// askAgent sends the agent one command and stores its answer in into.
func (r *run) askAgent(ctx context.Context, def *domain.Definition, command string, args, into any) error {
	return r.withAgent(ctx, def, func(s *agent.Session) error { return s.Execute(ctx, command, args, into) })
}

// withAgent calls do with the agent's session. It drops the session after an error, unless the agent
// refused the command or is busy.
func (r *run) withAgent(ctx context.Context, def *domain.Definition, do func(*agent.Session) error) error {
	c, err := agentChar(def)
	if err != nil {
		return err
	}
	s, err := r.agent.open(ctx, c.Backend.Path, r.dial)
	if err != nil {
		return err
	}
	err = do(s)
	var refused *agent.Error
	if err != nil && !errors.As(err, &refused) && !fault.Is(err, fault.Busy) { // busy: another command is in progress
		r.agent.drop(s)
	}
	return err
}

// agentShutdown tells the agent to power the guest off or to reboot it. An agent that does so sends no
// answer.
func (r *run) agentShutdown(ctx context.Context, def *domain.Definition, mode string) error {
	ctx, stop := context.WithTimeout(ctx, agentLimit)
	defer stop()
	err := r.withAgent(ctx, def, func(s *agent.Session) error {
		return s.Order(ctx, "guest-shutdown", map[string]any{"mode": mode})
	})
	if r.ending() {
		return nil // it obeyed, and ended before the time for an answer was over
	}
	return err
}

// Agent sends a command to the guest's agent and waits for the answer up to limit. 0 means agentLimit.
func (g *Guest) Agent(ctx context.Context, sc scope.Scope, command string, args, into any, limit time.Duration) error {
	if err := sc.Check(); err != nil {
		return err
	}
	v, r := g.View(), g.live.Load()
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
		limit = agentLimit
	}
	ctx, stop := context.WithTimeout(ctx, limit)
	defer stop()
	return r.askAgent(ctx, v.Active, command, args, into)
}

// AgentCommand sends the agent a command of the user, as JSON, and returns its answer.
func (g *Guest) AgentCommand(ctx context.Context, sc scope.Scope, command string, limit time.Duration) (string, error) {
	if err := sc.Check(); err != nil {
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
	if r := g.live.Load(); r != nil {
		g.remark(ctx, r, agentCommanded)
	}
	var answer json.RawMessage
	if err := g.Agent(ctx, sc, c.Execute, args, &answer, limit); err != nil {
		return "", err
	}
	if len(answer) == 0 {
		answer = json.RawMessage("{}")
	}
	return fmt.Sprintf(`{"return":%s}`, answer), nil
}
