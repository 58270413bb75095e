package guest

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/google/uuid"
)

// atATime bounds the names that are read of a folder at once.
const atATime = 1024

// removeTree removes a folder with all that lies in it. A program of a guest's may have made folders in
// each other there, a million deep: os.RemoveAll has all of them open at once, so that nobody else is served
// meanwhile, and gives up, with an error as long, where the daemon may have no more files open. So what lies
// deeper is brought up, and no folder is looked into but those in the topmost.
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

// removeIn removes what lies in a folder. What cannot be removed keeps nothing else from that.
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
		if len(failed) == len(names) { // none has gone: the next look would find the same
			return errors.Join(failed...)
		}
	}
}

// bringUp has what lies in a folder lie beside it.
func bringUp(top *os.Root, folder string) error {
	names, err := namesIn(top, folder)
	for _, name := range names {
		if err == nil {
			err = top.Rename(filepath.Join(folder, name), uuid.NewString())
		}
	}
	return err
}

// namesIn gives the first names in a folder.
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
