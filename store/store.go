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
// that are left in it go on in a new one. While it cannot be written to, reads are
// served from what could be read, changes are refused with the reason, and each
// new change tries again.
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
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/lodge-kvm/lodge/failpoint"
	"github.com/lodge-kvm/lodge/fault"
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

	now     atomic.Pointer[view]
	suspect atomic.Bool // a reader met a page that is bad
	whole   atomic.Bool // the file was when it was last looked through

	// What follows is of the goroutine that commits, or of Open.
	serial uint64
	undo   map[id][]byte // what a transaction that failed may have changed
	tried  time.Time     // when the file was last tried to be opened
	failed error         // why that, or the last transaction, failed; nil: it did not

	trouble atomic.Pointer[error] // failed, for others

	mu      sync.Mutex
	waiting []*change // for the next transaction; as many as there are callers
	writing bool      // a goroutine commits, and takes those who wait next
	closed  bool      // nothing is written any more: the file may be another daemon's by then
	idle    sync.Cond // nothing is being written
}

// view is where records are read: the open file, or without one what could be
// read of it.
type view struct {
	db   *bbolt.DB
	file *os.File
	kept contents
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
	return wrap(s.write(&change{kind: k, key: key, body: value.Bytes()}), "cannot store %s %q", k.Name, key)
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
	before := map[id][]byte{}
	s.serial++
	panicked, err := guarded(func() error {
		return db.Update(func(tx *bbolt.Tx) error {
			for i, c := range all {
				refused[i] = s.apply(tx, c, before)
			}
			return nil
		})
	})
	if err == nil || !panicked && harmless(err) {
		return false, s.explain(err) // where there is no room the present state is as it was
	}
	for name, value := range before {
		if _, known := s.undo[name]; !known {
			s.undo[name] = value
		}
	}
	s.detach(panicked)
	return true, s.explain(err)
}

// apply makes one change, and notes what was there before.
func (s *Store) apply(tx *bbolt.Tx, c *change, before map[id][]byte) error {
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
	name := id{c.kind.Name, c.key}
	if _, known := before[name]; !known { // nil: there was none
		before[name] = slices.Clone(old)
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
	var value []byte
	v := s.now.Load()
	if v.db != nil {
		panicked, err := guarded(func() error {
			return v.db.View(func(tx *bbolt.Tx) error {
				if b := tx.Bucket([]byte(k.Name)); b != nil {
					value = slices.Clone(b.Get([]byte(key)))
				}
				return nil
			})
		})
		if err != nil {
			v = s.without(panicked)
		}
	}
	if v.db == nil {
		value = v.kept.sealed(id{k.Name, key})
	}
	if value == nil {
		return fault.New(fault.NotFound, fault.Store, "no %s %q in the store", k.Name, key)
	}
	return k.decode(key, value, into)
}

// eachStep is how many records are read at once.
const eachStep = 256

// Each visits every record of a kind in the order of keys. The visitor decodes
// what it wants and ends the walk by returning an error, which Each returns as it
// is. Records that are written or removed meanwhile may be seen or not.
func (s *Store) Each(k Kind, visit func(key string, decode func(into any) error) error) error {
	type entry struct {
		key   string
		value []byte
	}
	var last []byte
	for more := true; more; {
		var some []entry
		v := s.now.Load()
		if v.db != nil {
			panicked, err := guarded(func() error {
				return v.db.View(func(tx *bbolt.Tx) error {
					b := tx.Bucket([]byte(k.Name))
					if b == nil {
						return nil
					}
					c := b.Cursor()
					key, value := c.Seek(last)
					if last != nil && bytes.Equal(key, last) {
						key, value = c.Next()
					}
					for ; key != nil && len(some) < eachStep; key, value = c.Next() {
						some = append(some, entry{string(key), slices.Clone(value)})
					}
					return nil
				})
			})
			if err != nil {
				some, v = nil, s.without(panicked)
			}
		}
		more = v.db != nil && len(some) == eachStep
		if v.db == nil {
			for _, name := range v.kept.sorted() {
				if name.kind == k.Name && (last == nil || name.key > string(last)) {
					some = append(some, entry{name.key, v.kept.sealed(name)})
				}
			}
		}
		for _, e := range some {
			last = []byte(e.key)
			if err := visit(e.key, func(into any) error { return k.decode(e.key, e.value, into) }); err != nil {
				return err
			}
		}
	}
	return nil
}

// without gives what can be read of the file in another way, after a reader met a
// page that is bad. The next change opens the file anew.
func (s *Store) without(panicked bool) *view {
	if panicked {
		s.suspect.Store(true)
	}
	all, _, err := gather(s.path)
	if err != nil {
		s.log.Error("the store cannot be read", "error", err)
	}
	return &view{kept: all}
}

// sealed gives a record as it lies in a file; nil: there is none.
func (c contents) sealed(name id) []byte {
	r, there := c[name]
	if !there {
		return nil
	}
	return seal(name.kind, name.key, r.version, r.serial, r.body)
}

// Close waits for writers and closes the file. What is put after that is refused.
func (s *Store) Close() error {
	s.mu.Lock()
	for s.closed = true; s.writing; {
		s.idle.Wait()
	}
	s.mu.Unlock()
	var err error
	if db := s.now.Load().db; db != nil {
		if err = db.Close(); errors.Is(err, berrors.ErrDatabaseNotOpen) {
			err = nil
		}
	}
	return errors.Join(err, s.lock.Close())
}
