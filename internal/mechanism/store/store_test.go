package store

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

type guest struct{ Name string }

var guests = Kind{Name: "guest", Version: 2}

func TestOpen_KeepsRecords(t *testing.T) {
	dir := t.TempDir()
	s := reopen(t, dir)
	var writers sync.WaitGroup
	for i := range 64 {
		writers.Go(func() {
			if err := s.Put(guests, fmt.Sprintf("id-%02d", i), guest{Name: fmt.Sprint(i)}); err != nil {
				t.Error(err)
			}
		})
	}
	writers.Wait()
	if err := s.Delete(guests, "id-07"); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	s = reopen(t, dir)
	defer closeStore(t, s)
	var keys []string
	err := s.Each(guests, func(key string, decode func(any) error) error {
		var g guest
		keys = append(keys, key)
		if err := decode(&g); err != nil || "id-"+fmt.Sprintf("%02s", g.Name) != key {
			return fmt.Errorf("record %s holds %+v (%w)", key, g, err)
		}
		return nil
	})
	if err != nil || len(keys) != 63 {
		t.Fatalf("found %d records, want 63 (%v)", len(keys), err)
	}
	var g guest
	if err := s.Get(guests, "id-07", &g); !fault.Is(err, fault.NotFound) {
		t.Fatalf("a deleted record gave %v", err)
	}
}

func TestPut_Closed(t *testing.T) {
	dir := t.TempDir()
	closed := reopen(t, dir)
	closeStore(t, closed)
	if err := closed.Put(guests, "a", guest{Name: "of a daemon that ends"}); err == nil {
		t.Fatal("a store that is closed, and may be another daemon's, took a record")
	}
	s := reopen(t, dir)
	defer closeStore(t, s)
	var g guest
	if err := s.Get(guests, "a", &g); !fault.Is(err, fault.NotFound) {
		t.Fatalf("what was refused is there: %+v (%v)", g, err)
	}
}

func TestPut_OneRefusedOfMany(t *testing.T) {
	s := reopen(t, t.TempDir())
	defer closeStore(t, s)
	var writers sync.WaitGroup
	for i := range 64 {
		writers.Go(func() {
			key := fmt.Sprint(i)
			if i%8 == 0 {
				key = "" // no store takes that
			}
			if err := s.Put(guests, key, guest{Name: key}); (err != nil) != (key == "") {
				t.Errorf("record %q: %v", key, err)
			}
		})
	}
	writers.Wait()
	for i := range 64 {
		if err := s.Get(guests, fmt.Sprint(i), new(guest)); (err != nil) != (i%8 == 0) {
			t.Errorf("record %d: %v", i, err)
		}
	}
}

// Promise: S5
func TestGet_NewerRecord(t *testing.T) {
	s := reopen(t, t.TempDir())
	defer closeStore(t, s)
	if err := s.Put(Kind{Name: "guest", Version: 3}, "a", guest{Name: "a"}); err != nil {
		t.Fatal(err)
	}
	var g guest
	if err := s.Get(guests, "a", &g); !fault.Is(err, fault.Unsupported) {
		t.Fatalf("a record from the future gave %v", err)
	}
}

func TestEach_VisitorFails(t *testing.T) {
	s := reopen(t, t.TempDir())
	defer closeStore(t, s)
	for _, k := range []string{"a", "b"} {
		if err := s.Put(guests, k, guest{}); err != nil {
			t.Fatal(err)
		}
	}
	enough, visited := errors.New("enough"), 0
	err := s.Each(guests, func(string, func(any) error) error { visited++; return enough })
	if !errors.Is(err, enough) || visited != 1 {
		t.Fatalf("visited %d, error %v", visited, err)
	}
}

func reopen(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func closeStore(t *testing.T, s *Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// Other users may write to the directory, or own it.
// Promise: X10
func TestOpen_DirectoryWritableByOthers(t *testing.T) {
	open := t.TempDir()
	if err := os.Chmod(open, 0o777|os.ModeSticky); err != nil { //nolint:gosec // the test needs a directory that others may write to
		t.Fatal(err)
	}
	if _, err := Open(open); !fault.Is(err, fault.Denied) {
		t.Errorf("a directory that others may write: %v", err)
	}
	if os.Getuid() != 0 {
		t.Skip("only root can give a directory away")
	}
	theirs := t.TempDir()
	if err := os.Chown(theirs, 4242, 4242); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(theirs); !fault.Is(err, fault.Denied) {
		t.Errorf("a directory of somebody else: %v", err)
	}
}

// A change that failed for its caller may be in the file. It is gone after the file was reopened.
// Promise: S15
func TestPut_FailedChangeIsUndone(t *testing.T) {
	dir := t.TempDir()
	s := reopen(t, dir)
	must(t, s.Put(guests, "before", guest{Name: "before"}))
	must(t, s.current.Load().db.Update(func(tx *bbolt.Tx) error {
		for range 2 {
			must(t, s.applyChange(tx, &change{kind: guests, key: "new", body: []byte("{}")}))
		}
		return s.applyChange(tx, &change{kind: guests, key: "before", remove: true})
	}))
	s.uncertain[recordID{guests.Name, "new"}], s.uncertain[recordID{guests.Name, "before"}] = true, true
	s.closeFile(false)
	must(t, s.Put(guests, "after", guest{Name: "after"}))
	if aside := s.DamagedFiles(); len(aside) > 0 {
		t.Errorf("a file in which nothing is damaged was put aside: %v", aside)
	}
	must(t, s.Close())
	checkKept(t, dir, "before", "after")
}
