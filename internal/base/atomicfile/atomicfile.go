// Package atomicfile replaces files by rename, so that a daemon that is killed
// at any moment leaves either the old file or the new one.
//
// Nothing is synced: these files lie in directories that do not outlive a boot.
// Data that must outlive a boot lies in the store.
package atomicfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
)

// Half is the suffix of a file that will replace another one.
const Half = ".new"

// WriteJSON replaces a file by a value as JSON. Only root may read it.
func WriteJSON(path string, value any) error {
	if err := WriteHalf(path, value); err != nil {
		return err
	}
	return Replace(path)
}

// WriteHalf writes the new file beside the old one. No later step needs disk space.
func WriteHalf(path string, value any) error {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false) // most of it is XML
	if err := e.Encode(value); err != nil {
		return err
	}
	if err := os.WriteFile(path+Half, text.Bytes(), 0o600); err != nil {
		_ = os.Remove(path + Half) // otherwise the next try overwrites it
		return err
	}
	failpoint.Reach("journal.write")
	return nil
}

// Replace renames the file of WriteHalf over the old one.
func Replace(path string) error {
	if err := os.Rename(path+Half, path); err != nil {
		return err
	}
	failpoint.Reach("journal.written")
	return nil
}

// ReadJSON reads a file of WriteJSON; nil if there is none.
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
