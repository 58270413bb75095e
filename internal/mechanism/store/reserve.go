package store

import (
	"errors"

	"golang.org/x/sys/unix"
)

// changeOverhead is the space in bytes that a change may take beside its record: other records on
// its page, the pages above, and the list of free pages.
const changeOverhead = 1 << 20

// ReserveSpace reserves space for a record of n bytes that must be stored after a step that cannot be
// undone. The space belongs to the file for as long as the file exists, and all callers share it: a
// second call takes no more. It does nothing on a file system that cannot reserve space, or
// that never overwrites in place.
func (s *Store) ReserveSpace(n int) error {
	v := s.current.Load()
	if v.db == nil {
		return s.Health()
	}
	raw, err := v.file.SyscallConn()
	if err != nil {
		return s.explain(err)
	}
	var refused error
	err = raw.Control(func(fd uintptr) {
		refused = unix.Fallocate(int(fd), unix.FALLOC_FL_KEEP_SIZE, 0, s.usedSize.Load()+2*int64(n)+changeOverhead)
	})
	if err = errors.Join(err, refused); isFull(err) {
		return s.explain(err)
	}
	return nil // a caller without a reservation gets the error when it writes
}
