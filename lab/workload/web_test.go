package workload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/histogram"
)

// pipes is a listener whose connections are in memory.
type pipes struct {
	conns chan net.Conn
	dials atomic.Int64
}

func (p *pipes) Accept() (net.Conn, error) {
	conn, open := <-p.conns
	if !open {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (p *pipes) Close() error {
	close(p.conns)
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{} }

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	p.dials.Add(1)
	near, far := net.Pipe()
	p.conns <- far
	return near, nil
}

// site serves h in memory while load runs, in a time of its own.
func site(t *testing.T, w *Web, h http.HandlerFunc, check func(t *testing.T, total Total, dials int64)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		if err := w.settle(); err != nil {
			t.Fatal(err)
		}
		listener := &pipes{conns: make(chan net.Conn)}
		server := &http.Server{Handler: h}
		ended := make(chan error)
		go func() { ended <- server.Serve(listener) }()
		total := run(t, w.load(listener.dial))
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
		check(t, total, listener.dials.Load())
	})
}

func web(pace Pace, requests ...Request) *Web {
	return &Web{Pace: pace, Address: "10.0.0.1:80", Requests: requests}
}

// A server that stalls for ten seconds and is quick before and after: each arrival
// in the stall waited for its end.
// Promise: L2
func TestStalledWebServersShowInFull(t *testing.T) {
	pace := Pace{Mode: open, Arrivals: even, Rate: 2, Users: 64, Duration: Duration(30 * time.Second)}
	var begin time.Time
	var once sync.Once
	var served atomic.Int64
	want := histogram.New()
	for n := range 60 {
		at := time.Duration(n) * 500 * time.Millisecond
		if at >= 10*time.Second && at < 20*time.Second {
			histogram.Record(want, 20*time.Second-at)
		} else {
			histogram.Record(want, 0)
		}
	}
	w := web(pace, Request{Path: "/", Contains: "good"})
	site(t, w, func(rw http.ResponseWriter, _ *http.Request) {
		served.Add(1)
		once.Do(func() { begin = time.Now() }) // the first arrival is at the start
		if since := time.Since(begin); since >= 10*time.Second && since < 20*time.Second {
			<-time.After(20*time.Second - since)
		}
		_, _ = io.WriteString(rw, "good day")
	}, func(t *testing.T, total Total, _ int64) {
		got := total.Ops["web"]
		if got.Done != 60 || got.Errors != 0 || served.Load() != 60 || got.Bytes != 60*8 {
			t.Fatalf("done %d, errors %d (%s), served %d", got.Done, got.Errors, got.Example, served.Load())
		}
		if !got.Latency.Equals(want) {
			t.Errorf("p50 %d, p90 %d, longest %d µs instead of %d, %d, %d", got.Latency.ValueAtQuantile(50), got.Latency.ValueAtQuantile(90), got.Latency.Max(),
				want.ValueAtQuantile(50), want.ValueAtQuantile(90), want.Max())
		}
	})
}

// Promise: L3
func TestWrongPagesAreErrorsAndNotThroughput(t *testing.T) {
	size := 5
	pace := Pace{Mode: open, Arrivals: even, Rate: 100, Duration: Duration(time.Second)}
	for name, c := range map[string]struct {
		request Request
		answer  http.HandlerFunc
		want    string
	}{
		"502":        {Request{Path: "/"}, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }, "status 502"},
		"error page": {Request{Path: "/", Contains: "price"}, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "Fatal error") }, "does not contain"},
		"short":      {Request{Path: "/", Bytes: &size}, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "1234") }, "4 bytes instead of 5"},
		"cut off": {Request{Path: "/"}, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "1234")
		}, "breaks off"},
		"endless": {Request{Path: "/"}, func(w http.ResponseWriter, _ *http.Request) {
			block := strings.Repeat("x", 1<<20)
			for {
				if _, err := io.WriteString(w, block); err != nil {
					return
				}
			}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := pace
			arrivals := int64(100)
			if name == "endless" {
				p.Rate, arrivals = 1, 1
			}
			site(t, web(p, c.request), c.answer, func(t *testing.T, total Total, _ int64) {
				got := total.Ops["web"]
				if got.Done != 0 || got.Errors != arrivals || !strings.Contains(got.Example, c.want) || got.Latency != nil || got.Bytes != 0 {
					t.Errorf("%+v", got)
				}
			})
		})
	}
}

func TestConnectionsAreKeptAndNotTrustedForLong(t *testing.T) {
	hello := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }
	quick := Pace{Mode: open, Arrivals: even, Rate: 10, Users: 1, Duration: Duration(10 * time.Second)}
	rare := Pace{Mode: open, Arrivals: even, Rate: 0.2, Users: 1, Duration: Duration(50 * time.Second)}
	fresh := web(quick, Request{Path: "/"})
	fresh.Fresh = true
	for _, c := range []struct {
		web         *Web
		done, dials int64
	}{{web(quick, Request{Path: "/"}), 100, 1}, {fresh, 100, 100}, {web(rare, Request{Path: "/"}), 10, 10}} {
		site(t, c.web, hello, func(t *testing.T, total Total, dials int64) {
			if got := total.Ops["web"]; got.Done != c.done || dials != c.dials {
				t.Errorf("%d done over %d connections instead of %d over %d (%s)", got.Done, dials, c.done, c.dials, got.Example)
			}
		})
	}
}

func TestRequestsAreDrawnByWeight(t *testing.T) {
	pace := Pace{Mode: open, Arrivals: even, Rate: 1000, Duration: Duration(4 * time.Second)}
	site(t, web(pace, Request{Op: "page", Path: "/page", Weight: 3}, Request{Op: "order", Method: "POST", Path: "/order", Body: "n=1", Type: "application/x-www-form-urlencoded", Contains: "n is 1"}),
		func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "n is %s", r.PostFormValue("n")) },
		func(t *testing.T, total Total, _ int64) {
			page, order := total.Ops["page"], total.Ops["order"]
			if page.Done+order.Done != 4000 || page.Done < 2850 || page.Done > 3150 {
				t.Errorf("%d pages, %d orders (%s)", page.Done, order.Done, order.Example)
			}
		})
}

func TestConfigurationsAreRefusedByField(t *testing.T) {
	for config, want := range map[string]string{
		`{"duration":"1s","address":"a:80","requests":[{"path":"/"}],"speed":1}`:                                     "speed",
		`{"address":"a:80","requests":[{"path":"/"}]}`:                                                               "duration",
		`{"duration":"9000h","address":"a:80","requests":[{"path":"/"}]}`:                                            "duration",
		`{"duration":"1s","address":"a","requests":[{"path":"/"}]}`:                                                  "address",
		`{"duration":"1s","address":"a:80","requests":[]}`:                                                           "requests",
		`{"duration":"1s","address":"a:80","requests":[{"path":"x"}]}`:                                               "path",
		`{"duration":"1s","address":"a:80","requests":[{"path":"/ HTTP/1.1\r\nEvil: 1"}]}`:                           "path",
		`{"duration":"1s","address":"a:80","mode":"open","requests":[{"path":"/"}]}`:                                 "rate",
		`{"duration":"1s","address":"a:80","mode":"open","rate":1,"think":"1s","requests":[{"path":"/"}]}`:           "think",
		`{"duration":"1s","address":"a:80","rate":1,"requests":[{"path":"/"}]}`:                                      "rate",
		`{"duration":"1s","address":"a:80","mode":"half","requests":[{"path":"/"}]}`:                                 "mode",
		`{"duration":"1s","address":"a:80","users":1000000,"requests":[{"path":"/"}]}`:                               "users",
		`{"duration":"1s","address":"a:80","requests":[{"path":"/","method":"DELETE"}]}`:                             "method",
		`{"duration":"1s","address":"a:80","requests":[{"path":"/"}]} {}`:                                            "follows",
		`{"duration":"1s","address":"a:80","mode":"open","rate":1,"arrivals":"all","requests":[{"path":"/"}]}`:       "arrivals",
		`{"duration":"1s","address":"a:80","timeout":"-1s","requests":[{"path":"/"}]}`:                               "timeout",
		`{"duration":"1s","address":"a:80","requests":[{"path":"/","bytes":-1}]}`:                                    "bytes",
		`{"duration":"1s","address":"a:80","requests":[{"path":"/","op":"` + strings.Repeat("x", maxName+1) + `"}]}`: "op",
	} {
		if _, err := New("web", json.RawMessage(config)); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", config, err)
		}
	}
	if _, err := New("webb", nil); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "web") {
		t.Errorf("a load that there is not: %v", err)
	}
}
