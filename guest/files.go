package guest

import (
	"context"
	"errors"
	"log/slog"
	"os"

	"github.com/lodge-kvm/lodge/failpoint"
	"github.com/lodge-kvm/lodge/image"
	"github.com/lodge-kvm/lodge/mount"
)

// removeFile removes a file that is no longer wanted; one that cannot be
// removed is logged and stays.
func removeFile(log *slog.Logger, path string) {
	failpoint.Reach("guest.remove-file")
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		log.Error("cannot remove a file", "path", path, "error", err)
	}
}

// removeHeld is removeFile of one that a client has named who is held to folders.
func removeHeld(log *slog.Logger, path string, held []string) error {
	return image.At(path, held, func(at string, _ int) error { removeFile(log, at); return nil })
}

// fileExists looks for a file whose path is a user's. An error says that its file
// system does not answer.
func fileExists(ctx context.Context, path string) (bool, error) {
	return mount.Do(ctx, path, func() (bool, error) {
		_, err := os.Stat(path)
		return err == nil, nil
	}, nil)
}
