package workload

import (
	"bytes"
	"context"
	"net"
	"testing"
	"time"
)

// canned is a connection to a server that says the same whatever it is asked.
type canned struct {
	net.Conn // nothing else of it is used
	*bytes.Reader
}

func (c canned) Read(into []byte) (int, error)   { return c.Reader.Read(into) }
func (canned) Write(request []byte) (int, error) { return len(request), nil }
func (canned) Close() error                      { return nil }
func (canned) SetDeadline(time.Time) error       { return nil }

// FuzzExchange: a web server in a hostile guest answers whatever it likes, once and
// once more. What is taken for an answer's body it has said, and no more.
func FuzzExchange(f *testing.F) {
	for _, answer := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
		"HTTP/1.0 500 x\r\n\r\nuntil the end", "HTTP/1.1 204 x\r\nConnection: close\r\n\r\n", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 9223372036854775807\r\n\r\n",
	} {
		f.Add([]byte(answer), false)
		f.Add([]byte(answer), true)
	}
	f.Fuzz(func(t *testing.T, answer []byte, head bool) {
		method := map[bool]string{false: "GET", true: "HEAD"}[head]
		c, calls := newClient("server:80", "server"), 0
		c.dial = func(context.Context, string, string) (net.Conn, error) {
			calls++
			return canned{Reader: bytes.NewReader(answer)}, nil
		}
		for range 2 {
			status, body, err := c.get(t.Context(), method, "/", "", nil)
			if err == nil && (status < 0 || status > 999 || len(body) > len(answer) || head && len(body) > 0) {
				t.Fatalf("status %d and %d bytes of %q", status, len(body), answer)
			}
			if err != nil && c.conn != nil {
				t.Fatalf("the connection is kept after %v", err)
			}
		}
		if calls > 2 {
			t.Fatalf("two requests made %d connections", calls)
		}
		c.close()
	})
}
