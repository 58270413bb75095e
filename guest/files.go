package guest

import (
	"context"
	"errors"
	"log/slog"
	"os"

	"github.com/lodge-kvm/lodge/failpoint"
	"github.com/lodge-kvm/lodge/mount"
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

// fileExists looks for a file whose path is a user's. An error says that its file
// system does not answer.
func fileExists(ctx context.Context, path string) (bool, error) {
	return mount.Do(ctx, path, func() (bool, error) {
		_, err := os.Stat(path)
		return err == nil, nil
	}, nil)
}
