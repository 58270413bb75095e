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
)

// removeFile removes a file that is no longer wanted; one that cannot be
// removed is logged and stays.
func removeFile(log *slog.Logger, path string) {
	if err := removeNamed(path, nil); err != nil {
		log.Error("cannot remove a file", "path", path, "error", err)
	}
}

// removeNamed removes a file that a client has named who is held to folders, and that is
// no longer wanted. One that is gone already is no error.
func removeNamed(path string, held []string) error {
	failpoint.Reach("guest.remove-file")
	if err := remove(path, held); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// fileExists looks for a file whose path is a user's, where that may lead: whoever put a link
// there is not told what lies elsewhere. An error says that it may not lead there, or that its
// file system does not answer.
func fileExists(ctx context.Context, path string) (bool, error) {
	held := heldTo(ctx, path)
	return fsguard.Do(ctx, path, func() (bool, error) {
		err := image.WithFile(path, held, func(at string, _ int) error { _, err := os.Lstat(at); return err })
		if fault.Is(err, fault.Denied) || fault.Is(err, fault.Invalid) {
			return false, err
		}
		return err == nil, nil
	}, nil)
}
