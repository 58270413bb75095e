package store

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/fault"
)

const (
	// lockWait is how long Open waits for another daemon on the same data
	// directory to let go. A daemon that is being replaced needs a moment to end.
	lockWait = 5 * time.Second
	lockTick = 20 * time.Millisecond
	// reopenAfter is how soon a file that could not be opened is tried again.
	reopenAfter = time.Second
	// asideMark separates the file's name from the time at which the damaged file was
	// put aside.
	asideMark = ".damaged-"
)

// Open is OpenLogged with the process's own log.
func Open(dir string) (*Store, error) { return OpenLogged(dir, slog.Default()) }

// OpenLogged opens the store of a data directory, and makes it if it does not exist. If
// another daemon holds the directory the error is Busy; a file of a newer format is
// Unsupported. Any other trouble is logged, shown by Health and repaired as far as
// possible; changes that cannot be kept are refused when they come.
func OpenLogged(dir string, log *slog.Logger) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Store, "cannot make data directory %s", dir)
	}
	lock, err := LockDirectory(dir, "data")
	if err != nil {
		return nil, err
	}
	s := &Store{dir: dir, path: Path(dir), lock: lock, log: log, known: contents{}, uncertain: map[recordID]bool{}}
	s.idle.L = &s.mu
	s.current.Store(&opened{})
	err = s.checkAndOpen()
	if fault.Is(err, fault.Busy) || fault.Is(err, fault.Unsupported) {
		return nil, errors.Join(err, lock.Close())
	}
	s.setTrouble(err)
	return s, nil
}

// LockDirectory locks a directory for this process until the returned file is
// closed. Name is the flag that gives a daemon another directory, for the error. The lock is
// on the directory because that can be opened whatever happened to the files in it.
func LockDirectory(dir, name string) (*os.File, error) { return lockDirectory(dir, name, lockWait) }

// checkOwner refuses a directory where other users could replace the store's
// files.
func checkOwner(dir *os.File, name string) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return fault.Wrap(err, fault.Failed, fault.Store, "cannot look at %s directory %s", name, dir.Name())
	}
	if st.Uid != 0 && st.Uid != uint32(os.Geteuid()) || st.Mode&unix.S_IWOTH != 0 {
		return fault.New(fault.Denied, fault.Store, "cannot use %s: users other than root can write to it; chown root it and chmod o-w, or give another --%s", dir.Name(), name)
	}
	return nil
}

func lockDirectory(dir, name string, wait time.Duration) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Store, "cannot open %s directory %s", name, dir)
	}
	if err := checkOwner(f, name); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	ctx, stop := context.WithTimeout(context.Background(), wait)
	defer stop()
	tick := time.NewTicker(lockTick)
	defer tick.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return f, nil // held; or a file system without such locks: bbolt's own lock has to do
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			f.Close()
			return nil, fault.New(fault.Busy, fault.Store, "cannot use %s: another lodged uses this %s directory; stop it or give another --%[2]s", dir, name)
		}
	}
}

// ensureOpen makes sure that the file is open. A file that just failed to open is
// not tried again at once, because each try reads it through.
func (s *Store) ensureOpen() error {
	if s.current.Load().db != nil {
		if err := s.checkSameFile(); err != nil || s.current.Load().db != nil {
			return err
		}
	}
	if s.lastError != nil && time.Since(s.lastTry) < reopenAfter {
		return s.lastError
	}
	return s.checkAndOpen()
}

// checkAndOpen opens the file. If that fails the records are those that can be read from it, or
// those that were known when it was last open.
func (s *Store) checkAndOpen() error {
	all, err := s.checkAndRepair()
	if err == nil {
		err = s.openBolt(all)
	}
	s.lastTry = time.Now()
	if err == nil || s.authoritative {
		return s.explain(err)
	}
	all, report, failed := readAll(s.path)
	s.fileWhole.Store(failed == nil && report.Whole())
	if failed == nil {
		s.logProblems(report)
		s.setRecords(all)
	}
	return s.explain(err)
}

// setRecords makes these all the records of the store.
func (s *Store) setRecords(all contents) {
	for name, r := range all { // a copy of each: the slices that were read point into pages
		r.body, r.damaged = bytes.Clone(r.body), bytes.Clone(r.damaged)
		all[name] = r
	}
	s.memory.Lock()
	defer s.memory.Unlock()
	s.known = all
}

// checkAndRepair checks the file, repairs it until bbolt may open it, and returns the records
// in it.
func (s *Store) checkAndRepair() (contents, error) {
	found := contents{}
	r, err := checkFile(s.path, func(name recordID, rec storedRecord) { found[name] = rec })
	empty := isMissing(err) || err == nil && r.Size == 0
	switch {
	case empty && s.authoritative:
		err := s.rewrite(s.known, false)
		if err == nil {
			s.log.Error("store file missing or empty; all records written to a new one", "file", s.path, "records", len(s.known))
		}
		return s.known, err
	case empty:
		return s.createEmpty()
	case err != nil:
		return nil, err
	case r.Format > presentFormat:
		return nil, errNewer(s.path, r.Format)
	case r.Unread != nil:
		return nil, fault.Wrap(r.Unread, fault.Failed, fault.Store, "cannot read a part of %s; the file is left unchanged", s.path)
	}
	s.serial = max(s.serial, r.serial)
	if s.authoritative {
		return s.known, s.restoreKnown(found, r)
	}
	_, lost := found[unsettledID]
	s.fileWhole.Store(r.Whole() && !lost)
	if !r.Broken && !r.oneMeta && len(r.lost) == 0 {
		s.logProblems(r)
		return found, nil
	}
	all, r, err := readAll(s.path)
	if err != nil {
		return nil, err
	}
	s.serial = max(s.serial, r.serial)
	s.logProblems(r)
	if !r.Broken {
		return found, nil // the next change overwrites a meta page that a crash tore
	}
	return all, s.rewrite(all, !r.Whole())
}

// restoreKnown makes sure that the file holds the known records. Other differences than a change
// whose caller was told that it failed come from another program.
func (s *Store) restoreKnown(found contents, r *Report) error {
	differs := func(name recordID) bool {
		a, there := found[name]
		b, known := s.known[name]
		return !s.uncertain[name] && (there != known || a.version != b.version || !bytes.Equal(a.body, b.body) || !bytes.Equal(a.damaged, b.damaged))
	}
	damaged := r.Broken
	for _, all := range []contents{found, s.known} {
		for name := range all {
			damaged = damaged || differs(name)
		}
	}
	if !damaged && len(s.uncertain) == 0 {
		return nil
	}
	s.logProblems(r)
	return s.rewrite(s.known, damaged)
}

// createEmpty makes a new file where none exists, though one may have existed before.
func (s *Store) createEmpty() (contents, error) {
	s.fileWhole.Store(false)
	all := contents{unsettledID: {version: formatKind.Version, body: []byte("true")}}
	err := s.rewrite(all, false)
	if entries, _ := os.ReadDir(s.dir); err == nil && slices.ContainsFunc(entries, isForeign) { // otherwise the directory is new
		s.log.Error("data directory not empty but without a store; if a daemon has used it, all records except those of running or saved guests are lost; if the store is elsewhere, stop the daemon and move it here", "file", s.path)
	}
	return all, err
}

// isForeign reports whether a file comes neither from a store nor from mkfs.
func isForeign(e os.DirEntry) bool {
	return e.Name() != "lost+found" && !strings.HasPrefix(e.Name(), filepath.Base(Path("")))
}

// logProblems logs each damaged record.
func (s *Store) logProblems(r *Report) {
	for _, p := range r.Problems {
		s.log.Error("the store is damaged", "file", r.Path, "problem", p.String())
	}
}

// rewrite writes the records to a new file and renames it over the present one.
// A damaged file keeps a second name beside it. One of the two exists at every moment.
func (s *Store) rewrite(all contents, damaged bool) error {
	fresh := s.path + ".new"
	if err := os.Remove(fresh); err != nil && !isMissing(err) {
		return err
	}
	if err := s.writeRecords(fresh, all); err != nil {
		_ = os.Remove(fresh) // or at the next try
		return err
	}
	if damaged {
		aside, err := putAside(s.path)
		if err != nil {
			return err
		}
		failpoint.Reach("store.aside")
		s.log.Error("damaged store file put aside; records that are readable or in memory written to a new one", "file", aside, "records", len(all))
	}
	failpoint.Reach("store.filled")
	if err := os.Rename(fresh, s.path); err != nil {
		return err
	}
	failpoint.Reach("store.rewritten")
	clear(s.uncertain)
	return syncDir(s.dir)
}

// writeRecords writes records into a new file.
func (s *Store) writeRecords(path string, all contents) error {
	s.serial++
	_, err := recoverPanics(func() error {
		db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockWait, FreelistType: bbolt.FreelistMapType})
		if err != nil {
			return err
		}
		err = db.Update(func(tx *bbolt.Tx) error {
			for _, name := range all.sorted() {
				b, err := tx.CreateBucketIfNotExists([]byte(name.kind))
				if err != nil {
					return err
				}
				b.FillPercent = 0.9 // the keys come in order
				if err := b.Put([]byte(name.key), all.encode(name)); err != nil {
					return err
				}
			}
			return s.writeFormat(tx)
		})
		return errors.Join(err, db.Close())
	})
	return err
}

// writeFormat writes the file's format.
func (s *Store) writeFormat(tx *bbolt.Tx) error {
	b, err := tx.CreateBucketIfNotExists([]byte(formatKind.Name))
	if err != nil {
		return err
	}
	return b.Put([]byte(formatKey), encodeRecord(formatKind.Name, formatKey, formatKind.Version, s.serial, []byte(strconv.Itoa(presentFormat))))
}

// putAside gives a damaged file a second name. The file stays under it.
func putAside(path string) (string, error) {
	aside := path + asideMark + time.Now().UTC().Format("20060102T150405.000000000Z")
	return aside, os.Link(path, aside)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// openBolt opens a checked file with bbolt. The file holds exactly these records.
func (s *Store) openBolt(all contents) error {
	var file *os.File
	options := &bbolt.Options{
		Timeout: lockWait, FreelistType: bbolt.FreelistMapType,
		// The list of free pages is written too: to find it again after a write that
		// failed, bbolt walks the tree where no guard reaches.
		OpenFile: func(name string, flag int, mode os.FileMode) (f *os.File, err error) {
			file, err = os.OpenFile(name, flag, mode)
			return file, err
		},
	}
	var db *bbolt.DB
	panicked, err := recoverPanics(func() (err error) { db, err = bbolt.Open(s.path, 0o600, options); return err })
	if panicked && file != nil {
		_ = unix.Flock(int(file.Fd()), unix.LOCK_UN) // or it stays locked against ourselves
	}
	if errors.Is(err, berrors.ErrTimeout) {
		return fault.New(fault.Busy, fault.Store, "cannot open %s: another program uses it", s.path)
	}
	if err != nil {
		return err
	}
	s.current.Store(&opened{db: db, file: file})
	if !s.authoritative {
		s.setRecords(all)
		s.authoritative = true
	}
	if err := s.migrate(); err != nil {
		s.log.Warn("cannot migrate records of an earlier format; tried again at the next start", "error", s.explain(err))
	}
	s.noteFileState()
	return nil
}

// migrate brings a file of format 1 to the present format.
func (s *Store) migrate() error {
	_, err := recoverPanics(func() error {
		db := s.current.Load().db
		if err := db.View(func(tx *bbolt.Tx) error {
			if b := tx.Bucket([]byte(formatKind.Name)); b != nil && b.Get([]byte(formatKey)) != nil {
				return errPresent
			}
			return nil
		}); err != nil {
			return err
		}
		s.serial++
		return db.Update(func(tx *bbolt.Tx) error { return errors.Join(s.addHeaders(tx), s.writeFormat(tx)) })
	})
	if errors.Is(err, errPresent) {
		return nil
	}
	return err
}

var errPresent = errors.New("the format is the present one")

// addHeaders gives each bare record its header line.
func (s *Store) addHeaders(tx *bbolt.Tx) error {
	return tx.ForEach(func(kind []byte, b *bbolt.Bucket) error {
		bare := contents{}
		err := b.ForEach(func(key, value []byte) error {
			if r, err := decodeAs(string(kind), string(key), value); err == nil && r.bare {
				r.serial = s.serial
				bare[recordID{string(kind), string(key)}] = r
			}
			return nil
		})
		for name := range bare {
			err = errors.Join(err, b.Put([]byte(name.key), bare.encode(name)))
		}
		return err
	})
}

// closeFile closes the open file. After a panic bbolt may never release its own locks;
// then only the file's lock is released and the database is abandoned.
func (s *Store) closeFile(panicked bool) {
	v := s.current.Load()
	if v.db == nil {
		return
	}
	if panicked {
		_ = unix.Flock(int(v.file.Fd()), unix.LOCK_UN)
	} else if err := v.db.Close(); err != nil {
		s.log.Warn("cannot close the store's file cleanly", "error", err)
	}
	s.current.Store(&opened{})
}

// isFull reports whether there is no space left.
func isFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// changedNothing reports whether a write failed before it changed anything that counts. A failed
// sync is not harmless: nothing tells then which bytes are on disk.
func changedNothing(err error) bool {
	var write *fs.PathError
	return errors.As(err, &write) && write.Op == "write" && isFull(write.Err)
}

// explain returns an error that names the fault of the disk, and the remedy.
func (s *Store) explain(err error) error {
	dir := filepath.Dir(s.path)
	switch {
	case err == nil || fault.Is(err, fault.Busy) || fault.Is(err, fault.Unsupported):
		return err
	case isFull(err):
		return fault.Wrap(err, fault.NoCapacity, fault.Store, "the file system of %s is full; make room there and try again", dir)
	case errors.Is(err, unix.EROFS):
		return fault.Wrap(err, fault.Failed, fault.Store, "the file system of %s is read-only; find out why (dmesg), make it writable and try again", dir)
	case errors.Is(err, unix.EIO):
		return fault.Wrap(err, fault.Failed, fault.Store, "the disk of %s fails with I/O errors; check it (dmesg), then try again or run lodge store repair", dir)
	}
	return fault.Wrap(err, fault.Failed, fault.Store, "cannot use %s; run lodge store check to find out why", s.path)
}

func errNewer(path string, format int) error {
	return fault.New(fault.Unsupported, fault.Store,
		"cannot use %s: it has format %d and this Lodge knows up to %d; run the newer Lodge that wrote it", path, format, presentFormat)
}
