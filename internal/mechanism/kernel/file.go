package kernel

import (
	"errors"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// Files of the kernel are opened here with plain system calls. Package os makes the runtime
// watch each file for readiness, which files of control groups claim to report, and makes
// twice as many calls for one. The start of a guest reads and writes dozens of files.

// readUpTo gives the first bytes of a file.
func readUpTo(path string, most int64) ([]byte, error) {
	fd, err := open(path, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	content := make([]byte, 0, min(most, brief))
	for int64(len(content)) < most {
		content = slices.Grow(content, brief)
		n, err := retryEINTR(func() (int, error) { return unix.Read(fd, content[len(content):min(int64(cap(content)), most)]) })
		if err != nil {
			return content, &os.PathError{Op: "read", Path: path, Err: err}
		}
		if n == 0 {
			break
		}
		content = content[:len(content)+n]
	}
	return content, nil
}

// writeControl writes a control file of a group, which must exist.
func writeControl(group, knob, value string) error {
	path := filepath.Join(group, knob)
	fd, err := open(path, unix.O_WRONLY|unix.O_TRUNC)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if _, err := retryEINTR(func() (int, error) { return unix.Write(fd, []byte(value)) }); err != nil {
		return &os.PathError{Op: "write", Path: path, Err: err}
	}
	return nil
}

func open(path string, how int) (int, error) {
	fd, err := retryEINTR(func() (int, error) { return unix.Open(path, how|unix.O_CLOEXEC, 0) })
	if err != nil {
		return fd, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// retryEINTR repeats a call that a signal interrupted: the Go runtime sends itself many.
func retryEINTR(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
