package machine

import (
	"context"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/agent"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// AgentChannel is the name of the channel of QEMU's guest agent.
const AgentChannel = "org.qemu.guest_agent.0"

// IsAgentChannel reports whether the guest agent may take a channel of that name for its own. udev makes the
// agent's link also for a name that contains the agent's as one of several words, or ends in spaces.
func IsAgentChannel(channel string) bool { return strings.Contains(channel, AgentChannel) }

// AgentLimit is how long to wait for an agent's answer, as libvirt does.
const AgentLimit = 5 * time.Second

// agentConnection is the connection to a guest's agent. It is made at the first use.
type agentConnection struct {
	mu      sync.Mutex
	session *agent.Session
}

// Open returns the session, and connects if there is none.
func (l *agentConnection) Open(ctx context.Context, path string, dial func(context.Context, string) (net.Conn, error)) (*agent.Session, error) {
	if s := l.LoadOrStore(nil); s != nil {
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
	kept := l.LoadOrStore(s)
	if kept != s { // another request was faster, and a channel takes one connection
		s.Close()
	}
	return kept, nil
}

// LoadOrStore returns the present session, or stores s if there is none.
func (l *agentConnection) LoadOrStore(s *agent.Session) *agent.Session {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.session == nil {
		l.session = s
	}
	return l.session
}

// Drop closes a session after its connection came into an unknown state.
func (l *agentConnection) Drop(s *agent.Session) {
	s.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.session == s {
		l.session = nil
	}
}

// Close closes the session of a guest that has ended.
func (l *agentConnection) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.session != nil {
		l.session.Close()
		l.session = nil
	}
}

// AgentChar returns the agent's channel of a running guest, or an error that says why there is none.
func AgentChar(def *domain.Definition) (*device.Char, error) {
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

// AgentConnected reports whether an agent listens in the guest. It is called in the loop.
func (r *Instance) AgentConnected() bool {
	_, err := AgentChar(r.Definition)
	return err == nil
}
