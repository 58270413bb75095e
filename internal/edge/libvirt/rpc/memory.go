package rpc

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/control/authz"
)

// Memory counts the daemon's memory that clients hold: calls that are read and answered,
// packets that wait to be taken, and callbacks. Each has bounds of its own; this is the
// bound of all together. At the bound, the owner that holds most loses its largest
// connection: a client that takes its answers holds next to nothing. The count is by
// owner, because each of an owner's many connections may hold little.
type Memory struct {
	Limit int // bytes

	Mu    sync.Mutex
	Total int
	Held  map[*Client]int
	Of    map[authz.Owner]int
}

// NewMemory makes a count with a limit in bytes.
func NewMemory(limit int) Memory {
	return Memory{Limit: limit, Held: map[*Client]int{}, Of: map[authz.Owner]int{}}
}

// MaxHeld is the limit of a server, in bytes.
const MaxHeld = 256 << 20

// Take adds n bytes to a client's count. Over the limit, it ends the largest connection.
func (m *Memory) Take(c *Client, n int) {
	m.Mu.Lock()
	m.Total += n
	m.Held[c] += n
	m.Of[c.Owner] += n
	var most *Client
	if m.Total > m.Limit {
		most = m.most()
	}
	held, total := m.Held[most], m.Total
	m.Mu.Unlock()
	if most != nil {
		most.End(fault.New(fault.NoCapacity, fault.Call, "clients hold %d bytes of calls and answers, those of this one's owner most, and of them this one with %d", total, held))
	}
}

// most is the largest connection of the owner that holds most. It is called with the lock held.
func (m *Memory) most() (most *Client) {
	for one, held := range m.Held {
		if most == nil || m.Of[one.Owner] > m.Of[most.Owner] || one.Owner == most.Owner && held > m.Held[most] {
			most = one
		}
	}
	return most
}

// Give subtracts n bytes from a client's count.
func (m *Memory) Give(c *Client, n int) {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	m.Total -= n
	if m.Held[c] -= n; m.Held[c] == 0 {
		delete(m.Held, c)
	}
	if m.Of[c.Owner] -= n; m.Of[c.Owner] == 0 {
		delete(m.Of, c.Owner)
	}
}

// hold counts a packet that was read, as it grows.
func (c *Client) hold(f *frame, n int) {
	f.held += n
	c.Server.Memory.Take(c, n)
}

// letGo subtracts a packet that was read from the client's count.
func (c *Client) letGo(f *frame) {
	c.Server.Memory.Give(c, f.held)
	f.held = 0
}

// patient reads long packets: a client that has begun a packet must continue it in time.
type patient struct {
	conn     net.Conn
	patience time.Duration
	reading  context.Context
}

// Read reads a slice of the packet. The client must send within the patience.
func (p patient) Read(b []byte) (int, error) {
	p.until(time.Now().Add(p.patience))
	return p.conn.Read(b[:min(len(b), writeSlice)])
}

// done removes the deadline: the next packet may begin at any time.
func (p patient) done() { p.until(time.Time{}) }

// until sets the deadline, unless the daemon has ended the reading by one.
func (p patient) until(t time.Time) {
	_ = p.conn.SetReadDeadline(t) // the read would fail, too
	if p.reading.Err() != nil {
		_ = p.conn.SetReadDeadline(time.Now())
	}
}
