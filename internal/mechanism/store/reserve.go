package store

import (
	"errors"

	"golang.org/x/sys/unix"
)

// spare is what a change may take beside its record, in bytes: the records that share its page,
// the pages above that, and the list of those that are free.
const spare = 1 << 20

// Reserve takes room for a record of n bytes that is to be stored after something that cannot be
// taken back. It is taken from the file system as long as the file is, and is one for all: who
// comes next takes no more. Where a file system keeps no room for files, or writes nothing in its
// old place, it does nothing.
func (s *Store) Reserve(n int) error {
	v := s.now.Load()
	if v.db == nil {
		return s.Health()
	}
	raw, err := v.file.SyscallConn()
	if err != nil {
		return s.explain(err)
	}
	var refused error
	err = raw.Control(func(fd uintptr) {
		refused = unix.Fallocate(int(fd), unix.FALLOC_FL_KEEP_SIZE, 0, s.size.Load()+2*int64(n)+spare)
	})
	if err = errors.Join(err, refused); full(err) {
		return s.explain(err)
	}
	return nil // who cannot reserve is told when it is written
}
