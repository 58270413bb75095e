package machine

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// RemoveFile removes a file that is no longer needed. A failure is logged, and the file stays.
func RemoveFile(log *slog.Logger, path string) {
	if err := RemoveNamed(path, nil); err != nil {
		log.Error("cannot remove a file", "path", path, "error", err)
	}
}

// RemoveNamed removes a file named by a client that is restricted to the folders held. A missing file is no
// error.
func RemoveNamed(path string, held []string) error {
	failpoint.Reach("guest.remove-file")
	if err := Remove(path, held); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// FileExists reports whether a file exists at a path that a user named. It follows no link out of the
// permitted folders, so that a user cannot test for files elsewhere. An error says that the path is not
// permitted, or that its file system does not answer.
func FileExists(ctx context.Context, sc scope.Scope, path string) (bool, error) {
	held := sc.FoldersFor(path)
	return fsguard.Do(ctx, path, func() (bool, error) {
		err := image.WithFile(path, held, func(at string, _ int) error { _, err := os.Lstat(at); return err })
		if fault.Is(err, fault.Denied) || fault.Is(err, fault.Invalid) {
			return false, err
		}
		return err == nil, nil
	}, nil)
}

// OpenNamed opens a file or a disk that a definition names, if the path is permitted to the client that
// named it.
func OpenNamed(ctx context.Context, sc scope.Scope, path string, mode int) (*os.File, error) {
	held := sc.FoldersFor(path)
	return fsguard.Do(ctx, path, func() (*os.File, error) { return image.OpenWithin(path, mode, held) }, func(f *os.File) { _ = f.Close() })
}

// Remove removes a file that was named by a client restricted to the folders held.
func Remove(path string, held []string) error {
	return image.WithParent(path, held, os.Remove)
}

// CloseTime is how long to wait for a file system to drop a file that is no longer needed.
const CloseTime = 2 * time.Second

// AtATime bounds how many names of a folder are read at once.
const AtATime = 1024

// RemoveTree removes a folder and everything in it. A compromised program of a guest may have nested
// folders there a million deep. os.RemoveAll would keep all of them open at once. That would leave the
// daemon no descriptors for its clients, and fail at the limit with an error as long. So deeper entries are
// moved up, and only the folders in the topmost one are opened.
func RemoveTree(path string) error {
	err := os.Remove(path)
	if errors.Is(err, syscall.ENOTEMPTY) {
		var top *os.Root
		if top, err = os.OpenRoot(path); err == nil {
			err = errors.Join(removeIn(top), top.Close())
		}
		if err == nil {
			err = os.Remove(path)
		}
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// removeIn removes everything in a folder. It continues after an entry that cannot be removed.
func removeIn(top *os.Root) error {
	for {
		names, err := namesIn(top, ".")
		if err != nil || len(names) == 0 {
			return err
		}
		var failed []error
		for _, name := range names {
			err := top.Remove(name)
			if errors.Is(err, syscall.ENOTEMPTY) {
				err = bringUp(top, name)
			}
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				failed = append(failed, err)
			}
		}
		if len(failed) == len(names) { // none was removed: the next pass would be the same
			return errors.Join(failed...)
		}
	}
}

// bringUp moves the entries of a folder up, beside the folder.
func bringUp(top *os.Root, folder string) error {
	names, err := namesIn(top, folder)
	for _, name := range names {
		if err == nil {
			err = top.Rename(filepath.Join(folder, name), uuid.NewString())
		}
	}
	return err
}

// namesIn returns the first names in a folder, at most AtATime.
func namesIn(top *os.Root, folder string) ([]string, error) {
	dir, err := top.Open(folder)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(AtATime)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return names, err
}
