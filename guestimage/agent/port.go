package main

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/guestimage/line"
)

// port is a virtio-serial port, open for as long as it exists.
type port struct {
	file *os.File
	raw  syscall.RawConn
}

// portServer gives what answers on a port, by the name the host gave it; nil
// for a port that is nobody's, or has no name yet.
func (g *guest) portServer(device string) func(string) {
	switch readTrimmed("/sys/class/virtio-ports/" + device + "/name") {
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
	p, err := openPort(device)
	if err != nil {
		g.say("cannot answer on %s: %v", device, err)
		return
	}
	defer p.file.Close()
	_, _ = p.file.Write(greeting)
	var pending []byte
	buffer := make([]byte, 64<<10)
	for {
		n, err := p.read(buffer)
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
				_, _ = p.file.Write(reply)
			}
		}
		if len(pending) > line.MaxLine {
			pending = nil // not a line any more
		}
	}
}

func openPort(device string) (*port, error) {
	// Non-blocking, so that the runtime's poller waits, not a thread.
	file, err := os.OpenFile("/dev/"+device, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &port{file: file, raw: raw}, nil
}

// read waits for bytes. A port whose host end is closed reads as ended at once,
// every time: such an end is waited out like silence, on the poller's edge,
// because asking again and again would cost the idle guest a few per cent of a
// processor.
func (p *port) read(buffer []byte) (int, error) {
	var n int
	var failed error
	err := p.raw.Read(func(fd uintptr) bool {
		n, failed = unix.Read(int(fd), buffer)
		if errors.Is(failed, unix.EAGAIN) || errors.Is(failed, unix.EINTR) || (failed == nil && n == 0) {
			failed = nil
			return false
		}
		return true
	})
	if err != nil {
		return 0, err
	}
	return n, failed
}
