package store

import (
	"errors"
	"log/slog"
	"slices"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// checkTries is how often a file that a daemon writes to is looked through anew.
const checkTries = 20

// Check looks a data directory's store through and changes nothing. A daemon may
// hold it meanwhile.
func Check(dir string) (*Report, error) {
	_, r, err := read(dir)
	return r, err
}

// Visit gives every record that can be read, by kind and key, with the version of
// its layout, and the report of Check. It reads what lies outside of its place
// too. A daemon may hold the directory meanwhile.
func Visit(dir string, visit func(kind, key string, version int, body []byte) error) (*Report, error) {
	all, r, err := read(dir)
	if err != nil {
		return nil, err
	}
	for _, name := range all.sorted() {
		rec := all[name]
		if err := visit(name.kind, name.key, rec.version, rec.body); err != nil {
			return r, err
		}
	}
	return r, nil
}

// read gathers what a store holds, in one state of it.
func read(dir string) (contents, *Report, error) {
	for try := 1; ; try++ {
		before, err := transaction(Path(dir))
		if err != nil {
			return nil, nil, fault.Wrap(err, fault.Failed, fault.Store, "cannot read the store of %s", dir)
		}
		all, r, err := gather(Path(dir))
		if err != nil {
			return nil, nil, fault.Wrap(err, fault.Failed, fault.Store, "cannot read the store of %s", dir)
		}
		// Pages that a state leads to are not written to before the next one.
		after, err := transaction(Path(dir))
		switch {
		case err == nil && after == before:
			return all, r, nil
		case try == checkTries:
			return nil, nil, fault.New(fault.Busy, fault.Store, "the store of %s changes while it is read; try again when its daemon is less busy", dir)
		}
	}
}

// transaction gives the number of a file's last transaction.
func transaction(path string) (uint64, error) {
	f, size, err := open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	s := &scan{from: f, size: size}
	s.heads()
	return s.transaction, nil
}

// Repair makes a new file of all that can be read, records that lie outside of
// their place included, and keeps the old one aside, whose name it gives. A store
// that is whole is left alone. No daemon may hold the directory.
func Repair(dir string, log *slog.Logger) (r *Report, aside string, err error) {
	lock, err := hold(dir, "data", 0)
	if err != nil {
		return nil, "", err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	s := &Store{dir: dir, path: Path(dir), log: log, doubt: map[id]bool{}}
	s.idle.L = &s.mu
	all, r, err := gather(s.path)
	switch {
	case err != nil:
		return nil, "", fault.Wrap(err, fault.Failed, fault.Store, "cannot read the store of %s", dir)
	case r.Format > presentFormat:
		return r, "", newer(s.path, r.Format)
	case r.Whole():
		return r, "", nil
	}
	s.serial = r.serial
	had := s.Aside()
	if err := s.rewrite(all, true); err != nil {
		return r, "", s.explain(err)
	}
	for _, name := range s.Aside() {
		if !slices.Contains(had, name) {
			aside = name
		}
	}
	return r, aside, nil
}
