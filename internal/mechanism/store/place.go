package store

import (
	"os"

	"go.etcd.io/bbolt"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// inPlace sees to it that what is written is what the next daemon reads: a file that
// somebody has removed takes writes as well as ever, and nobody finds them again. All
// records are written anew where the file alone is missing. Where something else lies in
// its place, or in its directory's, nobody but the user knows which of the two counts. A
// file that was cut, or written to by somebody else, is let go of, to be looked through.
func (s *Store) inPlace() error {
	held, err := s.lock.Stat()
	if err == nil {
		var now os.FileInfo
		if now, err = os.Stat(s.dir); missing(err) || err == nil && !os.SameFile(held, now) {
			return fault.New(fault.Failed, fault.Store,
				"%s is not the directory any more that this daemon was started with: it was unmounted, moved or removed; bring it back, or start the daemon anew", s.dir)
		}
	}
	if err != nil {
		return s.explain(err)
	}
	open, err := s.now.Load().file.Stat()
	if err != nil {
		return s.explain(err)
	}
	switch now, err := os.Stat(s.path); {
	case missing(err):
		return s.replace()
	case err != nil:
		return s.explain(err)
	case !os.SameFile(open, now):
		return fault.New(fault.Failed, fault.Store,
			"%s is not the file any more that this daemon opened; start the daemon anew to use it, or remove it to keep what this daemon has", s.path)
	}
	if s.changed(open) {
		s.detach(s.torn)
	}
	return nil
}

// note keeps by what the open file is known again.
func (s *Store) note() {
	info, failed := s.now.Load().file.Stat()
	number, size, err := s.head()
	if s.torn = failed != nil || err != nil; !s.torn {
		s.transaction, s.length = number, info.Size()
		s.size.Store(size)
	}
}

// changed tells whether somebody else has written to the open file, or cut it.
func (s *Store) changed(open os.FileInfo) bool {
	if s.torn || open.Size() < s.length {
		return true
	}
	number, _, err := s.head()
	s.torn = err != nil
	return s.torn || number != s.transaction
}

// head gives the number of the open file's last transaction, and how much of the file counts.
func (s *Store) head() (number int, size int64, err error) {
	_, err = guarded(func() error {
		return s.now.Load().db.View(func(tx *bbolt.Tx) error { number, size = tx.ID(), tx.Size(); return nil })
	})
	return number, size, err
}

// replace writes a new file of all records of the open one, which has no name any more.
func (s *Store) replace() error {
	if err := s.rewrite(s.known, false); err != nil {
		return s.explain(err)
	}
	s.log.Error("somebody has removed the store's file; all records go on in a new one", "file", s.path, "records", len(s.known))
	s.detach(s.torn)
	return s.attach()
}
