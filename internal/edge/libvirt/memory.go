package libvirt

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/control/authz"
)

// memory counts the daemon's memory that clients hold: calls that are read and answered,
// packets that wait to be taken, and callbacks. Each has bounds of its own; this is the
// bound of all together. At the bound, the owner that holds most loses its largest
// connection: a client that takes its answers holds next to nothing. The count is by
// owner, because each of an owner's many connections may hold little.
type memory struct {
	limit int // bytes

	mu    sync.Mutex
	total int
	held  map[*client]int
	of    map[authz.Owner]int
}

// newMemory makes a count with a limit in bytes.
func newMemory(limit int) memory {
	return memory{limit: limit, held: map[*client]int{}, of: map[authz.Owner]int{}}
}

// maxHeld is the limit of a server, in bytes.
const maxHeld = 256 << 20

// take adds n bytes to a client's count. Over the limit, it ends the largest connection.
func (m *memory) take(c *client, n int) {
	m.mu.Lock()
	m.total += n
	m.held[c] += n
	m.of[c.owner] += n
	var most *client
	if m.total > m.limit {
		most = m.most()
	}
	held, total := m.held[most], m.total
	m.mu.Unlock()
	if most != nil {
		most.end(fault.New(fault.NoCapacity, fault.Call, "clients hold %d bytes of calls and answers, those of this one's owner most, and of them this one with %d", total, held))
	}
}

// most is the largest connection of the owner that holds most. It is called with the lock held.
func (m *memory) most() (most *client) {
	for one, held := range m.held {
		if most == nil || m.of[one.owner] > m.of[most.owner] || one.owner == most.owner && held > m.held[most] {
			most = one
		}
	}
	return most
}

// give subtracts n bytes from a client's count.
func (m *memory) give(c *client, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.total -= n
	if m.held[c] -= n; m.held[c] == 0 {
		delete(m.held, c)
	}
	if m.of[c.owner] -= n; m.of[c.owner] == 0 {
		delete(m.of, c.owner)
	}
}

// hold counts a packet that was read, as it grows.
func (c *client) hold(f *frame, n int) {
	f.held += n
	c.server.memory.take(c, n)
}

// letGo subtracts a packet that was read from the client's count.
func (c *client) letGo(f *frame) {
	c.server.memory.give(c, f.held)
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
