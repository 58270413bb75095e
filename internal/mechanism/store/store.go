// Package store keeps what Lodge must not forget: one versioned record per
// object, in one bbolt file of the data directory.
//
// A Put or Delete that has returned nil is on disk. Those who come while others
// are written share the next transaction, so that a storm of definitions costs a
// few synchronisations and not one each. Only records belong here: no caches, no
// measurements, nothing that can be asked of QEMU or of the kernel.
//
// A disk that fails ends nothing (decision 18). The file is looked through before
// it is trusted. One that is damaged is put aside, never removed, and all records
// that are left in it go on in a new one. While it is open all records are in memory
// too, from where they are read: whatever becomes of the file then, they go on in a
// new one. While it cannot be written to, changes are refused with the reason, and
// each new change tries again.
package store

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Kind names a sort of record and the version of its present layout.
type Kind struct {
	Name string
	// Version of the layout that Put writes. Get and Each refuse a record with
	// a higher one, and Put and Delete leave it: an older daemon must not guess at
	// a newer one's data.
	Version int
	// Older brings a record from a layout to the next one. Without it an earlier
	// layout is read as the present one.
	Older func(version int, record json.RawMessage) (json.RawMessage, error)
}

// Store is an open store. Its methods may be called concurrently.
type Store struct {
	dir, path string
	lock      *os.File // the data directory, held against other daemons
	log       *slog.Logger

	now   atomic.Pointer[opened]
	whole atomic.Bool  // the file was when it was looked through at the start
	size  atomic.Int64 // how much of the open file counts

	memory sync.RWMutex
	known  contents // all records: of the open file, or what could be read of one that cannot be opened

	// What follows is of the goroutine that commits, or of Open and Close.
	ours        bool // known was acknowledged, or in the open file: it counts, whatever is in a file
	serial      uint64
	doubt       map[id]bool // what a transaction that failed may have changed
	transaction int         // the last one of the open file
	length      int64       // of the open file after that
	torn        bool        // the open file was spoilt: bbolt may hang when it is asked again
	tried       time.Time   // when the file was last tried to be opened
	failed      error       // why that, or the last transaction, failed; nil: it did not

	trouble atomic.Pointer[error] // failed, for others

	mu      sync.Mutex
	waiting []*change // for the next transaction; as many as there are callers
	writing bool      // a goroutine commits, and takes those who wait next
	closed  bool      // nothing is written any more: the file may be another daemon's by then
	idle    sync.Cond // nothing is being written
}

// opened is the open file; both are nil where there is none.
type opened struct {
	db   *bbolt.DB
	file *os.File
}

// change is what one caller wants written.
type change struct {
	kind   Kind
	key    string
	body   []byte // JSON
	remove bool
	done   chan error // holds one
}

// Path is the store's file in a data directory.
func Path(dir string) string { return filepath.Join(dir, "lodge.db") }

// Put writes a record, replacing the one with the same key.
func (s *Store) Put(k Kind, key string, record any) error {
	var value bytes.Buffer
	e := json.NewEncoder(&value)
	e.SetEscapeHTML(false) // most of it is XML
	if err := e.Encode(record); err != nil {
		return fmt.Errorf("cannot encode %s %q: %w", k.Name, key, err)
	}
	return wrap(s.write(&change{kind: k, key: key, body: bytes.Clone(value.Bytes())}), "cannot store %s %q", k.Name, key)
}

// Delete removes a record; one that is not there is no error.
func (s *Store) Delete(k Kind, key string) error {
	return wrap(s.write(&change{kind: k, key: key, remove: true}), "cannot delete %s %q", k.Name, key)
}

// wrap names what failed, and keeps the kind of failure.
func wrap(err error, format string, args ...any) error {
	kind := fault.Failed
	if fault.Is(err, fault.NoCapacity) || fault.Is(err, fault.Unsupported) {
		kind = fault.Of(err)
	}
	return fault.Wrap(err, kind, fault.Store, format, args...)
}

// Health is why changes are refused at present; nil: they are taken.
func (s *Store) Health() error {
	if err := s.trouble.Load(); err != nil {
		return *err
	}
	return nil
}

// Aside gives the damaged files that were put aside in the data directory. While
// there are any, what has no record may be what a lost record was of.
func (s *Store) Aside() []string {
	names, err := filepath.Glob(s.path + asideMark + "*")
	if err != nil {
		return nil // only for a pattern that is wrong
	}
	return names
}

// Sound reports that what has no record here is not known of at all: nothing was
// lost, and everything could be read. Of a file that was made just now nobody can tell.
func (s *Store) Sound() bool { return s.whole.Load() && len(s.Aside()) == 0 }

// Settle says that what a file that was made just now lacks was looked for elsewhere: to the
// next daemon it is sound.
func (s *Store) Settle() error {
	if s.Sound() {
		return nil
	}
	return s.Delete(formatKind, unsettled.key)
}

// write has one thing written, and returns when it is on disk. Nobody waits for
// company: who comes while others are written is in the next transaction.
func (s *Store) write(c *change) error {
	c.done = make(chan error, 1)
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return fault.New(fault.Failed, fault.Store, "the store is closed: this daemon ends")
	}
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
		if s.writing = len(all) > 0; !s.writing {
			s.idle.Broadcast()
		}
		s.mu.Unlock()
		if len(all) == 0 {
			return
		}
		s.transact(all)
	}
}

// transact writes changes in one transaction. One that the store refuses, because
// of its key or its size, changes nothing and keeps no other from being written.
// Where the file turns out to be bad it is opened anew, once.
func (s *Store) transact(all []*change) {
	failpoint.Reach("store.commit")
	refused := make([]error, len(all))
	err := s.reopened()
	if err == nil {
		var again bool
		if again, err = s.try(all, refused); again {
			if err = s.attach(); err == nil {
				_, err = s.try(all, refused)
			}
		}
	}
	s.say(err)
	failpoint.Reach("store.committed")
	for i, c := range all {
		c.done <- cmp.Or(refused[i], err)
	}
}

// try is a transaction. Again says that the file has to be opened anew.
func (s *Store) try(all []*change, refused []error) (again bool, err error) {
	db := s.now.Load().db
	s.serial++
	panicked, err := guarded(func() error {
		return db.Update(func(tx *bbolt.Tx) error {
			for i, c := range all {
				refused[i] = s.apply(tx, c)
			}
			return nil
		})
	})
	if err == nil {
		s.learn(all, refused)
		s.note()
		return false, nil
	}
	if !panicked && harmless(err) {
		return false, s.explain(err) // where there is no room the present state is as it was
	}
	for _, c := range all {
		s.doubt[id{c.kind.Name, c.key}] = true
	}
	s.detach(panicked)
	return true, s.explain(err)
}

// learn keeps in memory what was written.
func (s *Store) learn(all []*change, refused []error) {
	s.memory.Lock()
	defer s.memory.Unlock()
	for i, c := range all {
		name := id{c.kind.Name, c.key}
		if c.remove && refused[i] == nil {
			delete(s.known, name)
		} else if refused[i] == nil {
			s.known[name] = sealed{kind: name.kind, key: name.key, version: c.kind.Version, serial: s.serial, body: c.body}
		}
	}
}

// apply makes one change.
func (s *Store) apply(tx *bbolt.Tx, c *change) error {
	b, err := tx.Bucket([]byte(c.kind.Name)), error(nil)
	if b == nil && c.remove {
		return nil
	}
	if b == nil {
		if b, err = tx.CreateBucketIfNotExists([]byte(c.kind.Name)); err != nil {
			return err
		}
	}
	old := b.Get([]byte(c.key))
	if old != nil {
		if r, err := unsealAs(c.kind.Name, c.key, old); err == nil {
			if err := c.kind.admit(c.key, r.version); err != nil {
				return err
			}
		}
	}
	if c.remove {
		return b.Delete([]byte(c.key))
	}
	return b.Put([]byte(c.key), seal(c.kind.Name, c.key, c.kind.Version, s.serial, c.body))
}

// say keeps why changes are refused, and logs when that begins and ends.
func (s *Store) say(err error) {
	was := s.failed
	s.failed = err
	s.trouble.Store(&err)
	switch {
	case err != nil && (was == nil || was.Error() != err.Error()):
		s.log.Error("changes cannot be kept and are refused; guests run on", "error", err)
	case err == nil && was != nil:
		s.log.Info("changes are kept again", "store", s.path)
	}
}

// Get reads a record into the value that into points to.
func (s *Store) Get(k Kind, key string, into any) error {
	s.memory.RLock()
	value := s.known.sealed(id{k.Name, key})
	s.memory.RUnlock()
	if value == nil {
		return fault.New(fault.NotFound, fault.Store, "no %s %q in the store", k.Name, key)
	}
	return k.decode(key, value, into)
}

// Each visits every record of a kind in the order of keys. The visitor decodes
// what it wants and ends the walk by returning an error, which Each returns as it
// is. Records that are written or removed meanwhile may be seen or not.
func (s *Store) Each(k Kind, visit func(key string, decode func(into any) error) error) error {
	some := contents{}
	s.memory.RLock()
	for name, r := range s.known {
		if name.kind == k.Name {
			some[name] = r
		}
	}
	s.memory.RUnlock()
	for _, name := range some.sorted() {
		if err := visit(name.key, func(into any) error { return k.decode(name.key, some.sealed(name), into) }); err != nil {
			return err
		}
	}
	return nil
}

// sealed gives a record as it lies in a file; nil: there is none.
func (c contents) sealed(name id) []byte {
	r, there := c[name]
	if !there || r.damaged != nil {
		return r.damaged
	}
	return seal(name.kind, name.key, r.version, r.serial, r.body)
}

// Close waits for writers and closes the file. What is put after that is refused. The file is
// looked through once more: what has become of it since, only this daemon can mend.
func (s *Store) Close() error {
	s.mu.Lock()
	again := s.closed
	for s.closed = true; s.writing; {
		s.idle.Wait()
	}
	s.mu.Unlock()
	look := s.ours && !again
	if look {
		err := s.reopened()
		look = err == nil
		s.say(err)
	}
	var err error
	if db := s.now.Load().db; db != nil && !s.torn {
		if err = db.Close(); errors.Is(err, berrors.ErrDatabaseNotOpen) {
			err = nil
		}
	}
	if look {
		_, failed := s.admit()
		s.say(s.explain(failed))
	}
	return errors.Join(err, s.lock.Close())
}
