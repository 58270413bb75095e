package guest

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/google/uuid"
)

// atATime bounds how many names of a folder are read at once.
const atATime = 1024

// removeTree removes a folder and everything in it. A compromised program of a guest may have nested
// folders there a million deep. os.RemoveAll would keep all of them open at once. That would leave the
// daemon no descriptors for its clients, and fail at the limit with an error as long. So deeper entries are
// moved up, and only the folders in the topmost one are opened.
func removeTree(path string) error {
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

// removeIn removes everything in a folder. It goes on after an entry that cannot be removed.
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

// namesIn returns the first names in a folder, at most atATime.
func namesIn(top *os.Root, folder string) ([]string, error) {
	dir, err := top.Open(folder)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(atATime)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return names, err
}
