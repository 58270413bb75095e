package workload

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// The bounds of an answer.
const (
	maxHead = 64 << 10
	maxBody = 16 << 20
)

// idle is how long a connection that nothing was sent on is trusted: servers
// close theirs after some seconds, and a request that crosses that would be
// counted on one side only.
const idle = 2 * time.Second

// client is one user's way to a web server: one connection, one request at a time,
// and none is ever sent twice, so that both sides count the same.
type client struct {
	address string // host:port, or unix:/path
	host    string
	dial    func(ctx context.Context, network, address string) (net.Conn, error)

	conn net.Conn
	in   *io.LimitedReader
	buf  *bufio.Reader
	used time.Time
}

func newClient(address, host string) *client {
	return &client{address: address, host: host, dial: new(net.Dialer).DialContext}
}

// network splits an address as configurations have it.
func network(address string) (kind, at string) {
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		return "unix", path
	}
	return "tcp", address
}

// checkAddress refuses one that would have to be guessed at.
func checkAddress(address string) error {
	kind, at := network(address)
	if kind == "unix" && at != "" {
		return nil
	}
	if host, port, err := net.SplitHostPort(at); err != nil || host == "" || port == "" {
		return invalid("address is %q: give host:port or unix:/path", address)
	}
	return nil
}

func (c *client) close() {
	if c.conn != nil {
		c.conn.Close()
		c.conn = nil
	}
}

// get sends a request and reads the whole answer. Redirections are not followed.
func (c *client) get(ctx context.Context, method, target, kind string, body []byte) (status int, answer []byte, err error) {
	if err := c.connect(ctx); err != nil {
		return 0, nil, err
	}
	conn := c.conn
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) }) // wakes reads and writes
	status, answer, again, err := c.exchange(method, target, kind, body)
	c.used = time.Now()
	if !stop() || err != nil || !again {
		defer c.close()
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return status, answer, err
}

func (c *client) connect(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if c.conn != nil && time.Since(c.used) < idle {
		return nil
	}
	c.close()
	kind, at := network(c.address)
	conn, err := c.dial(ctx, kind, at)
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("cannot connect: %w", err)
	}
	c.conn = conn
	c.in = &io.LimitedReader{R: conn}
	c.buf = bufio.NewReaderSize(c.in, 16<<10)
	return nil
}

// exchange reports also whether the connection may be used again.
func (c *client) exchange(method, target, kind string, body []byte) (status int, answer []byte, again bool, err error) {
	var request bytes.Buffer
	fmt.Fprintf(&request, "%s %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: lodge-lab\r\n", method, target, c.host)
	if kind != "" {
		fmt.Fprintf(&request, "Content-Type: %s\r\n", kind)
	}
	if body != nil {
		fmt.Fprintf(&request, "Content-Length: %d\r\n", len(body))
	}
	request.WriteString("\r\n")
	request.Write(body)
	if _, err := c.conn.Write(request.Bytes()); err != nil {
		return 0, nil, false, fmt.Errorf("cannot send: %w", err)
	}
	c.in.N = maxHead
	response, err := http.ReadResponse(c.buf, &http.Request{Method: method})
	if err != nil {
		return 0, nil, false, fmt.Errorf("no answer: %w", err)
	}
	c.in.N += maxBody
	answer, err = io.ReadAll(response.Body)
	if err != nil {
		return response.StatusCode, nil, false, fmt.Errorf("the answer breaks off: %w", err)
	}
	if c.in.N <= 0 {
		return response.StatusCode, nil, false, fmt.Errorf("the answer is longer than %d bytes", maxBody)
	}
	return response.StatusCode, answer, !response.Close, nil
}
