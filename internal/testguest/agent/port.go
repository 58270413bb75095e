package main

import (
	"github.com/lodge-kvm/lodge/internal/testguest/early"
	"github.com/lodge-kvm/lodge/internal/testguest/line"
)

// portServer returns the function that answers on a port, by the name that the host gave it. It returns nil for a
// port without a name, or with a name that no server has.
func (g *guest) portServer(device string) func(string) {
	switch early.PortName(device) {
	case line.Port:
		return func(d string) { g.serve(d, g.answerLine, g.greeting()) }
	case "org.qemu.guest_agent.0":
		q := &qga{guest: g, running: map[int]*program{}}
		return func(d string) { g.serve(d, q.answer, nil) }
	}
	return nil
}

// serve answers lines on a port until the port is taken away.
func (g *guest) serve(device string, answer func(line []byte) []byte, greeting []byte) {
	p, err := early.OpenPort(device)
	if err != nil {
		g.say("cannot answer on %s: %v", device, err)
		return
	}
	defer func() { _ = p.Close() }()
	_, _ = p.Write(greeting)
	var pending []byte
	buffer := make([]byte, 64<<10)
	for {
		n, err := p.Read(buffer)
		if err != nil {
			return
		}
		pending = append(pending, buffer[:n]...)
		for {
			request, rest, found := cutLine(pending)
			if !found {
				break
			}
			pending = rest
			if reply := answer(request); reply != nil {
				_, _ = p.Write(reply)
			}
		}
		if len(pending) > line.MaxLine {
			pending = nil // not a line any more
		}
	}
}
