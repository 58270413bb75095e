// Package store keeps what Lodge must not forget: one versioned record per
// object, in one bbolt file of the data directory.
//
// A Put or Delete that has returned nil is on disk. Those who come while others
// are written share the next transaction, so that a storm of definitions costs a
// few synchronisations and not one each. Only records belong here: no caches, no
// measurements, nothing that can be asked of QEMU or of the kernel.
package store

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/lodge-kvm/lodge/failpoint"
	"github.com/lodge-kvm/lodge/fault"
)

// lockWait is how long Open waits for another daemon on the same data
// directory to let go. A daemon that is being replaced needs a moment to end.
const lockWait = 5 * time.Second

// Kind names a sort of record and the version of its present layout.
type Kind struct {
	Name string
	// Version of the layout that Put writes. Get and Each refuse a record with
	// a higher one: an older daemon must not guess at a newer one's data.
	Version int
}

// Store is an open store. Its methods may be called concurrently.
type Store struct {
	db *bbolt.DB

	mu      sync.Mutex
	waiting []*change // for the next transaction; as many as there are callers
	writing bool      // a goroutine commits, and takes those who wait next
}

// change is what one caller wants written.
type change struct {
	do   func(tx *bbolt.Tx) error
	done chan error // holds one
}

// envelope is a record as it lies in the file.
type envelope[Record any] struct {
	Version int    `json:"version"`
	Record  Record `json:"record"`
}

// Open opens the store of a data directory, making it when it is not there. A
// directory that another daemon holds is Busy.
func Open(dir string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Store, "cannot make data directory %s", dir)
	}
	path := filepath.Join(dir, "lodge.db")
	// The list of free pages is found again by reading the file, which is small,
	// rather than written with every record.
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockWait, FreelistType: bbolt.FreelistMapType, NoFreelistSync: true})
	if errors.Is(err, berrors.ErrTimeout) {
		return nil, fault.New(fault.Busy, fault.Store, "cannot open %s: another lodged uses this data directory; stop it or give another --data", path)
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Store, "cannot open %s", path)
	}
	return &Store{db: db}, nil
}

// Close waits for writers and closes the file.
func (s *Store) Close() error { return s.db.Close() }

// Put writes a record, replacing the one with the same key.
func (s *Store) Put(k Kind, key string, record any) error {
	var value bytes.Buffer
	e := json.NewEncoder(&value)
	e.SetEscapeHTML(false) // most of it is XML
	if err := e.Encode(envelope[any]{k.Version, record}); err != nil {
		return fmt.Errorf("cannot encode %s %q: %w", k.Name, key, err)
	}
	err := s.write(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists([]byte(k.Name))
		if err != nil {
			return err
		}
		return b.Put([]byte(key), value.Bytes())
	})
	return fault.Wrap(err, fault.Failed, fault.Store, "cannot store %s %q", k.Name, key)
}

// Delete removes a record; one that is not there is no error.
func (s *Store) Delete(k Kind, key string) error {
	err := s.write(func(tx *bbolt.Tx) error {
		b := tx.Bucket([]byte(k.Name))
		if b == nil {
			return nil
		}
		return b.Delete([]byte(key))
	})
	return fault.Wrap(err, fault.Failed, fault.Store, "cannot delete %s %q", k.Name, key)
}

// write has one thing written, and returns when it is on disk. Nobody waits for
// company: who comes while others are written is in the next transaction.
func (s *Store) write(do func(tx *bbolt.Tx) error) error {
	c := &change{do: do, done: make(chan error, 1)}
	s.mu.Lock()
	s.waiting = append(s.waiting, c)
	if !s.writing {
		s.writing = true
		go s.commit() // ends when nobody waits
	}
	s.mu.Unlock()
	return <-c.done
}

// commit writes what waits until nothing does.
func (s *Store) commit() {
	for {
		s.mu.Lock()
		all := s.waiting
		s.waiting = nil
		s.writing = len(all) > 0
		s.mu.Unlock()
		if len(all) == 0 {
			return
		}
		s.transact(all)
	}
}

// transact writes changes in one transaction. One that the store refuses, because
// of its key or its size, changes nothing and keeps no other from being written.
func (s *Store) transact(all []*change) {
	failpoint.Reach("store.commit")
	refused := make([]error, len(all))
	err := s.db.Update(func(tx *bbolt.Tx) error {
		for i, c := range all {
			refused[i] = c.do(tx)
		}
		return nil
	})
	failpoint.Reach("store.committed")
	for i, c := range all {
		c.done <- cmp.Or(refused[i], err)
	}
}

// Get reads a record into the value that into points to.
func (s *Store) Get(k Kind, key string, into any) error {
	return s.db.View(func(tx *bbolt.Tx) error {
		var value []byte
		if b := tx.Bucket([]byte(k.Name)); b != nil {
			value = b.Get([]byte(key))
		}
		if value == nil {
			return fault.New(fault.NotFound, fault.Store, "no %s %q in the store", k.Name, key)
		}
		return decode(k, key, value, into)
	})
}

// Each visits every record of a kind in the order of keys, within one
// consistent view. The visitor decodes what it wants and ends the walk by
// returning an error, which Each returns as it is. It must not write.
func (s *Store) Each(k Kind, visit func(key string, decode func(into any) error) error) error {
	return s.db.View(func(tx *bbolt.Tx) error {
		b := tx.Bucket([]byte(k.Name))
		if b == nil {
			return nil
		}
		return b.ForEach(func(key, value []byte) error {
			return visit(string(key), func(into any) error { return decode(k, string(key), value, into) })
		})
	})
}

func decode(k Kind, key string, value []byte, into any) error {
	var e envelope[json.RawMessage]
	if err := json.Unmarshal(value, &e); err != nil {
		return fault.Wrap(err, fault.Failed, fault.Store, "cannot read %s %q: the record is damaged", k.Name, key)
	}
	if e.Version > k.Version {
		return fault.New(fault.Unsupported, fault.Store,
			"cannot read %s %q: it has layout %d and this lodged knows up to %d; run a newer lodged", k.Name, key, e.Version, k.Version)
	}
	if err := json.Unmarshal(e.Record, into); err != nil {
		return fault.Wrap(err, fault.Failed, fault.Store, "cannot read %s %q: the record is damaged", k.Name, key)
	}
	return nil
}
