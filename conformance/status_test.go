package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"
)

// status is the daemon's report about its resources.
type status struct {
	Goroutines, Threads, Descriptors, LibvirtClients int
	Heap, Resident                                   int64 `json:",string"` // bytes
}

// status queries the daemon over Lodge's own API, after a garbage collection.
func (d *daemon) status(t *testing.T) (s status) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(d.run, "lodge.sock"))
	}}}
	ask, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://lodge/lodge.v1.Lodge/Status", strings.NewReader(`{"collect":true}`))
	if err != nil {
		t.Fatal(err)
	}
	ask.Header.Set("Content-Type", "application/json")
	answer, err := client.Do(ask)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", answer.Status, text, err)
	}
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return s
}

// Allowed growth after a storm: the runtime keeps threads for the next burst, and caches keep memory.
const (
	moreThreads = 16
	moreHeap    = 4 << 20
)

// grownSince lists the resources that the daemon has not released since before.
func (s status) grownSince(before status) (what []string) {
	for _, g := range []struct {
		name           string
		before, now, m int64
	}{
		{"goroutines", int64(before.Goroutines), int64(s.Goroutines), 0},
		{"threads", int64(before.Threads), int64(s.Threads), moreThreads},
		{"descriptors", int64(before.Descriptors), int64(s.Descriptors), 0},
		{"bytes of heap", before.Heap, s.Heap, before.Heap/4 + moreHeap},
	} {
		if g.now > g.before+g.m {
			what = append(what, fmt.Sprintf("%d %s, and %d before", g.now, g.name, g.before))
		}
	}
	return what
}

// waitForRelease waits until the daemon uses no more resources than before.
func (d *daemon) waitForRelease(t *testing.T, before status) {
	t.Helper()
	var left []string
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); pauseFor(t, 100*time.Millisecond) {
		if left = d.status(t).grownSince(before); len(left) == 0 {
			return
		}
	}
	t.Errorf("the daemon has %s", strings.Join(left, "; "))
}

// records counts the records in an ended daemon's store, by kind.
func (d *daemon) records(t *testing.T) map[string]int {
	t.Helper()
	db, err := bbolt.Open(filepath.Join(d.data, "lodge.db"), 0o600, &bbolt.Options{ReadOnly: true, Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close() //nolint:errcheck // opened to read
	kinds := map[string]int{}
	err = db.View(func(tx *bbolt.Tx) error {
		return tx.ForEach(func(name []byte, b *bbolt.Bucket) error {
			kinds[string(name)] = b.Stats().KeyN
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return kinds
}
