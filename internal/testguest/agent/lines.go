package main

import (
	"bytes"
	"encoding/json"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/testguest/line"
)

// cutLine splits a stream after its first line. It drops the line's end.
func cutLine(stream []byte) (first, rest []byte, found bool) {
	first, rest, found = bytes.Cut(stream, []byte{'\n'})
	return bytes.TrimRight(first, "\r"), rest, found
}

// greeting tells a host that was already connected that user space is up.
func (g *guest) greeting() []byte {
	return encode(line.Reply{Facts: g.facts()})
}

// answerLine answers one request of Lodge's own protocol.
func (g *guest) answerLine(text []byte) []byte {
	var q line.Request
	if err := json.Unmarshal(text, &q); err != nil {
		return encode(line.Reply{Error: "not a request: " + err.Error()})
	}
	r := line.Reply{ID: q.ID}
	switch q.Do {
	case line.Ping:
		r.Facts = g.facts()
	case line.Addresses:
		r.Interfaces = g.interfaces()
	case line.Exec:
		exit, err := g.execute(q)
		if err != nil {
			r.Error = err.Error()
		}
		r.Exit = exit
	case line.Power:
		how := unix.LINUX_REBOOT_CMD_POWER_OFF
		if q.How == "reboot" {
			how = unix.LINUX_REBOOT_CMD_RESTART
		}
		go g.end(how)
	default:
		r.Error = "no such word: " + q.Do
	}
	return encode(r)
}

// execute runs a program for the host and waits for it.
func (g *guest) execute(q line.Request) (*line.Exit, error) {
	limit := line.MaxTimeout
	if asked := time.Duration(q.TimeoutMS) * time.Millisecond; asked > 0 && asked < limit {
		limit = asked
	}
	p, err := g.family.run(q.Argv, q.Stdin, limit)
	if err != nil {
		return nil, err
	}
	<-p.done
	return &line.Exit{
		Code: p.code(), Stdout: p.stdout.bytes(), Stderr: p.stderr.bytes(),
		Dropped: p.stdout.dropped || p.stderr.dropped, TimedOut: p.timedOut,
	}, nil
}

func encode(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		return []byte("{}\n")
	}
	return append(text, '\n')
}
