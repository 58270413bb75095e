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

// id names a record.
type id struct{ kind, key string }

func (a id) compare(b id) int { return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.key, b.key)) }

// formatKind is the record with the format of the file itself: 2; a file without the
// record has format 1. A file of a higher format is not touched.
var formatKind = Kind{Name: "store", Version: 1}

const (
	formatKey     = "format"
	presentFormat = 2
)

// unsettled is a record in a file that was made where an older file may have been lost. It stays
// until the lost contents were looked for elsewhere, because a daemon may be killed before that.
var unsettled = id{formatKind.Name, "unsettled"}

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

	oneHead bool // the other head is torn, or it belongs to the last transaction and is damaged
	serial  uint64
	lost    []span
}

// Whole reports whether nothing is wrong.
func (r *Report) Whole() bool { return len(r.Problems) == 0 && r.Unread == nil }

// wanted reports whether a record may have been lost.
func (r *Report) wanted(kind, key string) bool {
	return slices.ContainsFunc(r.lost, func(s span) bool { return s.holds(kind, key) })
}

// inspect reads a file through and visits each record, also damaged ones.
func inspect(path string, visit func(id, sealed)) (*Report, error) {
	f, size, err := open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := &Report{Path: path, Size: size, Format: 1, Records: map[string]int{}}
	s := look(f, size, func(kind string, key, value []byte) { r.take(kind, string(key), value, visit) })
	r.Problems = append(r.Problems, s.problems...)
	r.Broken, r.Unread, r.Transaction = s.broken, s.unread, s.transaction
	r.lost, r.oneHead = append(r.lost, s.lost...), s.oneHead
	return r, nil
}

func (r *Report) take(kind, key string, value []byte, visit func(id, sealed)) {
	rec, err := unsealAs(kind, key, value)
	if err != nil {
		r.Problems = append(r.Problems, Problem{kind, key, err.Error()})
		r.lost = append(r.lost, span{kind, []byte(key), append([]byte(key), 0)})
		if kind != "" && key != "" && len(key) <= bbolt.MaxKeySize { // otherwise no transaction can have written it
			visit(id{kind, key}, sealed{damaged: value})
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
	visit(id{kind, key}, rec)
}

// contents are all records of a file, sealed.
type contents map[id]sealed

// gather reads everything that can be read. It reports each record that was found outside
// its place: in a lost page, or written by a transaction whose head is damaged.
func gather(path string) (contents, *Report, error) {
	all := contents{}
	r, err := inspect(path, func(name id, rec sealed) {
		if rec.damaged == nil {
			all[name] = rec
		}
	})
	if err != nil || len(r.lost) == 0 && !r.oneHead {
		return all, r, err
	}
	f, _, err := open(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	last := r.serial
	again := carve(f, r.Size, func(rec sealed) bool {
		_, there := all[id{rec.kind, rec.key}]
		return rec.kind != formatKind.Name && (!there && r.wanted(rec.kind, rec.key) || r.oneHead && rec.serial > last)
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
		return cmp.Or(id{a.Kind, a.Key}.compare(id{b.Kind, b.Key}), cmp.Compare(a.Text, b.Text))
	})
	return all, r, nil
}

// sorted returns the names of the records in order.
func (c contents) sorted() []id {
	names := make([]id, 0, len(c))
	for name := range c {
		names = append(names, name)
	}
	slices.SortFunc(names, id.compare)
	return names
}

// open opens a file to read, and gives its size.
func open(path string) (*os.File, int64, error) {
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

func missing(err error) bool { return errors.Is(err, fs.ErrNotExist) }
