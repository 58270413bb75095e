package savestate

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// checkImagePath refuses paths where no image can be written, and paths that the journal cannot hold. The
// journal is JSON, which would replace bytes that are not UTF-8, and the next daemon could not find the
// image.
func checkImagePath(verb, path string) error {
	switch {
	case !filepath.IsAbs(path) || !utf8.ValidString(path):
		return fault.New(fault.Invalid, fault.Call, "cannot %s to %q: the path must be absolute and valid UTF-8", verb, path)
	case image.InDev(filepath.Clean(path)): // it would replace a device node, and lie in the host's memory
		return fault.New(fault.Unsupported, fault.Call, "cannot %s to %q: images are files, and /dev holds devices and lies in memory; choose another path", verb, path)
	}
	return nil
}

// createImage creates the file of an image, readable by its owner only, because guest memory holds secrets.
// It reuses no other user's file and follows no link: a file at that path was left by a killed daemon, or
// is a trap. held lists the folders to which the client that named the path is restricted.
func createImage(ctx context.Context, path string, held []string) (*os.File, error) {
	return fsguard.Do(ctx, path, func() (f *os.File, err error) {
		err = image.WithParent(path, held, func(at string) error {
			how := 0
			if !isOwnFile(at) {
				_ = unix.Unlink(at) // if it cannot be removed, the open fails
				how = os.O_CREATE | os.O_EXCL
			}
			if f, err = os.OpenFile(at, how|os.O_RDWR|unix.O_NOFOLLOW, 0o600); err == nil {
				err = TruncateLocked(f, at)
			}
			return err
		})
		if err != nil && f != nil {
			_, f = f.Close(), nil // the file stays: it belongs to another writer
		}
		return f, fault.Wrap(err, machine.FailureKind(err), fault.Host, "cannot make the image file %s", path)
	}, func(f *os.File) { _ = errors.Join(machine.RemovePermitted(path, held), f.Close()) })
}

// TruncateLocked truncates the file for a new image and locks it until it is closed, also by QEMU. Without the lock
// two guests could write into one image. at is the file's path, unless another writer has just completed
// and moved it.
func TruncateLocked(f *os.File, at string) error {
	var s, there unix.Stat_t
	busy := errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK) // some file systems have no locks
	if err := unix.Fstat(int(f.Fd()), &s); err != nil {
		return err
	}
	if err := unix.Lstat(at, &there); busy || err != nil || there.Dev != s.Dev || there.Ino != s.Ino {
		return fault.New(fault.Busy, fault.Host, "another image is being written to the same path; wait for its end, or choose another path")
	}
	if s.Mode&unix.S_IFMT != unix.S_IFREG { // a pipe
		return nil
	}
	return f.Truncate(0)
}

// isOwnFile reports whether a file belongs to the daemon and no other user can open it.
func isOwnFile(path string) bool {
	var s unix.Stat_t
	err := unix.Lstat(path, &s)
	return err == nil && int(s.Uid) == os.Geteuid() && s.Nlink == 1 && s.Mode&0o077 == 0
}

// WriteImage writes an image beside its final path, with fill and then complete. It renames the image when
// it is complete, so that an incomplete one is never taken for a complete one. It does not wait for a file
// system that hangs once ctx ends.
func WriteImage(ctx context.Context, sc scope.Scope, path string, fill, complete func(*os.File) error) error {
	f, err := createImage(ctx, PartialPath(path), sc.FoldersFor(path))
	if err != nil {
		return err
	}
	return fillImage(ctx, sc, f, path, fill, complete)
}

// fillImage is WriteImage for a file that exists already beside the image's path. It closes the file.
func fillImage(ctx context.Context, sc scope.Scope, f *os.File, path string, fill, complete func(*os.File) error) error {
	beside, held := PartialPath(path), sc.FoldersFor(path)
	failpoint.Reach("image.created")
	err := fill(f)
	if err == nil {
		failpoint.Reach("image.filled")
		err = fsguard.RunLong(ctx, beside, func() error { return complete(f) })
	}
	if err == nil {
		failpoint.Reach("image.complete")
		err = placeImage(ctx, path, held)
		failpoint.Reach("image.placed")
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), machine.CloseTimeout)
	defer stop()
	_ = fsguard.RunLong(ctx, beside, func() error {
		if err != nil {
			return errors.Join(machine.RemovePermitted(beside, held), f.Close())
		}
		return f.Close() // everything was synced before
	})
	return err
}

// placeImage renames a complete image to its final path and syncs the folder, so that the image survives a
// loss of power. The guest ends next.
func placeImage(ctx context.Context, path string, held []string) error {
	var folder *os.File
	err := fsguard.Run(ctx, path, func() error {
		return image.WithParent(path, held, func(at string) error {
			if err := os.Rename(PartialPath(at), at); err != nil {
				return err
			}
			folder, _ = os.Open(filepath.Dir(at)) // an unreadable folder is left to its file system
			return nil
		})
	})
	if err != nil || folder == nil {
		return err
	}
	err = fsguard.RunLong(ctx, path, func() error {
		defer func() { _ = folder.Close() }()
		return folder.Sync()
	})
	if errors.Is(err, unix.EINVAL) {
		return nil // this file system cannot sync folders
	}
	if err != nil {
		return errors.Join(err, machine.RemovePermitted(path, held))
	}
	return nil
}

// dropPageCache tells the kernel that an image's pages are no longer needed. QEMU moves the stream in unaligned
// pieces, so O_DIRECT cannot be used instead.
func dropPageCache(f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var refused error
	err = raw.Control(func(fd uintptr) { refused = unix.Fadvise(int(fd), 0, 0, unix.FADV_DONTNEED) })
	return fault.Wrap(errors.Join(err, refused), fault.Failed, fault.Host, "cannot keep the image out of the page cache")
}
