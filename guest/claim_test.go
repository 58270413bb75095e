package guest

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/mount/mounttest"
	"github.com/lodge-kvm/lodge/store"
)

const claimedUUID = "c0ffee00-0000-4000-8000-0000000000a6"

func bareRegistry(t *testing.T) *Registry {
	t.Helper()
	records, err := store.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = records.Close() })
	r := newRegistry(Config{Store: records, Log: slog.New(slog.DiscardHandler), RunDir: t.TempDir()})
	t.Cleanup(func() { r.stop(nil); r.loops.Wait() })
	return r
}

func TestWhoeverAsksAGuestThatHasJustGoneIsGivenTheNext(t *testing.T) {
	r, asked := bareRegistry(t), 0
	var first *Guest
	g, err := r.claimed(t.Context(), "passing", claimedUUID, func(g *Guest) error {
		if asked++; asked == 1 {
			first = g
			if err := g.change(t.Context(), "", func() error { g.forget(); return nil }); err != nil {
				t.Fatal(err)
			}
		}
		return g.change(t.Context(), "", func() error { return nil })
	})
	if err != nil || asked != 2 || g == first {
		t.Errorf("asked %d times, it answers %v", asked, err)
	}
	if found, err := r.ByUUID(claimedUUID); err != nil || found != g {
		t.Errorf("it is not the one that is there: %v", err)
	}
}

// The files of a guest that was undefined go before the next one of its UUID can make its
// own in their place.
func TestTheNextGuestWaitsForTheFilesOfTheLast(t *testing.T) {
	r := bareRegistry(t)
	dead := filepath.Join(t.TempDir(), "dead")
	if err := os.Mkdir(dead, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := r.store.Put(removals, claimedUUID, goods{NVRAM: filepath.Join(dead, "vars")}); err != nil {
		t.Fatal(err)
	}
	release, visits := mounttest.Hang(t, dead), mounttest.Visits(t, dead)
	if err := r.finishRemovals(); err != nil {
		t.Fatal(err)
	}
	for late := time.After(time.Minute); visits() == 0; { // the removal has not come so far
		select {
		case <-late:
			t.Fatal("nobody removes the files of the last guest")
		case <-time.After(time.Millisecond):
		}
	}
	nothing := func(*Guest) error { return nil }
	hurried, stop := context.WithCancelCause(t.Context())
	stop(nil)
	if _, err := r.claimed(hurried, "next", claimedUUID, nothing); err == nil {
		t.Error("the next guest is there before the files of the last have gone")
	}
	release()
	if _, err := r.claimed(t.Context(), "next", claimedUUID, nothing); err != nil {
		t.Error(err)
	}
}
