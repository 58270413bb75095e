package line

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// guestSide writes a greeting that the host did not ask for, and then answers each request with answer's result.
func guestSide(conn net.Conn, answer func(Request) string) {
	greeting := `{"id":0,"facts":{"hostname":"early"}}` + "\n"
	in := bufio.NewScanner(conn)
	for in.Scan() {
		var q Request
		if json.Unmarshal(in.Bytes(), &q) == nil {
			fmt.Fprint(conn, greeting, answer(q))
			greeting = ""
		}
	}
}

func TestHost_GreetingIsNoAnswer(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	go guestSide(theirs, func(q Request) string {
		return fmt.Sprintf("{\"id\":%d,\"facts\":{\"hostname\":\"asked\"}}\n", q.ID)
	})
	h := New(ours)
	defer h.Close()
	facts, err := h.Ping(t.Context())
	if err != nil || facts.Hostname != "asked" {
		t.Fatalf("got %q, %v", facts.Hostname, err)
	}
}

func TestVirsh_RefusalsAreErrors(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	go guestSide(theirs, func(q Request) string { return fmt.Sprintf("{\"id\":%d,\"error\":\"no such word\"}\n", q.ID) })
	h := New(ours)
	defer h.Close()
	if _, err := h.Run(t.Context(), "true"); err == nil || !strings.Contains(err.Error(), "no such word") {
		t.Fatalf("got %v", err)
	}
}

func TestHost_SilentGuest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		go guestSide(theirs, func(q Request) string {
			if q.ID == 1 {
				return `{"id":1,"fac` // and never the rest
			}
			return fmt.Sprintf("ts\":{}}\n{\"id\":%d,\"facts\":{\"hostname\":\"late\"}}\n", q.ID)
		})
		h := New(ours)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := h.Ping(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a silent guest gives %v", err)
		}
		facts, err := h.Ping(t.Context())
		if err != nil || facts.Hostname != "late" {
			t.Errorf("the second ping gives %q, %v", facts.Hostname, err)
		}
		h.Close()
		theirs.Close()
	})
}

func TestLine_WithoutEnd(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	go func() {
		_, _ = bufio.NewReader(theirs).ReadString('\n')
		for {
			if _, err := theirs.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	}()
	h := New(ours)
	defer h.Close()
	if _, err := h.Ping(t.Context()); err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Fatalf("got %v", err)
	}
}
