package remote_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/remote"
	"github.com/lodge-kvm/lodge/internal/remote/remotetest"
)

// opened gives a stream, the daemon's end of its connection and the call that
// opened it.
func opened(t *testing.T) (*remote.Stream, net.Conn, xdr.Header) {
	t.Helper()
	c, far := pair(t)
	type result struct {
		s   *remote.Stream
		err error
	}
	done := make(chan result, 1)
	go func() {
		s, err := c.OpenStream(t.Context(), xdr.ProcDomainOpenChannel, &xdr.DomainOpenChannelArgs{}, nil)
		done <- result{s, err}
	}()
	h, _ := receive(t, far)
	send(t, far, remotetest.Reply(t, h, func(int32, xdr.Message) (xdr.Message, error) { return nil, nil }, nil))
	r := <-done
	if r.err != nil {
		t.Fatal(r.err)
	}
	h.Type = xdr.TypeStream
	return r.s, far, h
}

func say(t *testing.T, far net.Conn, h xdr.Header, status xdr.Status, payload string) {
	t.Helper()
	h.Status = status
	packet, err := xdr.AppendRaw(nil, h, []byte(payload))
	if err != nil {
		t.Fatal(err)
	}
	send(t, far, packet)
}

func TestAStreamCarriesBytesBothWays(t *testing.T) {
	s, far, h := opened(t)
	go func() {
		say(t, far, h, xdr.StatusContinue, "hello ")
		say(t, far, h, xdr.StatusContinue, "world")
		say(t, far, h, xdr.StatusContinue, "")
	}()
	if text, err := io.ReadAll(s); err != nil || string(text) != "hello world" {
		t.Errorf("read %q, %v", text, err)
	}
	long := bytes.Repeat([]byte("x"), xdr.StreamData+10)
	go func() { _, _ = s.Write(long) }()
	got := 0
	for got < len(long) {
		back, payload := receive(t, far)
		if back.Type != xdr.TypeStream || back.Status != xdr.StatusContinue || back.Serial != h.Serial || len(payload) > xdr.StreamData {
			t.Fatalf("sent %+v with %d bytes", back, len(payload))
		}
		got += len(payload)
	}
	done := make(chan error, 1)
	go func() { done <- s.Finish(t.Context()) }()
	if back, payload := receive(t, far); back.Status != xdr.StatusOK || len(payload) != 0 {
		t.Errorf("finished by %+v", back)
	}
	say(t, far, h, xdr.StatusOK, "")
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestAStreamTellsTheDaemonsError(t *testing.T) {
	s, far, h := opened(t)
	text := "the disk is full"
	h.Status = xdr.StatusError
	packet, err := xdr.AppendPacket(nil, h, &xdr.NetError{Code: 38, Message: &text}, 0)
	if err != nil {
		t.Fatal(err)
	}
	go send(t, far, packet)
	if _, err := io.ReadAll(s); err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("read %v", err)
	}
	if _, err := s.Write([]byte("x")); err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("wrote %v", err)
	}
	if err := s.Finish(t.Context()); err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("finished %v", err)
	}
}

func TestCloseEndsARead(t *testing.T) {
	s, far, _ := opened(t)
	done := make(chan error, 1)
	go func() {
		_, err := io.ReadAll(s)
		done <- err
	}()
	go func() { _ = s.Close() }()
	if back, _ := receive(t, far); back.Status != xdr.StatusError {
		t.Errorf("aborted by %+v", back)
	}
	if err := <-done; !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("read %v", err)
	}
}

func TestAConnectionEndsItsStreams(t *testing.T) {
	s, far, _ := opened(t)
	far.Close()
	if _, err := io.ReadAll(s); err == nil || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("read %v", err)
	}
}
