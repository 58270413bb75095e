package store

import (
	"fmt"
	"os"

	"github.com/lodge-kvm/lodge/fault"
)

// inPlace sees to it that what is written is what the next daemon reads: a file that
// somebody has removed takes writes as well as ever, and nobody finds them again. All
// records are written anew where the file alone is missing. Where something else lies in
// its place, or in its directory's, nobody but the user knows which of the two counts.
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
	file := s.now.Load().file
	open, err := file.Stat()
	if err != nil {
		return s.explain(err)
	}
	switch now, err := os.Stat(s.path); {
	case missing(err):
		return s.replace(file)
	case err != nil:
		return s.explain(err)
	case !os.SameFile(open, now):
		return fault.New(fault.Failed, fault.Store,
			"%s is not the file any more that this daemon opened; start the daemon anew to use it, or remove it to keep what this daemon has", s.path)
	}
	return nil
}

// replace writes a new file of all records of the open one, which has no name any more.
func (s *Store) replace(file *os.File) error {
	all, _, err := gather(fmt.Sprintf("/proc/self/fd/%d", file.Fd()))
	if err == nil {
		err = s.rewrite(s.undone(all), false)
	}
	if err != nil {
		return s.explain(err)
	}
	s.log.Error("somebody has removed the store's file; all records go on in a new one", "file", s.path, "records", len(all))
	s.detach(false)
	return s.attach()
}
