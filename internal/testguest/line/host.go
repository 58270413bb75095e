package line

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Host is the host's end of the conversation. Its methods may be called from
// several goroutines; they take turns.
type Host struct {
	turn sync.Mutex // held for a whole request and its reply
	conn net.Conn
	in   *bufio.Reader
	last int64
}

// Dial connects to the Unix socket behind a guest's port. It does not wait for
// the guest: the first request does, for as long as its context allows.
func Dial(ctx context.Context, path string) (*Host, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("cannot reach the guest's port: %w", err)
	}
	return New(conn), nil
}

// New speaks over conn, which the Host owns from here on.
func New(conn net.Conn) *Host {
	return &Host{conn: conn, in: bufio.NewReader(conn)}
}

// Close ends the conversation; the guest stays as it is.
func (h *Host) Close() { _ = h.conn.Close() }

// Ping waits until the guest's user space answers.
func (h *Host) Ping(ctx context.Context) (Facts, error) {
	r, err := h.Ask(ctx, Request{Do: Ping})
	if err != nil {
		return Facts{}, err
	}
	if r.Facts == nil {
		return Facts{}, fmt.Errorf("the guest answered a ping without its facts")
	}
	return *r.Facts, nil
}

// Run runs a program in the guest to its end.
func (h *Host) Run(ctx context.Context, argv ...string) (Exit, error) {
	r, err := h.Ask(ctx, Request{Do: Exec, Argv: argv})
	if err != nil {
		return Exit{}, err
	}
	if r.Exit == nil {
		return Exit{}, fmt.Errorf("the guest ran %q and did not say how it ended", argv[0])
	}
	return *r.Exit, nil
}

// Ask sends one request and waits for its reply. After an error the connection
// may hold half a reply, so the next Ask skips to its own.
func (h *Host) Ask(ctx context.Context, q Request) (Reply, error) {
	h.turn.Lock()
	defer h.turn.Unlock()
	h.last++
	q.ID = h.last
	text, err := json.Marshal(q)
	if err != nil {
		return Reply{}, err
	}
	release := h.bind(ctx)
	defer release()
	if _, err := h.conn.Write(append(text, '\n')); err != nil {
		return Reply{}, h.explain(ctx, err)
	}
	for {
		line, err := h.readLine()
		if err != nil {
			return Reply{}, h.explain(ctx, err)
		}
		var r Reply
		if err := json.Unmarshal(line, &r); err != nil || r.ID != q.ID {
			continue // the unasked greeting, or the end of an abandoned reply
		}
		if r.Error != "" {
			return r, fmt.Errorf("the guest refuses %s: %s", q.Do, r.Error)
		}
		return r, nil
	}
}

// bind makes the connection's deadline follow ctx until released.
func (h *Host) bind(ctx context.Context) (release func()) {
	_ = h.conn.SetDeadline(time.Time{})
	stop := context.AfterFunc(ctx, func() { _ = h.conn.SetDeadline(time.Unix(1, 0)) })
	return func() { stop() }
}

func (h *Host) explain(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return fmt.Errorf("no answer from the guest: %w", err)
}

func (h *Host) readLine() ([]byte, error) {
	var line []byte
	for {
		part, err := h.in.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case err == nil:
			return line, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		case len(line) > MaxLine:
			return nil, fmt.Errorf("a line from the guest is longer than %d bytes", MaxLine)
		}
	}
}
