package guest

import (
	"context"
	"errors"
	"log/slog"
	"os"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// removeFile removes a file that is no longer needed. A failure is logged, and the file stays.
func removeFile(log *slog.Logger, path string) {
	if err := removeNamed(path, nil); err != nil {
		log.Error("cannot remove a file", "path", path, "error", err)
	}
}

// removeNamed removes a file named by a client that is restricted to the folders held. A missing file is no
// error.
func removeNamed(path string, held []string) error {
	failpoint.Reach("guest.remove-file")
	if err := remove(path, held); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// fileExists reports whether a file exists at a path that a user named. It follows no link out of the
// permitted folders, so that a user cannot test for files elsewhere. An error says that the path is not
// permitted, or that its file system does not answer.
func fileExists(ctx context.Context, sc scope.Scope, path string) (bool, error) {
	held := sc.FoldersOf(path)
	return fsguard.Do(ctx, path, func() (bool, error) {
		err := image.WithFile(path, held, func(at string, _ int) error { _, err := os.Lstat(at); return err })
		if fault.Is(err, fault.Denied) || fault.Is(err, fault.Invalid) {
			return false, err
		}
		return err == nil, nil
	}, nil)
}
