package agent

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/wire"
)

// put writes a file whole or not at all, with the folders above it.
func put(c *call, f wire.File) (any, error) {
	if err := write(c.input, f); err != nil {
		return nil, fault.Wrap(err, kindOf(err), fault.Agent, "cannot write %s", f.Path)
	}
	return nil, nil
}

func write(from io.Reader, f wire.File) error {
	dir := filepath.Dir(f.Path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	part, err := os.CreateTemp(dir, ".part-*")
	if err != nil {
		return err
	}
	defer func() {
		_ = part.Close()
		_ = os.Remove(part.Name()) // gone when all went well
	}()
	if _, err := io.Copy(part, from); err != nil {
		return err
	}
	if err := part.Chmod(fs.FileMode(f.Mode).Perm()); err != nil {
		return err
	}
	if err := part.Close(); err != nil {
		return err
	}
	return os.Rename(part.Name(), f.Path)
}

// get sends a file as long as it is while it is read.
func get(c *call, f wire.File) (any, error) {
	file, err := os.Open(f.Path)
	if err != nil {
		return nil, fault.Wrap(err, kindOf(err), fault.Agent, "cannot read %s", f.Path)
	}
	defer file.Close()
	buffer := make([]byte, wire.MaxPayload)
	if _, err := io.CopyBuffer(c.outlets[wire.Output], struct{ io.Reader }{file}, buffer); err != nil {
		return nil, fault.Wrap(err, kindOf(err), fault.Agent, "cannot read %s", f.Path)
	}
	return nil, c.outlets[wire.Output].Close()
}

func kindOf(err error) fault.Kind {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fault.NotFound
	case errors.Is(err, fs.ErrPermission):
		return fault.Denied
	}
	return fault.Failed
}
