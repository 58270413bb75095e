package filelabel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/atomicfile"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/sandbox"
	"github.com/lodge-kvm/lodge/internal/mechanism/seclabel"
)

// On a host that enforces SELinux or AppArmor each running guest has a label of its own. Under SELinux the
// guest's files are labelled too, including those that are passed open, and get their old labels back
// later. Every change is journalled in the data directory first, because file labels outlive a reboot.
// Under AppArmor the journal holds what the guest's profile allows.

// Labels are the labels of a running guest. One goroutine at a time works on them (see inTurn). A guest
// without labels has a nil *Labels, on which all methods do nothing.
type Labels struct {
	Host   *seclabel.Host // nil: labels are off now, and old ones are only restored
	Root   kernel.Root
	Leases *LabelLeases
	Log    *slog.Logger
	UUID   string
	Path   string // the journal's path
	Turn   chan struct{}
	Labelled
}

// Labelled is the content of the journal.
type Labelled struct {
	seclabel.Guest
	// Files are the files with a changed label, or with one that is about to change.
	Files []LeasedFile `json:",omitempty"`
	// Profile is what the AppArmor profile allows the guest.
	Profile *seclabel.Profile `json:",omitempty"`
}

// LeasedFile is a file, or a directory with its files, with a label that was changed for the guest.
type LeasedFile struct {
	FileID
	Path          string
	Before, After string
	For           string // the device that uses it; empty: the guest itself
	// Other is another label that the guest gave the file, for another use. Empty: none.
	Other string `json:",omitempty"`
}

// LabelSuffix ends the name of a journal of labels.
const LabelSuffix = ".json"

// inTurn calls do while no other goroutine works on the guest's labels. It waits until ctx ends.
func (l *Labels) inTurn(ctx context.Context, do func() error) error {
	if l == nil {
		return nil
	}
	select {
	case <-l.Turn:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { l.Turn <- struct{}{} }()
	return do()
}

// LabelOf returns the label of programs in the guest's sandbox.
func (l *Labels) LabelOf() sandbox.Label {
	if l == nil || l.Host == nil {
		return sandbox.Label{}
	}
	if l.Model == seclabel.AppArmor {
		return sandbox.Label{Program: "exec " + l.Process, Exec: l.Host.Exec} // AppArmor expects a command
	}
	return sandbox.Label{Program: l.Process, Exec: l.Host.Exec, Files: l.Own}
}

// Helper returns the label of programs that serve the guest's QEMU. Under SELinux it is the guest's own
// label, which all processes of the guest share. An AppArmor profile is for QEMU only, so these programs
// get none.
func (l *Labels) Helper() sandbox.Label {
	if l == nil || l.Model != seclabel.SELinux {
		return sandbox.Label{}
	}
	return l.LabelOf()
}

// Sockets calls do so that the sockets it makes have the guest's label.
func (l *Labels) Sockets(do func() error) error {
	if l == nil || l.Host == nil || l.Model != seclabel.SELinux {
		return do()
	}
	return l.Root.WithSocketLabel(l.Process, do)
}

// WriteJournal writes the journal and syncs it to the disk. File labels outlive a loss of power, so the labels from
// before must, too.
func (l *Labels) WriteJournal() error {
	text, err := json.Marshal(&l.Labelled)
	if err == nil && len(text) > MaxJournal {
		err = fault.New(fault.NoCapacity, fault.Host, "the label journal of the guest is too large: %d bytes, at most %d; use fewer files or shorter paths", len(text), MaxJournal)
	}
	if err != nil {
		return err
	}
	err = os.MkdirAll(filepath.Dir(l.Path), 0o700)
	if err == nil {
		err = writeSynced(l.Path, text)
	}
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot write the label journal of the guest")
}

// writeSynced replaces a file atomically and syncs it and its folder.
func writeSynced(path string, text []byte) error {
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
	dir, err := os.Open(filepath.Dir(path)) // the new name must be on the disk, too
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// FileLabel is an open file and the label that a device needs on it.
type FileLabel struct {
	File  *os.File
	Label string
	By    string
}

// LeaseUser names the user of a file in the leases that all guests share.
func (l *Labels) LeaseUser(by string) string { return l.UUID + " " + by }

// Lend labels files and journals the labels from before. A file on a file system without labels is logged,
// returned as a remark and left unchanged.
func (l *Labels) Lend(ctx context.Context, all []FileLabel) (remarks []string, err error) {
	if l == nil || l.Model != seclabel.SELinux {
		return nil, nil
	}
	err = l.inTurn(ctx, func() error {
		var files []*os.File
		for _, w := range all {
			one, err := l.addFile(ctx, w)
			if fault.Is(err, fault.Unsupported) {
				remarks = append(remarks, unlabelled(w.File, err))
				continue
			}
			if err != nil {
				return errors.Join(err, l.WriteJournal())
			}
			if one != nil {
				l.Files, files = append(l.Files, *one), append(files, w.File)
			}
		}
		if err := l.WriteJournal(); err != nil {
			return err
		}
		for i, f := range files {
			after := l.Files[len(l.Files)-len(files)+i].After
			err := fsguard.RunLong(ctx, f.Name(), func() error { return relabel(f, after) })
			if fault.Is(err, fault.Unsupported) {
				remarks = append(remarks, unlabelled(f, err))
			} else if err != nil {
				return err
			}
		}
		return nil
	})
	for _, r := range remarks {
		l.Log.Warn("cannot label a file of the guest", "cause", r)
	}
	return remarks, err
}

// addFile enters a file in the leases. It returns nil if the file needs no change.
func (l *Labels) addFile(ctx context.Context, w FileLabel) (*LeasedFile, error) {
	if w.Label == "" {
		return nil, nil
	}
	at, id, err := PathAndID(w.File)
	if err != nil || at == "" {
		return nil, err
	}
	if slices.ContainsFunc(l.Files, func(f LeasedFile) bool { return f.FileID == id && f.For == w.By }) {
		return nil, nil
	}
	before, err := l.Leases.lend(ctx, id, l.LeaseUser(w.By), w.Label, func() (string, error) {
		return fsguard.Do(ctx, at, func() (string, error) { return kernel.FileLabel(w.File) }, nil)
	})
	if fault.Is(err, fault.Unsupported) {
		return nil, err
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.Of(err), fault.Host, "cannot label %s", at)
	}
	return &LeasedFile{FileID: id, Path: at, Before: before, After: w.Label, For: w.By}, nil
}

// PathAndID returns the real path and identity of an open file. The path is empty unless it is a regular
// file, a block device or a directory: no other file has a label that outlives it.
func PathAndID(f *os.File) (path string, id FileID, err error) {
	err = withDescriptor(f, func(fd int) (err error) {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		id = FileID{st.Dev, st.Ino}
		if kind := st.Mode & unix.S_IFMT; kind == unix.S_IFREG || kind == unix.S_IFBLK || kind == unix.S_IFDIR {
			path, err = os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
		}
		return err
	})
	return path, id, fault.Wrap(err, fault.Failed, fault.Host, "cannot look at %s", f.Name())
}

// unlabelled returns the remark that a file keeps no label, with its real path.
func unlabelled(f *os.File, why error) string {
	at, _, err := PathAndID(f)
	if err != nil || at == "" {
		at = f.Name()
	}
	return fmt.Sprintf("%s has no label of its own: %v", at, why)
}

// withDescriptor calls do with the file's descriptor. It leaves the file's blocking mode unchanged, which
// Fd would not.
func withDescriptor(f *os.File, do func(fd int) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = raw.Control(func(fd uintptr) { inner = do(int(fd)) })
	return errors.Join(err, inner)
}

// relabel sets the label of a file, or of a directory and the files in it.
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

// eachIn opens each regular file in one of the daemon's own directories and calls do with it.
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

// GiveBack restores the labels of the files that only this device used, and removes its permissions from
// the AppArmor profile.
func (l *Labels) GiveBack(ctx context.Context, by string) error {
	if by == "" { // a drive without a medium; an empty name would mean the files of the guest itself
		return nil
	}
	return l.inTurn(ctx, func() error {
		n, all := len(l.Files), owners(by)
		err := l.restoreLabels(ctx, func(f LeasedFile) bool { return slices.Contains(all, f.For) })
		if len(l.Files) != n {
			err = errors.Join(err, l.WriteJournal())
		}
		return errors.Join(err, l.removeRules(ctx, by))
	})
}

// End restores all labels and frees the guest's own label when the guest has ended.
func (l *Labels) End(ctx context.Context) error {
	return l.inTurn(ctx, func() error {
		err := l.restoreLabels(ctx, func(LeasedFile) bool { return true })
		if l.Profile != nil {
			err = errors.Join(err, l.unloadProfile())
		}
		if len(l.Files) > 0 { // the next daemon tries again
			return errors.Join(err, l.WriteJournal())
		}
		if l.Host != nil {
			l.Host.Release(l.Guest, l.UUID)
		}
		if e := os.Remove(l.Path); e != nil && !errors.Is(e, os.ErrNotExist) {
			err = errors.Join(err, e)
		}
		return err
	})
}

// restoreLabels restores the labels of the chosen files and drops them from the journal.
func (l *Labels) restoreLabels(ctx context.Context, which func(LeasedFile) bool) error {
	var failed []error
	l.Files = slices.DeleteFunc(l.Files, func(f LeasedFile) bool {
		if !which(f) {
			return false
		}
		err := l.Leases.giveBack(ctx, f.FileID, l.LeaseUser(f.For), func() error {
			return fsguard.Run(ctx, f.Path, func() error { return f.restoreLabel() })
		})
		if err != nil {
			failed = append(failed, fmt.Errorf("cannot restore the label of %s: %w", f.Path, err))
		}
		return err == nil
	})
	return errors.Join(failed...)
}

// restoreLabel restores a file's label, unless the label was changed since, or another file has its path.
func (f LeasedFile) restoreLabel() error {
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
			return nil // its label was never changed
		}
		return err
	}
	err = restore(file)
	if kind == unix.S_IFDIR {
		err = errors.Join(err, eachIn(f.Path, restore))
	}
	return err
}

// MaxJournal bounds the size of a journal, in bytes.
const MaxJournal = 16 << 20
