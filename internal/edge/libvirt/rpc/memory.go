package rpc

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/control/authz"
)

// Memory counts the daemon's memory that clients occupy: calls in flight, packets that wait to
// be sent or to be taken by a stream, and callbacks. Each has bounds of its own; this is the
// bound of all together. Over it, the owner with the most bytes loses its largest
// connection: a client that reads its replies occupies almost nothing. The count is by
// owner, because each of an owner's many connections may occupy little.
type Memory struct {
	Limit int // bytes

	Mu       sync.Mutex
	Total    int
	ByClient map[*Client]int
	ByOwner  map[authz.Owner]int
}

// NewMemory makes a count with a limit in bytes.
func NewMemory(limit int) Memory {
	return Memory{Limit: limit, ByClient: map[*Client]int{}, ByOwner: map[authz.Owner]int{}}
}

// MaxClientMemory is the limit of a server, in bytes.
const MaxClientMemory = 256 << 20

// Charge adds n bytes to a client's count. Over the limit, it ends the largest connection of the owner with the
// most bytes.
func (m *Memory) Charge(c *Client, n int) {
	m.Mu.Lock()
	m.Total += n
	m.ByClient[c] += n
	m.ByOwner[c.Owner] += n
	var most *Client
	if m.Total > m.Limit {
		most = m.largest()
	}
	held, total := m.ByClient[most], m.Total
	m.Mu.Unlock()
	if most != nil {
		most.End(fault.New(fault.NoCapacity, fault.Call, "calls and answers of all clients take %d bytes; of the owner with the most, this connection has the most, %d", total, held))
	}
}

// largest is the largest connection of the owner with the most bytes. It is called with the lock held.
func (m *Memory) largest() (most *Client) {
	for one, held := range m.ByClient {
		if most == nil || m.ByOwner[one.Owner] > m.ByOwner[most.Owner] || one.Owner == most.Owner && held > m.ByClient[most] {
			most = one
		}
	}
	return most
}

// Release subtracts n bytes from a client's count.
func (m *Memory) Release(c *Client, n int) {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	m.Total -= n
	if m.ByClient[c] -= n; m.ByClient[c] == 0 {
		delete(m.ByClient, c)
	}
	if m.ByOwner[c.Owner] -= n; m.ByOwner[c.Owner] == 0 {
		delete(m.ByOwner, c.Owner)
	}
}

// chargeFrame charges the client with n more bytes of a packet that is being read.
func (c *Client) chargeFrame(f *frame, n int) {
	f.charged += n
	c.Server.Memory.Charge(c, n)
}

// releaseFrame subtracts the bytes of a packet from the client's count.
func (c *Client) releaseFrame(f *frame) {
	c.Server.Memory.Release(c, f.charged)
	f.charged = 0
}

// deadlineReader reads the rest of a long packet: the client must continue it within the timeout.
type deadlineReader struct {
	conn    net.Conn
	timeout time.Duration
	readCtx context.Context
}

// Read reads a slice of the packet, with a deadline of its own.
func (r deadlineReader) Read(b []byte) (int, error) {
	r.setDeadline(time.Now().Add(r.timeout))
	return r.conn.Read(b[:min(len(b), writeSlice)])
}

// clearDeadline removes the deadline: the next packet may begin at any time.
func (r deadlineReader) clearDeadline() { r.setDeadline(time.Time{}) }

// setDeadline sets the deadline, unless the daemon has stopped the reading by a deadline that has passed.
func (r deadlineReader) setDeadline(t time.Time) {
	_ = r.conn.SetReadDeadline(t) // the read would fail, too
	if r.readCtx.Err() != nil {
		_ = r.conn.SetReadDeadline(time.Now())
	}
}
