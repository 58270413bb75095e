package store

import (
	"errors"
	"log/slog"
	"slices"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// checkTries is how often a file is read again because a daemon writes to it.
const checkTries = 20

// Check checks a data directory's store and changes nothing. A daemon may
// hold it at the same time.
func Check(dir string) (*Report, error) {
	_, r, err := readConsistent(dir)
	return r, err
}

// Visit visits every readable record, by kind and key, with the version of
// its layout, and returns the report of Check. It also reads records outside their
// place. A daemon may hold the directory at the same time.
func Visit(dir string, visit func(kind, key string, version int, body []byte) error) (*Report, error) {
	all, r, err := readConsistent(dir)
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

// readConsistent collects the records of a store in one consistent state.
func readConsistent(dir string) (contents, *Report, error) {
	for try := 1; ; try++ {
		before, err := lastTransaction(Path(dir))
		if err != nil {
			return nil, nil, fault.Wrap(err, fault.Failed, fault.Store, "cannot read the store of %s", dir)
		}
		all, r, err := readAll(Path(dir))
		if err != nil {
			return nil, nil, fault.Wrap(err, fault.Failed, fault.Store, "cannot read the store of %s", dir)
		}
		// Pages of a state are not overwritten before the next state.
		after, err := lastTransaction(Path(dir))
		switch {
		case err == nil && after == before:
			return all, r, nil
		case try == checkTries:
			return nil, nil, fault.New(fault.Busy, fault.Store, "the store of %s changes while it is read; try again when its daemon is less busy", dir)
		}
	}
}

// lastTransaction returns the number of a file's last transaction.
func lastTransaction(path string) (uint64, error) {
	f, size, err := openToRead(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	s := &scan{from: f, size: size}
	s.readMetas()
	return s.transaction, nil
}

// Repair makes a new file of all readable records, also those outside their
// place. It keeps the old file and returns its new name. A whole store
// is left unchanged. No daemon may hold the directory.
func Repair(dir string, log *slog.Logger) (r *Report, aside string, err error) {
	lock, err := lockDirectory(dir, "data", 0)
	if err != nil {
		return nil, "", err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	s := &Store{dir: dir, path: Path(dir), log: log, uncertain: map[recordID]bool{}}
	s.idle.L = &s.mu
	all, r, err := readAll(s.path)
	switch {
	case err != nil:
		return nil, "", fault.Wrap(err, fault.Failed, fault.Store, "cannot read the store of %s", dir)
	case r.Format > presentFormat:
		return r, "", errNewer(s.path, r.Format)
	case r.Whole():
		return r, "", nil
	}
	s.serial = r.serial
	had := s.DamagedFiles()
	if err := s.rewrite(all, true); err != nil {
		return r, "", s.explain(err)
	}
	for _, name := range s.DamagedFiles() {
		if !slices.Contains(had, name) {
			aside = name
		}
	}
	return r, aside, nil
}
