package operation

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/atomicfile"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Record is the form of an operation that the next daemon reads.
type Record struct {
	ID      string
	Kind    string
	Version int
	// Owner is the object that the operation belongs to, such as a guest's UUID.
	Owner string
	// Boot is the boot ID of the host when it was begun.
	Boot  string
	Began time.Time
	// Scope is the recorded part of the client's scope. Another daemon runs the steps under it.
	Scope scope.Record
	// Objects are the things it works on, such as disk/vda.
	Objects []string `json:",omitempty"`
	// Decided says that it goes forward, if no Probe can tell.
	Decided bool `json:",omitempty"`
	// Back says that it goes back, though Probe could answer that it still waits.
	Back    bool            `json:",omitempty"`
	Payload json.RawMessage `json:",omitempty"`
}

// Journal keeps records.
type Journal interface {
	// Write stores a record in place of the one with the same ID.
	Write(Record) error
	// Remove deletes a record. A missing record is no error.
	Remove(Record) error
}

// FileJournal is a journal in a directory that does not outlive a boot of the host.
// Nothing is synced.
type FileJournal struct{ Dir string }

const filePrefix, fileSuffix = "operation-", ".json"

func (f FileJournal) path(id string) string { return filepath.Join(f.Dir, filePrefix+id+fileSuffix) }

// Write implements Journal.
func (f FileJournal) Write(r Record) error { return atomicfile.WriteJSON(f.path(r.ID), r) }

// Remove implements Journal.
func (f FileJournal) Remove(r Record) error {
	if err := os.Remove(f.path(r.ID)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Read returns the records, oldest first; with an error, those that can be read. It
// removes files that a killed daemon was writing.
func (f FileJournal) Read() ([]Record, error) {
	entries, err := os.ReadDir(f.Dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var all []Record
	var failed []error
	for _, e := range entries {
		name, isRecord := strings.CutPrefix(e.Name(), filePrefix)
		if !isRecord {
			continue
		}
		path := filepath.Join(f.Dir, e.Name())
		if !strings.HasSuffix(name, fileSuffix) {
			failed = append(failed, os.Remove(path))
			continue
		}
		r, err := atomicfile.ReadJSON[Record](path)
		failed = append(failed, err)
		if r != nil {
			all = append(all, *r)
		}
	}
	oldestFirst(all)
	return all, errors.Join(failed...)
}

// StoreJournal is a journal in the daemon's store, which outlives a boot. Changes are on
// disk when Write and Remove return.
type StoreJournal struct{ Store *store.Store }

var storedKind = store.Kind{Name: "operation", Version: 1}

func (r Record) key() string { return r.Owner + "/" + r.ID }

// Write implements Journal.
func (s StoreJournal) Write(r Record) error { return s.Store.Put(storedKind, r.key(), r) }

// Remove implements Journal.
func (s StoreJournal) Remove(r Record) error { return s.Store.Delete(storedKind, r.key()) }

// OwnerRecords holds the records of one owner, oldest first. Damaged says that there are
// others that cannot be read.
type OwnerRecords struct {
	Records []Record
	Damaged error
}

// ReadAll returns all records by their owner.
func (s StoreJournal) ReadAll() (map[string]OwnerRecords, error) {
	all := map[string]OwnerRecords{}
	err := s.Store.Each(storedKind, func(key string, decode func(any) error) error {
		owner, id, _ := strings.Cut(key, "/")
		var r Record
		o := all[owner]
		if err := decode(&r); err != nil {
			o.Damaged = fmt.Errorf("the record of operation %s is damaged: %w", id, err)
		} else {
			o.Records = append(o.Records, r)
		}
		all[owner] = o
		return nil
	})
	for _, o := range all {
		oldestFirst(o.Records)
	}
	return all, err
}

func oldestFirst(all []Record) {
	slices.SortStableFunc(all, func(a, b Record) int { return a.Began.Compare(b.Began) })
}
