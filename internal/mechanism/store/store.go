// Package store keeps the records that Lodge must not lose: one versioned record per
// object, in one bbolt file of the data directory.
//
// After Put or Delete has returned nil the change is on disk. Changes that arrive during
// a transaction share the next one, so a storm of definitions costs a
// few syncs instead of one each. Only records belong here: no caches, no
// measurements, nothing that QEMU or the kernel can be asked for.
//
// A failing disk does not end the daemon (decision 18). The file is checked before
// it is opened. A damaged file is put aside, never removed, and all readable records
// are written to a new one. While the file is open all records are also in memory,
// and reads use that copy. If the file is lost or damaged then, a new file gets all of
// them. While the file cannot be written, changes are refused with the reason, and
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

// Kind names a type of record and the version of its present layout.
type Kind struct {
	Name string
	// Version of the layout that Put writes. Get and Each refuse a record with
	// a higher one, and Put and Delete keep it: an older daemon must not guess the
	// meaning of newer data.
	Version int
	// Older upgrades a record from a layout to the next one. If it is nil an earlier
	// layout is read as the present one.
	Older func(version int, record json.RawMessage) (json.RawMessage, error)
}

// Store is an open store. Its methods may be called concurrently.
type Store struct {
	dir, path string
	lock      *os.File // the data directory, locked against other daemons
	log       *slog.Logger

	current   atomic.Pointer[opened]
	fileWhole atomic.Bool  // the file was whole when it was checked at the start
	usedSize  atomic.Int64 // how many bytes of the open file count

	memory sync.RWMutex
	known  contents // all records: of the open file, or the readable ones of a file that cannot be opened

	// Only the goroutine that commits, Open and Close use these fields.
	authoritative bool // known was acknowledged, or read from the open file: it counts, whatever a file holds
	serial        uint64
	uncertain     map[recordID]bool // records that a failed transaction may have changed
	transaction   int               // the last one of the open file
	fileSize      int64             // of the open file after that
	torn          bool              // another program changed the open file: bbolt may hang if it is called again
	lastTry       time.Time         // when opening was last tried
	lastError     error             // why that, or the last transaction, failed; nil: it succeeded

	trouble atomic.Pointer[error] // failed, for other goroutines

	mu      sync.Mutex
	waiting []*change // for the next transaction; one per waiting caller
	writing bool      // a goroutine commits, and takes waiting changes next
	closed  bool      // nothing is written any more: the file may belong to another daemon by then
	idle    sync.Cond // nothing is being written
}

// opened is the open file; both fields are nil if it is closed.
type opened struct {
	db   *bbolt.DB
	file *os.File
}

// change is one write that a caller waits for.
type change struct {
	kind   Kind
	key    string
	body   []byte // JSON
	remove bool
	done   chan error // capacity one
}

// Path is the store's file in a data directory.
func Path(dir string) string { return filepath.Join(dir, "lodge.db") }

// Put writes a record, and replaces the one with the same key.
func (s *Store) Put(k Kind, key string, record any) error {
	var value bytes.Buffer
	e := json.NewEncoder(&value)
	e.SetEscapeHTML(false) // most of it is XML
	if err := e.Encode(record); err != nil {
		return fmt.Errorf("cannot encode %s %q: %w", k.Name, key, err)
	}
	return wrap(s.write(&change{kind: k, key: key, body: bytes.Clone(value.Bytes())}), "cannot store %s %q", k.Name, key)
}

// Delete removes a record; a missing record is no error.
func (s *Store) Delete(k Kind, key string) error {
	return wrap(s.write(&change{kind: k, key: key, remove: true}), "cannot delete %s %q", k.Name, key)
}

// wrap names the failed action, and keeps the kind of failure.
func wrap(err error, format string, args ...any) error {
	kind := fault.Failed
	if fault.Is(err, fault.NoCapacity) || fault.Is(err, fault.Unsupported) {
		kind = fault.Of(err)
	}
	return fault.Wrap(err, kind, fault.Store, format, args...)
}

// Health returns the reason why changes are refused now; nil: they are accepted.
func (s *Store) Health() error {
	if err := s.trouble.Load(); err != nil {
		return *err
	}
	return nil
}

// DamagedFiles returns the damaged files that were put aside in the data directory. While
// there are any, an object without a record may belong to a lost record.
func (s *Store) DamagedFiles() []string {
	names, err := filepath.Glob(s.path + asideMark + "*")
	if err != nil {
		return nil // only for an invalid pattern
	}
	return names
}

// Complete reports that no record is missing: nothing was lost, and everything could be read. It is false for a
// file that was just made.
func (s *Store) Complete() bool { return s.fileWhole.Load() && len(s.DamagedFiles()) == 0 }

// MarkComplete records that the missing contents of a new file were looked for elsewhere: the
// next daemon takes the file for complete.
func (s *Store) MarkComplete() error {
	if s.Complete() {
		return nil
	}
	return s.Delete(formatKind, unsettledID.key)
}

// write queues one change, and returns when it is on disk. It does not delay to collect
// more changes: those that arrive during a transaction are in the next one.
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
		go s.commit() // ends when no change waits
	}
	s.mu.Unlock()
	return <-c.done
}

// commit writes waiting changes until there are none.
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
		s.writeChanges(all)
	}
}

// writeChanges writes changes in one transaction. If the store refuses one, because
// of its key or its size, nothing changes for it and the others are written.
// If the file turns out to be bad it is reopened, once.
func (s *Store) writeChanges(all []*change) {
	failpoint.Reach("store.commit")
	refused := make([]error, len(all))
	err := s.ensureOpen()
	if err == nil {
		var again bool
		if again, err = s.tryTransaction(all, refused); again {
			if err = s.checkAndOpen(); err == nil {
				_, err = s.tryTransaction(all, refused)
			}
		}
	}
	s.setTrouble(err)
	failpoint.Reach("store.committed")
	for i, c := range all {
		c.done <- cmp.Or(refused[i], err)
	}
}

// tryTransaction runs one transaction. Again means that the file has to be reopened.
func (s *Store) tryTransaction(all []*change, refused []error) (again bool, err error) {
	db := s.current.Load().db
	s.serial++
	panicked, err := recoverPanics(func() error {
		return db.Update(func(tx *bbolt.Tx) error {
			for i, c := range all {
				refused[i] = s.applyChange(tx, c)
			}
			return nil
		})
	})
	if err == nil {
		s.cacheWritten(all, refused)
		s.noteFileState()
		return false, nil
	}
	if !panicked && changedNothing(err) {
		return false, s.explain(err) // without space the present state is unchanged
	}
	for _, c := range all {
		s.uncertain[recordID{c.kind.Name, c.key}] = true
	}
	s.closeFile(panicked)
	return true, s.explain(err)
}

// cacheWritten updates the records in memory after a write.
func (s *Store) cacheWritten(all []*change, refused []error) {
	s.memory.Lock()
	defer s.memory.Unlock()
	for i, c := range all {
		name := recordID{c.kind.Name, c.key}
		if c.remove && refused[i] == nil {
			delete(s.known, name)
		} else if refused[i] == nil {
			s.known[name] = storedRecord{kind: name.kind, key: name.key, version: c.kind.Version, serial: s.serial, body: c.body}
		}
	}
}

// applyChange applies one change.
func (s *Store) applyChange(tx *bbolt.Tx, c *change) error {
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
		if r, err := decodeAs(c.kind.Name, c.key, old); err == nil {
			if err := c.kind.checkVersion(c.key, r.version); err != nil {
				return err
			}
		}
	}
	if c.remove {
		return b.Delete([]byte(c.key))
	}
	return b.Put([]byte(c.key), encodeRecord(c.kind.Name, c.key, c.kind.Version, s.serial, c.body))
}

// setTrouble stores why changes are refused, and logs when that begins and ends.
func (s *Store) setTrouble(err error) {
	was := s.lastError
	s.lastError = err
	s.trouble.Store(&err)
	switch {
	case err != nil && (was == nil || was.Error() != err.Error()):
		s.log.Error("store not writable; changes refused, guests keep running", "error", err)
	case err == nil && was != nil:
		s.log.Info("store writable again", "store", s.path)
	}
}

// Get decodes a record into the value that into points to.
func (s *Store) Get(k Kind, key string, into any) error {
	s.memory.RLock()
	value := s.known.encode(recordID{k.Name, key})
	s.memory.RUnlock()
	if value == nil {
		return fault.New(fault.NotFound, fault.Store, "no %s %q in the store", k.Name, key)
	}
	return k.decode(key, value, into)
}

// Each visits every record of a kind in the order of keys. The visitor decodes
// the records it needs. If it returns an error the walk ends, and Each returns that
// error unchanged. Records that are written or removed during the walk may be seen or not.
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
		if err := visit(name.key, func(into any) error { return k.decode(name.key, some.encode(name), into) }); err != nil {
			return err
		}
	}
	return nil
}

// encode returns a record in its file form; nil: it does not exist.
func (c contents) encode(name recordID) []byte {
	r, there := c[name]
	if !there || r.damaged != nil {
		return r.damaged
	}
	return encodeRecord(name.kind, name.key, r.version, r.serial, r.body)
}

// Close waits for writers and closes the file. Later changes are refused. The file is
// checked once more, because only this daemon has the records to repair it with.
func (s *Store) Close() error {
	s.mu.Lock()
	again := s.closed
	for s.closed = true; s.writing; {
		s.idle.Wait()
	}
	s.mu.Unlock()
	look := s.authoritative && !again
	if look {
		err := s.ensureOpen()
		look = err == nil
		s.setTrouble(err)
	}
	var err error
	if db := s.current.Load().db; db != nil && !s.torn {
		if err = db.Close(); errors.Is(err, berrors.ErrDatabaseNotOpen) {
			err = nil
		}
	}
	if look {
		_, failed := s.checkAndRepair()
		s.setTrouble(s.explain(failed))
	}
	return errors.Join(err, s.lock.Close())
}
