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

// formatKind is the record that tells the format of the file itself: 2, or 1 where
// there is none. A file of a higher format is not touched.
var formatKind = Kind{Name: "store", Version: 1}

const (
	formatKey     = "format"
	presentFormat = 2
)

// unsettled is the record of a file that was made where there may have been one, until what
// the lost one held was looked for elsewhere: a daemon may be killed before it has.
var unsettled = id{formatKind.Name, "unsettled"}

// Report is what a look at a store's file found.
type Report struct {
	Path        string
	Size        int64
	Transaction uint64
	Format      int
	// Records counts the whole records of each kind.
	Records map[string]int
	// Problems are what is wrong, each named.
	Problems []Problem
	// Broken says that not only records but the file is damaged.
	Broken bool
	// Unread is the disk's error where a part could not be read.
	Unread error

	oneHead bool // the other is torn, or the last transaction's and damaged
	serial  uint64
	lost    []span
}

// Whole reports whether nothing is wrong.
func (r *Report) Whole() bool { return len(r.Problems) == 0 && r.Unread == nil }

// wanted tells records that may have been lost.
func (r *Report) wanted(kind, key string) bool {
	return slices.ContainsFunc(r.lost, func(s span) bool { return s.holds(kind, key) })
}

// inspect looks a file through and visits each record, also one that is damaged.
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
		if kind != "" && key != "" && len(key) <= bbolt.MaxKeySize { // else no transaction has written it, nor could one
			visit(id{kind, key}, sealed{damaged: value})
		}
		return
	}
	if kind == formatKind.Name && key == formatKey {
		if _, err := fmt.Sscan(string(rec.body), &r.Format); err != nil {
			r.Problems = append(r.Problems, Problem{kind, key, "it is no number"})
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

// gather reads all that can be read, and says where a record was found outside of
// its place: in a page that is lost, or written by a transaction whose head is bad.
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
		text := "found again outside of its place; it may be an earlier state, or one that was deleted"
		if rec.serial > last {
			text = "written by the last change, whose head is damaged, and found again"
		}
		r.Problems = append(r.Problems, Problem{name.kind, name.key, text})
	}
	slices.SortFunc(r.Problems, func(a, b Problem) int {
		return cmp.Or(id{a.Kind, a.Key}.compare(id{b.Kind, b.Key}), cmp.Compare(a.Text, b.Text))
	})
	return all, r, nil
}

// sorted gives the names of records in order.
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
