package store

import (
	"os"

	"go.etcd.io/bbolt"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// checkSameFile makes sure that writes go to the file that the next daemon will read. A file that
// was removed still accepts writes, but nothing can open it again. If only the
// file is missing, all records are written to a new one. If another file or directory lies
// in its place, only the user knows which of the two counts, and writes are refused. A
// file that another program cut or wrote to is closed and checked again.
func (s *Store) checkSameFile() error {
	held, err := s.lock.Stat()
	if err == nil {
		var now os.FileInfo
		if now, err = os.Stat(s.dir); isMissing(err) || err == nil && !os.SameFile(held, now) {
			return fault.New(fault.Failed, fault.Store,
				"%s is no longer the directory that this daemon was started with: it was unmounted, moved or removed; bring it back, or restart the daemon", s.dir)
		}
	}
	if err != nil {
		return s.explain(err)
	}
	open, err := s.current.Load().file.Stat()
	if err != nil {
		return s.explain(err)
	}
	switch now, err := os.Stat(s.path); {
	case isMissing(err):
		return s.recreateFile()
	case err != nil:
		return s.explain(err)
	case !os.SameFile(open, now):
		return fault.New(fault.Failed, fault.Store,
			"%s is no longer the file that this daemon opened; restart the daemon to use that file, or remove it to keep this daemon's records", s.path)
	}
	if s.changedByOther(open) {
		s.closeFile(s.torn)
	}
	return nil
}

// noteFileState stores the transaction and size that identify the open file later.
func (s *Store) noteFileState() {
	info, failed := s.current.Load().file.Stat()
	number, size, err := s.lastTransaction()
	if s.torn = failed != nil || err != nil; !s.torn {
		s.transaction, s.fileSize = number, info.Size()
		s.usedSize.Store(size)
	}
}

// changedByOther reports whether another program has written to the open file, or cut it.
func (s *Store) changedByOther(open os.FileInfo) bool {
	if s.torn || open.Size() < s.fileSize {
		return true
	}
	number, _, err := s.lastTransaction()
	s.torn = err != nil
	return s.torn || number != s.transaction
}

// lastTransaction returns the number of the file's last transaction, and how many bytes of the file count.
func (s *Store) lastTransaction() (number int, size int64, err error) {
	_, err = recoverPanics(func() error {
		return s.current.Load().db.View(func(tx *bbolt.Tx) error { number, size = tx.ID(), tx.Size(); return nil })
	})
	return number, size, err
}

// recreateFile writes all records to a new file after the open one was removed.
func (s *Store) recreateFile() error {
	if err := s.rewrite(s.known, false); err != nil {
		return s.explain(err)
	}
	s.log.Error("store file was removed by another program; all records written to a new one", "file", s.path, "records", len(s.known))
	s.closeFile(s.torn)
	return s.checkAndOpen()
}
