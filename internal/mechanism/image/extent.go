package image

import (
	"context"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// copyStep is how many bytes are copied between two checks for cancellation.
const copyStep = 8 << 20

// Extent reports whether a file has data at an offset, and where that data or hole ends. Data up to the
// end of the file ends at size. A file without support for holes, such as a block device, is all data.
func Extent(f *os.File, at, size int64) (data bool, end int64, err error) {
	start, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO):
		return false, size, nil // a hole up to the end
	case errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP):
		return true, size, nil
	case err != nil:
		return false, 0, fault.Wrap(err, fault.Failed, fault.Volume, "cannot find the holes of %s", f.Name())
	case start > at:
		return false, min(start, size), nil
	}
	if end, err = unix.Seek(int(f.Fd()), at, unix.SEEK_HOLE); err != nil {
		return false, 0, fault.Wrap(err, fault.Failed, fault.Volume, "cannot find the holes of %s", f.Name())
	}
	return true, min(end, size), nil
}

// eachData visits the parts of a file that hold data, in steps of at most copyStep bytes, and checks ctx
// before each.
func eachData(ctx context.Context, f *os.File, visit func(at, n, size int64) error) error {
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Volume, "cannot find the size of %s", f.Name())
	}
	for at := int64(0); at < size; {
		data, end, err := Extent(f, at, size)
		if err != nil {
			return err
		}
		for ; data && at < end; at += min(copyStep, end-at) {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err := visit(at, min(copyStep, end-at), size); err != nil {
				return err
			}
		}
		at = end
	}
	return nil
}

// CopyBytes copies a file unchanged, whatever its format, without its holes, and makes the copy at least
// as long. The target must be empty or zero. Both files are locked, so that no guest starts that would
// write to them.
func CopyBytes(ctx context.Context, from, into *os.File, progress func(float64)) error {
	release, err := lockBoth(from, into)
	if err != nil {
		return err
	}
	defer release()
	if end, err := from.Seek(0, io.SeekEnd); err != nil {
		return fault.Wrap(err, fault.Failed, fault.Volume, "cannot find the size of %s", from.Name())
	} else if st, err := into.Stat(); err != nil || st.Size() < end {
		if err := into.Truncate(end); err != nil {
			return writeFault(err, "cannot size the copy")
		}
	}
	return eachData(ctx, from, func(at, n, size int64) error {
		if err := copyRange(from, into, at, n); err != nil {
			return err
		}
		if progress != nil {
			progress(float64(at+n) / float64(size))
		}
		return nil
	})
}

func lockBoth(from, into *os.File) (release func(), err error) {
	source, err := lockToRead(from)
	if err != nil {
		return nil, err
	}
	copied, err := LockToWrite(into)
	if err != nil {
		source()
		return nil, err
	}
	return func() { copied(); source() }, nil
}

// copyRange lets the kernel copy, which may share blocks, and else copies the bytes.
func copyRange(from, into *os.File, at, n int64) error {
	for n > 0 {
		readAt, writeAt := at, at
		done, err := unix.CopyFileRange(int(from.Fd()), &readAt, int(into.Fd()), &writeAt, int(n), 0)
		if err != nil || done == 0 {
			break
		}
		at, n = at+int64(done), n-int64(done)
	}
	_, err := io.Copy(io.NewOffsetWriter(into, at), io.NewSectionReader(from, at, n))
	if err != nil {
		return writeFault(err, "cannot copy")
	}
	return nil
}

// Reflink makes a file share all blocks of another one.
func Reflink(from, into *os.File) error {
	release, err := lockBoth(from, into)
	if err != nil {
		return err
	}
	defer release()
	err = unix.IoctlFileClone(int(into.Fd()), int(from.Fd()))
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EXDEV) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTTY) {
		return fault.Wrap(err, fault.Unsupported, fault.Volume, "the file system cannot share blocks between files; copy without reflink")
	}
	return fault.Wrap(err, fault.Failed, fault.Volume, "cannot share blocks")
}

// Erase overwrites all data of a file or device with zeros or, with trim, releases its blocks. The size
// stays.
func Erase(ctx context.Context, f *os.File, trim bool, progress func(float64)) error {
	release, err := LockToWrite(f)
	if err != nil {
		return err
	}
	defer release()
	return eachData(ctx, f, func(at, n, size int64) error {
		if trim {
			err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, at, n)
			if errors.Is(err, unix.EOPNOTSUPP) {
				return fault.Wrap(err, fault.Unsupported, fault.Volume, "the storage cannot trim; wipe with zeros")
			} else if err != nil {
				return fault.Wrap(err, fault.Failed, fault.Volume, "cannot trim")
			}
		} else if err := Zero(ctx, f, at, at+n); err != nil {
			return err
		}
		if progress != nil {
			progress(float64(at+n) / float64(size))
		}
		return nil
	})
}
