// Package atomicfile replaces files in one step, so that a daemon that is killed
// at any moment leaves either the old one or the new one.
//
// Nothing is synced: these are files of directories that do not outlive a boot.
// What must outlive one lies in the store.
package atomicfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
)

// Half is the end of the name of a file that is to take another's place.
const Half = ".new"

// WriteJSON replaces a file by a value as JSON. Others than root may not read it.
func WriteJSON(path string, value any) error {
	if err := WriteHalf(path, value); err != nil {
		return err
	}
	return Replace(path)
}

// WriteHalf writes what is to take a file's place. This needs all the room that there has to be.
func WriteHalf(path string, value any) error {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false) // most of it is XML
	if err := e.Encode(value); err != nil {
		return err
	}
	if err := os.WriteFile(path+Half, text.Bytes(), 0o600); err != nil {
		_ = os.Remove(path + Half) // or the next try writes over it
		return err
	}
	failpoint.Reach("journal.write")
	return nil
}

// Replace puts what WriteHalf wrote in the file's place.
func Replace(path string) error {
	if err := os.Rename(path+Half, path); err != nil {
		return err
	}
	failpoint.Reach("journal.written")
	return nil
}

// ReadJSON reads what WriteJSON wrote; nil when it never did.
func ReadJSON[T any](path string) (*T, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	value := new(T)
	if err := json.Unmarshal(data, value); err != nil {
		return nil, fmt.Errorf("%s is damaged: %w", path, err)
	}
	return value, nil
}
