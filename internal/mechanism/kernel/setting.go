package kernel

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// set writes a setting of the kernel and returns the content of its file afterwards. The kernel may
// round a value, or give less than was asked for: the caller compares. An error names the file and
// its content.
func (r Root) set(value string, elem ...string) (held string, err error) {
	dir, name := filepath.Split(r.path(elem...))
	err = writeControl(dir, name, value)
	return r.attr(elem...), r.setFault(err, value, elem...)
}

// setExactly is set for a setting that the kernel either takes as it is or refuses. If the file holds
// something else afterwards, another program writes it, too.
func (r Root) setExactly(value string, elem ...string) error {
	held, err := r.set(value, elem...)
	if err == nil && chosen(held) != value {
		err = fault.New(fault.Busy, fault.Host, "/%s was set to %.64q and holds %.64q: another program writes it too; stop one of the two",
			filepath.Join(elem...), value, held)
	}
	return err
}

// setFault says why a setting was not taken, and what its file holds instead.
func (r Root) setFault(err error, value string, elem ...string) error {
	if err == nil {
		return nil
	}
	file := "/" + filepath.Join(elem...)
	kind, remedy := fault.Failed, "see the kernel's log"
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fault.Wrap(err, fault.Unsupported, fault.Host, "cannot set %s to %.64q: this kernel does not have it", file, value)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EROFS):
		kind, remedy = fault.Denied, "only root of the host can write it"
	case errors.Is(err, unix.EBUSY):
		kind, remedy = fault.Busy, "its subject is in use"
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ERANGE):
		kind, remedy = fault.Invalid, "give it a value that the kernel's documentation allows"
	}
	return fault.Wrap(err, kind, fault.Host, "cannot set %s to %.64q, it holds %.64q: %s", file, value, r.attr(elem...), remedy)
}

// chosen is the value that is in force in a file that lists all values: "none [scan-time]". Of any
// other file it is the content.
func chosen(text string) string {
	if _, rest, listed := strings.Cut(text, "["); listed {
		if value, _, closed := strings.Cut(rest, "]"); closed {
			return value
		}
	}
	return text
}
