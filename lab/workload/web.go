package workload

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"time"
)

// Web is the configuration of a load on a web server.
type Web struct {
	Pace
	// Address is where the server listens: host:port, or unix:/path.
	Address string `json:"address"`
	// Host is the name it is asked by: the address if nothing is said.
	Host     string    `json:"host,omitempty"`
	Requests []Request `json:"requests"`
	// Fresh makes a connection for every request.
	Fresh bool `json:"fresh,omitempty"`
}

// Request is one of those that a web load draws from.
type Request struct {
	// Op is the name it is counted under: "web" if nothing is said.
	Op     string `json:"op,omitempty"`
	Method string `json:"method,omitempty"` // GET
	Path   string `json:"path"`
	Body   string `json:"body,omitempty"`
	Type   string `json:"type,omitempty"` // of the body
	// Weight is how often it is drawn, beside the others: 1.
	Weight float64 `json:"weight,omitzero"`
	// What the answer must be; another is an error.
	Status   int    `json:"status,omitzero"` // 200
	Contains string `json:"contains,omitempty"`
	Bytes    *int   `json:"bytes,omitempty"`
}

const maxRequests = 1000

func newWeb(config json.RawMessage) (Load, error) {
	var w Web
	if err := parse(config, &w); err != nil {
		return nil, err
	}
	if err := w.settle(); err != nil {
		return nil, err
	}
	return w.load(nil), nil
}

func (w *Web) settle() error {
	if err := w.Pace.settle(); err != nil {
		return err
	}
	if err := checkAddress(w.Address); err != nil {
		return err
	}
	orElse(&w.Host, w.Address)
	if len(w.Requests) == 0 || len(w.Requests) > maxRequests {
		return invalid("there are %d requests: 1 to %d are possible", len(w.Requests), maxRequests)
	}
	ops := map[string]bool{}
	for i := range w.Requests {
		if err := w.Requests[i].settle(); err != nil {
			return fmt.Errorf("request %d: %w", i+1, err)
		}
		ops[w.Requests[i].Op] = true
	}
	if len(ops) > MaxOps {
		return invalid("the requests have %d names of operations: at most %d are possible", len(ops), MaxOps)
	}
	if strings.ContainsAny(w.Host, "\r\n ") {
		return invalid("host is %q: no line end or blank can be in it", w.Host)
	}
	return nil
}

func (r *Request) settle() error {
	orElse(&r.Op, "web")
	orElse(&r.Method, "GET")
	orElse(&r.Weight, 1)
	orElse(&r.Status, 200)
	switch {
	case len(r.Op) > maxName:
		return invalid("op has %d bytes: at most %d are possible", len(r.Op), maxName)
	case r.Method != "GET" && r.Method != "POST":
		return invalid("method is %q: it is GET or POST", r.Method)
	case !strings.HasPrefix(r.Path, "/") || strings.ContainsAny(r.Path, "\r\n "):
		return invalid("path is %q: it begins with / and has no line end or blank", r.Path)
	case strings.ContainsAny(r.Type, "\r\n"):
		return invalid("type is %q: no line end can be in it", r.Type)
	case !(r.Weight > 0) || r.Weight > 1e9:
		return invalid("weight is %v: it is more than 0 and at most 1e9", r.Weight)
	case r.Status < 100 || r.Status > 599:
		return invalid("status is %d: it is from 100 to 599", r.Status)
	case r.Bytes != nil && (*r.Bytes < 0 || *r.Bytes > maxBody):
		return invalid("bytes is %d: it is from 0 to %d", *r.Bytes, maxBody)
	}
	return nil
}

// load dials with a dialer of its own if that is nil.
func (w *Web) load(dial func(context.Context, string, string) (net.Conn, error)) Load {
	var weight float64
	for _, r := range w.Requests {
		weight += r.Weight
	}
	return &paced{w.Pace, func(_ int, draw *rand.Rand) worker {
		c := newClient(w.Address, w.Host)
		if dial != nil {
			c.dial = dial
		}
		return &browser{w, c, draw, weight}
	}}
}

// browser is one user of a web server.
type browser struct {
	*Web
	client *client
	draw   *rand.Rand
	weight float64 // of all requests
}

func (b *browser) close() { b.client.close() }

func (b *browser) do(ctx context.Context, intended time.Time, m *meter) error {
	r := b.pick()
	started := time.Now()
	var body []byte
	if r.Method == "POST" {
		body = []byte(r.Body)
	}
	status, answer, err := b.client.get(ctx, r.Method, r.Path, r.Type, body)
	if err == nil {
		err = r.check(status, answer)
	}
	m.note(r.Op, intended, started, int64(len(answer)), err)
	if b.Fresh {
		b.client.close()
	}
	return err
}

func (b *browser) pick() *Request {
	at := b.draw.Float64() * b.weight
	for i := range b.Requests {
		if at -= b.Requests[i].Weight; at < 0 {
			return &b.Requests[i]
		}
	}
	return &b.Requests[len(b.Requests)-1]
}

// check is what tells a page from an error page that came with a 200.
func (r *Request) check(status int, answer []byte) error {
	switch {
	case status != r.Status:
		return fmt.Errorf("%s: status %d instead of %d", r.Path, status, r.Status)
	case r.Bytes != nil && len(answer) != *r.Bytes:
		return fmt.Errorf("%s: %d bytes instead of %d", r.Path, len(answer), *r.Bytes)
	case !bytes.Contains(answer, []byte(r.Contains)):
		return fmt.Errorf("%s: the page does not contain %q", r.Path, r.Contains)
	}
	return nil
}
