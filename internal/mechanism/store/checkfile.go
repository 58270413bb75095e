package store

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"go.etcd.io/bbolt"
)

// recordID names a record.
type recordID struct{ kind, key string }

func (a recordID) compare(b recordID) int {
	return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.key, b.key))
}

// formatKind is the record with the format of the file itself: 2; a file without the
// record has format 1. A file of a higher format is not touched.
var formatKind = Kind{Name: "store", Version: 1}

const (
	formatKey     = "format"
	presentFormat = 2
)

// unsettledID is a record in a file that was made where an older file may have been lost. It stays
// until the lost contents were looked for elsewhere, because a daemon may be killed before that.
var unsettledID = recordID{formatKind.Name, "unsettled"}

// Report is the result of a check of a store's file.
type Report struct {
	Path        string
	Size        int64
	Transaction uint64
	Format      int
	// Records counts the whole records of each kind.
	Records map[string]int
	// Problems lists all damage, each with its place.
	Problems []Problem
	// Broken says that not only records but the file is damaged.
	Broken bool
	// Unread is the disk's error if a part could not be read.
	Unread error

	oneMeta bool // the other meta page is torn, or it belongs to the last transaction and is damaged
	serial  uint64
	lost    []keyRange
}

// Whole reports whether nothing is wrong.
func (r *Report) Whole() bool { return len(r.Problems) == 0 && r.Unread == nil }

// mayHaveLost reports whether a record may have been lost.
func (r *Report) mayHaveLost(kind, key string) bool {
	return slices.ContainsFunc(r.lost, func(s keyRange) bool { return s.contains(kind, key) })
}

// checkFile reads a file through and visits each record, also damaged ones.
func checkFile(path string, visit func(recordID, storedRecord)) (*Report, error) {
	f, size, err := openToRead(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := &Report{Path: path, Size: size, Format: 1, Records: map[string]int{}}
	s := scanFile(f, size, func(kind string, key, value []byte) { r.addRecord(kind, string(key), value, visit) })
	r.Problems = append(r.Problems, s.problems...)
	r.Broken, r.Unread, r.Transaction = s.broken, s.unread, s.transaction
	r.lost, r.oneMeta = append(r.lost, s.lost...), s.oneMeta
	return r, nil
}

func (r *Report) addRecord(kind, key string, value []byte, visit func(recordID, storedRecord)) {
	rec, err := decodeAs(kind, key, value)
	if err != nil {
		r.Problems = append(r.Problems, Problem{kind, key, err.Error()})
		r.lost = append(r.lost, keyRange{kind, []byte(key), append([]byte(key), 0)})
		if kind != "" && key != "" && len(key) <= bbolt.MaxKeySize { // otherwise no transaction can have written it
			visit(recordID{kind, key}, storedRecord{damaged: value})
		}
		return
	}
	if kind == formatKind.Name && key == formatKey {
		if _, err := fmt.Sscan(string(rec.body), &r.Format); err != nil {
			r.Problems = append(r.Problems, Problem{kind, key, "it is not a number"})
		}
		r.serial = max(r.serial, rec.serial)
		return
	}
	r.serial = max(r.serial, rec.serial)
	r.Records[kind]++
	visit(recordID{kind, key}, rec)
}

// contents are all records of a file.
type contents map[recordID]storedRecord

// readAll reads everything that can be read. It reports each record that was found outside
// its place: in a lost page, or written by a transaction whose meta page is damaged.
func readAll(path string) (contents, *Report, error) {
	all := contents{}
	r, err := checkFile(path, func(name recordID, rec storedRecord) {
		if rec.damaged == nil {
			all[name] = rec
		}
	})
	if err != nil || len(r.lost) == 0 && !r.oneMeta {
		return all, r, err
	}
	f, _, err := openToRead(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	last := r.serial
	again := searchRecords(f, r.Size, func(rec storedRecord) bool {
		_, there := all[recordID{rec.kind, rec.key}]
		return rec.kind != formatKind.Name && (!there && r.mayHaveLost(rec.kind, rec.key) || r.oneMeta && rec.serial > last)
	})
	for name, rec := range again {
		all[name] = rec
		r.Broken, r.serial = true, max(r.serial, rec.serial)
		text := "recovered from outside its place; it may be outdated or deleted"
		if rec.serial > last {
			text = "recovered; it was written by the last change, and that change's head is damaged"
		}
		r.Problems = append(r.Problems, Problem{name.kind, name.key, text})
	}
	slices.SortFunc(r.Problems, func(a, b Problem) int {
		return cmp.Or(recordID{a.Kind, a.Key}.compare(recordID{b.Kind, b.Key}), cmp.Compare(a.Text, b.Text))
	})
	return all, r, nil
}

// sorted returns the names of the records in order.
func (c contents) sorted() []recordID {
	names := make([]recordID, 0, len(c))
	for name := range c {
		names = append(names, name)
	}
	slices.SortFunc(names, recordID.compare)
	return names
}

// openToRead opens a file to read, and gives its size.
func openToRead(path string) (*os.File, int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, info.Size(), nil
}

func isMissing(err error) bool { return errors.Is(err, fs.ErrNotExist) }
