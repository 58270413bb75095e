package guest

import (
	"errors"
	"log/slog"
	"os"
)

// removeFile removes a file that is no longer wanted; one that cannot be
// removed is logged and stays.
func removeFile(log *slog.Logger, path string) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		log.Error("cannot remove a file", "path", path, "error", err)
	}
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
