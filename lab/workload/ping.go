package workload

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"
)

// Ping is the configuration of echoes to one address, in an open loop as a rule:
// the longest time without an answer is the pause that a client sees. It needs the right
// to raw sockets. Its operation is "echo".
type Ping struct {
	Pace
	// Address is one of IPv4: names are not looked up.
	Address string `json:"address"`
}

// OpEcho is an echo that came back.
const OpEcho = "echo"

func newPing(config json.RawMessage) (Load, error) {
	var p Ping
	if err := parse(config, &p); err != nil {
		return nil, err
	}
	if at, err := netip.ParseAddr(p.Address); err != nil || !at.Is4() || at.IsMulticast() || at.IsUnspecified() || at == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return nil, invalid("address is %q: give an IPv4 address of one machine", p.Address)
	}
	if err := p.settle(); err != nil {
		return nil, err
	}
	return &paced{p.Pace, func(_ int, draw *rand.Rand) worker { return &pinger{address: p.Address, draw: draw} }}, nil
}

// pinger waits for one echo at a time.
type pinger struct {
	address string
	draw    *rand.Rand
	conn    *net.IPConn
	number  uint16
}

func (p *pinger) close() {
	if p.conn != nil {
		p.conn.Close()
		p.conn = nil
	}
}

func (p *pinger) do(ctx context.Context, intended time.Time, m *meter) error {
	started := time.Now()
	err := p.echo(ctx)
	if err != nil {
		p.close()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
	}
	m.note(OpEcho, intended, started, 0, err)
	return err
}

const (
	echoRequest = 8
	echoReply   = 0
	echoSize    = 16
)

func (p *pinger) echo(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if p.conn == nil {
		conn, err := new(net.Dialer).DialContext(ctx, "ip4:icmp", p.address)
		if err != nil {
			return fmt.Errorf("cannot send echoes: %w", err)
		}
		p.conn = conn.(*net.IPConn)
	}
	conn := p.conn
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	p.number++
	// Every raw socket hears every echo of the machine: eight drawn bytes tell which is ours.
	ours := p.draw.Uint64()
	if _, err := conn.Write(request(p.number, ours)); err != nil {
		return fmt.Errorf("cannot send an echo: %w", err)
	}
	answer := make([]byte, 1500)
	for {
		n, from, err := conn.ReadFromIP(answer)
		if err != nil {
			return fmt.Errorf("no echo: %w", err)
		}
		if from.String() == p.address && mine(answer[:n], ours) {
			return nil
		}
	}
}

func request(number uint16, ours uint64) []byte {
	message := make([]byte, echoSize)
	message[0] = echoRequest
	binary.BigEndian.PutUint16(message[6:], number)
	binary.BigEndian.PutUint64(message[8:], ours)
	var sum uint32
	for i := 0; i < echoSize; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(message[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(message[2:], ^uint16(sum))
	return message
}

// mine reads a packet: without its IP header, which Go takes off.
func mine(packet []byte, ours uint64) bool {
	return len(packet) == echoSize && packet[0] == echoReply && binary.BigEndian.Uint64(packet[8:]) == ours
}
