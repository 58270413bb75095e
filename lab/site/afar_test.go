package site

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// says answers everybody who connects by a word, and gives its address.
func says(t *testing.T, word string) string {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	t.Cleanup(func() { listener.Close(); <-ended })
	go func() {
		defer close(ended)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, word)
			conn.Close()
		}
	}()
	return listener.Addr().String()
}

// Another machine that has a guest's address here is not taken for the guest.
// Promise: L73
func TestOnlyTheGuestItselfIsReached(t *testing.T) {
	if err := knock(t.Context(), says(t, "the word"), "the word"); err != nil {
		t.Error(err)
	}
	enough := errors.New("enough")
	for _, word := range []string{"another", "the Word", ""} {
		ctx, stop := context.WithTimeoutCause(t.Context(), 3*knockPause, enough)
		if err := knock(ctx, says(t, word), "the word"); !errors.Is(err, enough) {
			t.Errorf("who says %q is the guest: %v", word, err)
		}
		stop()
	}
	ctx, stop := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, enough)
	defer stop()
	if err := knock(ctx, "127.0.0.1:1", "the word"); !errors.Is(err, enough) {
		t.Errorf("nobody is the guest: %v", err)
	}
}
