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

// AgentChannel is the name under which QEMU's guest agent is reached.
const AgentChannel = "org.qemu.guest_agent.0"

// IsAgents says whether the agent in a guest may take a channel of that name for its own. udev makes the agent's link of a
// name in which that is one of several words, or has spaces behind it.
func IsAgents(channel string) bool { return strings.Contains(channel, AgentChannel) }

// agentLimit is how long an agent is waited for, as libvirt does.
const agentLimit = 5 * time.Second

// agentLine is the connection to a guest's agent, made when it is first used.
type agentLine struct {
	mu      sync.Mutex
	session *agent.Session
}

// open gives the session, dialling when there is none.
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
	if kept != s { // somebody else was first, and a channel takes one
		s.Close()
	}
	return kept, nil
}

// keep gives the session that there is, or takes this one.
func (l *agentLine) keep(s *agent.Session) *agent.Session {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.session == nil {
		l.session = s
	}
	return l.session
}

// drop closes a session whose line is in an unknown state.
func (l *agentLine) drop(s *agent.Session) {
	s.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.session == s {
		l.session = nil
	}
}

// close ends the session with a guest that has ended.
func (l *agentLine) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.session != nil {
		l.session.Close()
		l.session = nil
	}
}

// agentChar gives the agent's channel of a running guest, or why there is none.
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

// agentConnected reports whether an agent listens in the guest. It is called in
// the loop.
func (r *run) agentConnected() bool {
	_, err := agentChar(r.def)
	return err == nil
}

// askAgent gives the agent one command and its answer to into.
func (r *run) askAgent(ctx context.Context, def *domain.Definition, command string, args, into any) error {
	return r.withAgent(ctx, def, func(s *agent.Session) error { return s.Execute(ctx, command, args, into) })
}

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
	if err != nil && !errors.As(err, &refused) && !fault.Is(err, fault.Busy) { // which has another's command under way
		r.agent.drop(s)
	}
	return err
}

// agentShutdown has the agent turn the guest off or reboot it. An agent that
// obeys does not answer.
func (r *run) agentShutdown(ctx context.Context, def *domain.Definition, mode string) error {
	ctx, stop := context.WithTimeout(ctx, agentLimit)
	defer stop()
	err := r.withAgent(ctx, def, func(s *agent.Session) error {
		return s.Order(ctx, "guest-shutdown", map[string]any{"mode": mode})
	})
	if r.ending() {
		return nil // it obeyed, and went before its silence was believed
	}
	return err
}

// Agent asks the guest's agent, within limit (0: the usual).
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

// AgentCommand gives the agent a command of the user's own, as JSON, and returns
// its answer.
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
