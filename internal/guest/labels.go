package guest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/atomicfile"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/sandbox"
	"github.com/lodge-kvm/lodge/internal/mechanism/seclabel"
)

// Where the host enforces SELinux or AppArmor each guest that runs has a label of its
// own. Under SELinux its files get labels too, also those that are handed over open,
// and get back what they had before: what is about to be changed is journalled in the
// data directory, since labels of files outlive a reboot. Under AppArmor the journal
// holds what the guest's profile allows.

// labels are those of a running guest. One goroutine at a time works on them, whose
// turn it is; a guest without labels has none, and everything is done to nothing.
type labels struct {
	host *seclabel.Host // nil: labels are off by now, and are only given back
	root kernel.Root
	book *lendings
	log  *slog.Logger
	uuid string
	path string // of the journal
	turn chan struct{}
	labelled
}

// labelled is the journal.
type labelled struct {
	seclabel.Guest
	// Files are those whose label was changed, or is about to be.
	Files []lent `json:",omitempty"`
	// Profile is what AppArmor allows the guest.
	Profile *seclabel.Profile `json:",omitempty"`
}

// lent is a file, or a directory with the files in it, whose label the guest changed.
type lent struct {
	fileID
	Path          string
	Before, After string
	For           string // the device that it is for; empty: the guest
	// Other is another label that the guest has given it, for another use; empty: none.
	Other string `json:",omitempty"`
}

func (r *Registry) labelDir() string { return filepath.Join(r.DataDir, "labels") }

const labelSuffix = ".json"

func (r *Registry) newLabels(uuid string, g seclabel.Guest, log *slog.Logger) *labels {
	l := &labels{
		host: r.Labels, book: &r.lent, log: log, uuid: uuid, path: filepath.Join(r.labelDir(), uuid+labelSuffix),
		turn: make(chan struct{}, 1), labelled: labelled{Guest: g}, root: r.Kernel,
	}
	if l.host != nil {
		l.root = l.host.Root
	}
	l.turn <- struct{}{}
	return l
}

// inTurn works on the labels when nobody else of the guest's does.
func (l *labels) inTurn(ctx context.Context, do func() error) error {
	if l == nil {
		return nil
	}
	select {
	case <-l.turn:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { l.turn <- struct{}{} }()
	return do()
}

// of is the label of programs in chambers of the guest's.
func (l *labels) of() sandbox.Label {
	if l == nil || l.host == nil {
		return sandbox.Label{}
	}
	if l.Model == seclabel.AppArmor {
		return sandbox.Label{Program: "exec " + l.Process, Exec: l.host.Exec} // a command, in AppArmor's words
	}
	return sandbox.Label{Program: l.Process, Exec: l.host.Exec, Files: l.Own}
}

// helper is the label of programs that serve the guest's QEMU: SELinux's, whose
// processes of one guest are one to each other. A profile is QEMU's alone.
func (l *labels) helper() sandbox.Label {
	if l == nil || l.Model != seclabel.SELinux {
		return sandbox.Label{}
	}
	return l.of()
}

// sockets has do make sockets that are the guest's.
func (l *labels) sockets(do func() error) error {
	if l == nil || l.host == nil || l.Model != seclabel.SELinux {
		return do()
	}
	return l.root.WithSocketLabel(l.Process, do)
}

// keep writes the journal, through to the disk: a label of a file outlives a loss of
// power, and so must what it was before.
func (l *labels) keep() error {
	text, err := json.Marshal(&l.labelled)
	if err == nil && len(text) > maxJournal {
		err = fault.New(fault.NoCapacity, fault.Host, "what is labelled for the guest has too many files of too long names: %d bytes of them, and at most %d", len(text), maxJournal)
	}
	if err != nil {
		return err
	}
	err = os.MkdirAll(filepath.Dir(l.path), 0o700)
	if err == nil {
		err = writeThrough(l.path, text)
	}
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot keep what is labelled for the guest")
}

func writeThrough(path string, text []byte) error {
	f, err := os.OpenFile(path+atomicfile.Half, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(path+atomicfile.Half, path)
	}
	if err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path)) // the name has to last, too
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// loan is an open file and the label that a device needs it to have.
type loan struct {
	file  *os.File
	label string
	by    string
}

// user names who uses a file, in the book of all guests.
func (l *labels) user(by string) string { return l.uuid + " " + by }

// lend labels files, and remembers what they were. What lies on a file system that
// keeps no labels is told and left as it is.
func (l *labels) lend(ctx context.Context, all []loan) (remarks []string, err error) {
	if l == nil || l.Model != seclabel.SELinux {
		return nil, nil
	}
	err = l.inTurn(ctx, func() error {
		var files []*os.File
		for _, w := range all {
			one, err := l.note(ctx, w)
			if fault.Is(err, fault.Unsupported) {
				remarks = append(remarks, unlabelled(w.file, err))
				continue
			}
			if err != nil {
				return errors.Join(err, l.keep())
			}
			if one != nil {
				l.Files, files = append(l.Files, *one), append(files, w.file)
			}
		}
		if err := l.keep(); err != nil {
			return err
		}
		for i, f := range files {
			after := l.Files[len(l.Files)-len(files)+i].After
			err := fsguard.Outlast(ctx, f.Name(), func() error { return relabel(f, after) })
			if fault.Is(err, fault.Unsupported) {
				remarks = append(remarks, unlabelled(f, err))
			} else if err != nil {
				return err
			}
		}
		return nil
	})
	for _, r := range remarks {
		l.log.Warn("a file of the guest's cannot be labelled", "cause", r)
	}
	return remarks, err
}

// note enters a file in the books; nil: there is nothing to do about it.
func (l *labels) note(ctx context.Context, w loan) (*lent, error) {
	if w.label == "" {
		return nil, nil
	}
	at, id, err := whereIs(w.file)
	if err != nil || at == "" {
		return nil, err
	}
	if slices.ContainsFunc(l.Files, func(f lent) bool { return f.fileID == id && f.For == w.by }) {
		return nil, nil
	}
	before, err := l.book.lend(ctx, id, l.user(w.by), w.label, func() (string, error) {
		return fsguard.Do(ctx, at, func() (string, error) { return kernel.FileLabel(w.file) }, nil)
	})
	if fault.Is(err, fault.Unsupported) {
		return nil, err
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.Of(err), fault.Host, "cannot label %s", at)
	}
	return &lent{fileID: id, Path: at, Before: before, After: w.label, For: w.by}, nil
}

// whereIs gives the real path of an open file and what it is; "" for what is neither
// a file, a block device nor a directory, and has no label that would outlive it.
func whereIs(f *os.File) (path string, id fileID, err error) {
	err = withDescriptor(f, func(fd int) (err error) {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		id = fileID{st.Dev, st.Ino}
		if kind := st.Mode & unix.S_IFMT; kind == unix.S_IFREG || kind == unix.S_IFBLK || kind == unix.S_IFDIR {
			path, err = os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
		}
		return err
	})
	return path, id, fault.Wrap(err, fault.Failed, fault.Host, "cannot look at %s", f.Name())
}

// unlabelled says which file keeps no label, by its real path.
func unlabelled(f *os.File, why error) string {
	at, _, err := whereIs(f)
	if err != nil || at == "" {
		at = f.Name()
	}
	return fmt.Sprintf("%s has no label of its own: %v", at, why)
}

// withDescriptor leaves the file in the blocking mode that it is in.
func withDescriptor(f *os.File, do func(fd int) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = raw.Control(func(fd uintptr) { inner = do(int(fd)) })
	return errors.Join(err, inner)
}

// relabel gives a file, or a directory with the files in it, a label.
func relabel(f *os.File, to string) error {
	if err := kernel.SetFileLabel(f, to); err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil || !info.IsDir() {
		return err
	}
	return eachIn(f.Name(), func(one *os.File) error { return kernel.SetFileLabel(one, to) })
}

// eachIn opens the files that lie in a directory of the daemon's own.
func eachIn(dir string, do func(*os.File) error) error {
	entries, err := os.ReadDir(dir)
	var failed []error
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue
		}
		f, err := os.OpenFile(filepath.Join(dir, e.Name()), unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err == nil {
			err = errors.Join(do(f), f.Close())
		}
		failed = append(failed, err)
	}
	return errors.Join(append(failed, err)...)
}

// giveBack gives files that a device was for back as they were; what AppArmor allowed
// for it is forbidden again.
func (l *labels) giveBack(ctx context.Context, by string) error {
	if by == "" { // a drive without a medium: what is for nobody in particular is the guest's
		return nil
	}
	return l.inTurn(ctx, func() error {
		n, all := len(l.Files), owners(by)
		err := l.putBack(ctx, func(f lent) bool { return slices.Contains(all, f.For) })
		if len(l.Files) != n {
			err = errors.Join(err, l.keep())
		}
		return errors.Join(err, l.forbid(ctx, by))
	})
}

// end gives everything back when the guest has ended, and what it was called.
func (l *labels) end(ctx context.Context) error {
	return l.inTurn(ctx, func() error {
		err := l.putBack(ctx, func(lent) bool { return true })
		if l.Profile != nil {
			err = errors.Join(err, l.unload())
		}
		if len(l.Files) > 0 { // what could not be put back is tried again by the next daemon
			return errors.Join(err, l.keep())
		}
		if l.host != nil {
			l.host.Release(l.Guest, l.uuid)
		}
		if e := os.Remove(l.path); e != nil && !errors.Is(e, os.ErrNotExist) {
			err = errors.Join(err, e)
		}
		return err
	})
}

// putBack gives files back, and forgets those.
func (l *labels) putBack(ctx context.Context, which func(lent) bool) error {
	var failed []error
	l.Files = slices.DeleteFunc(l.Files, func(f lent) bool {
		if !which(f) {
			return false
		}
		err := l.book.giveBack(ctx, f.fileID, l.user(f.For), func() error {
			return fsguard.Run(ctx, f.Path, func() error { return f.putBack() })
		})
		if err != nil {
			failed = append(failed, fmt.Errorf("cannot give %s its label back: %w", f.Path, err))
		}
		return err == nil
	})
	return errors.Join(failed...)
}

// putBack gives a file the label that it had, unless somebody gave it another one
// meanwhile, or something else has its name.
func (f lent) putBack() error {
	at, err := unix.Open(f.Path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(at) //nolint:errcheck // an O_PATH descriptor has nothing to lose
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil {
		return err
	}
	kind := st.Mode & unix.S_IFMT
	if st.Ino != f.Inode || kind != unix.S_IFREG && kind != unix.S_IFBLK && kind != unix.S_IFDIR {
		return nil
	}
	file, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", at), unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	restore := func(one *os.File) error {
		now, err := kernel.FileLabel(one)
		if err == nil && (now == f.After || f.Other != "" && now == f.Other) {
			err = kernel.SetFileLabel(one, f.Before)
		}
		if fault.Is(err, fault.Unsupported) {
			return nil // it was never changed
		}
		return err
	}
	err = restore(file)
	if kind == unix.S_IFDIR {
		err = errors.Join(err, eachIn(f.Path, restore))
	}
	return err
}

// loadLabels reads the journals that earlier daemons left, before any guest is
// adopted: files may be shared by guests that run and guests that have ended.
func (r *Registry) loadLabels() {
	paths, err := filepath.Glob(filepath.Join(r.labelDir(), "*"+labelSuffix))
	if err != nil {
		return // only for a pattern that is wrong
	}
	r.leftLabels = map[string]*labels{}
	for _, path := range paths {
		uuid := strings.TrimSuffix(filepath.Base(path), labelSuffix)
		l, err := r.readLabels(uuid, path)
		if err != nil {
			r.log.Error("files of a guest may keep a label that is not theirs", "journal", path, "error", err)
			continue
		}
		for _, f := range l.Files {
			r.lent.restore(f.fileID, l.user(f.For), f.Before, f.After)
		}
		if r.Labels != nil {
			r.Labels.Reserve(l.Guest, uuid)
		}
		r.leftLabels[uuid] = l
	}
}

// maxJournal bounds a journal, in bytes.
const maxJournal = 16 << 20

func (r *Registry) readLabels(uuid, path string) (*labels, error) {
	info, err := os.Stat(path)
	if err == nil && info.Size() > maxJournal {
		err = errors.New("it is too large")
	}
	var text []byte
	if err == nil {
		text, err = os.ReadFile(path)
	}
	l := r.newLabels(uuid, seclabel.Guest{}, r.log.With("uuid", uuid))
	if err == nil {
		err = json.NewDecoder(bytes.NewReader(text)).Decode(&l.labelled)
	}
	return l, err
}

// reholdLabels has an adopted guest keep its labels.
func (r *Registry) reholdLabels(run *run) {
	if run.labels = r.leftLabels[run.UUID]; run.labels != nil {
		run.hold("label", run.labels.end)
	}
}

// sweepLabels gives back what guests left that a reboot ended, or that ended before
// anything else was known of them. It comes after all adoptions.
func (r *Registry) sweepLabels() {
	ctx, stop := context.WithTimeout(r.life, releaseLimit)
	defer stop()
	for uuid, l := range r.leftLabels {
		if g := r.byUUID[uuid]; g != nil && g.run != nil && g.run.labels == l {
			continue
		}
		if pid, err := r.emulatorIn(r.guestDir(uuid)); pid != 0 || err != nil {
			continue
		}
		if err := l.end(ctx); err != nil {
			l.log.Error("files of a guest that has ended may keep its label", "error", err)
		}
	}
	r.leftLabels = nil
}
