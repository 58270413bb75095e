package nested

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"time"
)

// monitor is a session with the monitor of the host's QEMU.
type monitor struct {
	conn net.Conn
	in   *json.Decoder
}

// openMonitor connects to QEMU and negotiates capabilities.
func openMonitor(ctx context.Context, path string) (*monitor, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	m := &monitor{conn: conn, in: json.NewDecoder(bufio.NewReader(conn))}
	if _, err := m.call(ctx, "qmp_capabilities", nil); err != nil {
		conn.Close()
		return nil, err
	}
	return m, nil
}

// call returns the answer of a command.
func (m *monitor) call(ctx context.Context, command string, arguments map[string]any) (json.RawMessage, error) {
	text, err := json.Marshal(struct {
		Execute   string         `json:"execute"`
		Arguments map[string]any `json:"arguments,omitempty"`
	}{command, arguments})
	if err != nil {
		return nil, err
	}
	_ = m.conn.SetDeadline(time.Time{})
	defer context.AfterFunc(ctx, func() { _ = m.conn.SetDeadline(time.Unix(1, 0)) })()
	if _, err := m.conn.Write(append(text, '\n')); err != nil {
		return nil, err
	}
	for {
		var answer struct {
			Return json.RawMessage `json:"return"`
			Error  *struct {
				Desc string `json:"desc"`
			} `json:"error"`
		}
		if err := m.in.Decode(&answer); err != nil {
			return nil, fmt.Errorf("QEMU does not answer %s: %w", command, err)
		}
		switch { // other lines are the greeting or an event
		case answer.Error != nil:
			return nil, fmt.Errorf("QEMU refuses %s: %s", command, answer.Error.Desc)
		case answer.Return != nil:
			return answer.Return, nil
		}
	}
}

// human runs a command of the human monitor. Most print nothing on success.
func (m *monitor) human(ctx context.Context, line string) (string, error) {
	answer, err := m.call(ctx, "human-monitor-command", map[string]any{"command-line": line})
	if err != nil {
		return "", err
	}
	var said string
	err = json.Unmarshal(answer, &said)
	return strings.TrimSpace(said), err
}
