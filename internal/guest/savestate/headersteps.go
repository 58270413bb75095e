package savestate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/filelabel"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// HeaderChanges is the kind of record that holds a change of a saved image's header while it is in
// progress, by the image's real path. The header precedes gigabytes that are not rewritten, so it is
// changed in place. A daemon killed halfway would leave a guest that cannot be restored. The record lies in
// the store and not beside the image: the image's folder may be another user's, full, or read-only.
var HeaderChanges = store.Kind{Name: "header", Version: 1}

// HeaderChange is the beginning of an image, up to the last byte that changes.
type HeaderChange struct{ Before, After []byte }

// HeaderBlock is how many bytes a disk writes atomically.
const HeaderBlock = 512

// SaveChanging is the magic of an image with a partly changed header. It keeps Lodge and libvirt from
// reading such a header, even if the image was moved or copied and the record is not found.
const SaveChanging = "LodgeSaveChanges"

func newHeaderChange(before, after []byte) HeaderChange {
	n := len(before)
	for n > 0 && before[n-1] == after[n-1] {
		n--
	}
	return HeaderChange{before[:n], after[:n]}
}

// isPartial reports whether the change was interrupted in the middle: each block is the old or the new one, and
// both kinds are present.
func (c HeaderChange) isPartial(now []byte) bool {
	if len(c.After) != len(c.Before) || len(now) != len(c.Before) || bytes.Equal(now, c.Before) || bytes.Equal(now, c.After) {
		return false
	}
	if isChanging(now) {
		now = append([]byte(SaveMagic), now[len(SaveMagic):]...)
	}
	for at := 0; at < len(now); at += HeaderBlock {
		end := min(at+HeaderBlock, len(now))
		if block := now[at:end]; !bytes.Equal(block, c.Before[at:end]) && !bytes.Equal(block, c.After[at:end]) {
			return false
		}
	}
	return true
}

func isChanging(header []byte) bool { return bytes.HasPrefix(header, []byte(SaveChanging)) }

// WriteHeader writes the beginning of an image and syncs it. The first block, with the magic, comes last.
func WriteHeader(f *os.File, header []byte) error {
	blocks := slices.Collect(slices.Chunk(header, HeaderBlock))
	if len(blocks) > 1 {
		if err := writeSynced(f, 0, []byte(SaveChanging)); err != nil {
			return err
		}
		if err := writeSynced(f, HeaderBlock, blocks[1:]...); err != nil {
			return err
		}
	}
	return writeSynced(f, 0, blocks[:min(1, len(blocks))]...)
}

// writeSynced writes blocks from an offset on and syncs them.
func writeSynced(f *os.File, at int64, blocks ...[]byte) error {
	for _, block := range blocks {
		if err := failpoint.Err("header.block"); err != nil {
			return err
		}
		if _, err := f.WriteAt(block, at); err != nil {
			return err
		}
		at += int64(len(block))
	}
	return f.Sync()
}

// ChangeHeader changes the header of an image, or restores the old one. If neither is possible, as on a
// failing disk, the next open of the image tries again.
func ChangeHeader(r *machine.Registry, f *os.File, path string, c HeaderChange) error {
	if err := r.Store.Put(HeaderChanges, path, c); err != nil {
		return err
	}
	failpoint.Reach("header.noted")
	if err := WriteHeader(f, c.After); err != nil {
		if e := WriteHeader(f, c.Before); e != nil {
			return errors.Join(err, fmt.Errorf("cannot restore the old one yet: %w", e))
		}
		forgetHeader(r, path)
		return err
	}
	failpoint.Reach("header.written")
	forgetHeader(r, path)
	return nil
}

// settleHeader finishes an interrupted change of an image's header: a partly new header becomes the old one
// again. If another image lies there by now, it stays unchanged.
func settleHeader(r *machine.Registry, f *os.File, path string) error {
	var c HeaderChange
	err := r.Store.Get(HeaderChanges, path, &c)
	if fault.Is(err, fault.NotFound) {
		return settleMoved(r, f, path)
	}
	if err != nil {
		return err
	}
	partial, err := c.isInterrupted(f)
	if err == nil && partial {
		err = undoHeader(r, f, path, c)
	} else if err == nil {
		err = f.Sync() // a complete header may not be on the disk yet
	}
	if err != nil {
		return err
	}
	forgetHeader(r, path)
	if !partial {
		return settleMoved(r, f, path) // an image that was moved here
	}
	return nil
}

// settleMoved is settleHeader for an image that was moved or copied here. It finds the record by the
// image's content.
func settleMoved(r *machine.Registry, f *os.File, path string) error {
	magic := make([]byte, len(SaveChanging))
	if _, err := f.ReadAt(magic, 0); err != nil || !isChanging(magic) {
		return nil // the code that reads on reports the error
	}
	noted := map[string]HeaderChange{}
	err := r.Store.Each(HeaderChanges, func(from string, decode func(any) error) error {
		var c HeaderChange
		if err := decode(&c); err == nil {
			noted[from] = c
		}
		return nil
	})
	if err != nil {
		return err
	}
	for from, c := range noted {
		partial, err := c.isInterrupted(f)
		if err != nil || !partial {
			continue
		}
		if err := undoHeader(r, f, path, c); err != nil {
			return err
		}
		ctx, stop := context.WithTimeout(r.Life, machine.CloseTimeout)
		defer stop()
		if there, err := machine.FileExists(ctx, scope.Daemon("a change of a header that was cut off"), from); err == nil && !there { // it was moved and not copied
			forgetHeader(r, from)
		}
		return nil
	}
	return nil
}

// isInterrupted reports whether the change was interrupted in this image.
func (c HeaderChange) isInterrupted(f *os.File) (bool, error) {
	now := make([]byte, len(c.Before))
	if n, err := f.ReadAt(now, 0); errors.Is(err, io.EOF) {
		now = now[:n]
	} else if err != nil {
		return false, err
	}
	return c.isPartial(now), nil
}

// undoHeader writes the old header again.
func undoHeader(r *machine.Registry, f *os.File, path string, c HeaderChange) error {
	w, err := image.Reopen(int(f.Fd()), path, unix.O_RDWR)
	if err != nil {
		return err
	}
	defer w.Close()
	if err := WriteHeader(w, c.Before); err != nil {
		return fmt.Errorf("a change of its header was interrupted, and the old header cannot be restored: %w", err)
	}
	r.Log.Info("interrupted change of a saved image's header undone", "image", path)
	return nil
}

// SettleHeaders settles the changes that the last daemon did not finish. An image that cannot be read yet,
// for example because its file system is not mounted, is settled when it is opened.
func SettleHeaders(r *machine.Registry) error {
	own, _ := filepath.EvalSymlinks(r.SaveDir()) // it was made before
	var paths []string
	err := r.Store.Each(HeaderChanges, func(path string, _ func(any) error) error { paths = append(paths, path); return nil })
	for _, path := range paths {
		r.Loops.Go(func() { // a file system may hang
			ctx, stop := context.WithTimeout(r.Life, machine.ModifyLimit)
			defer stop()
			i, err := OpenSaved(ctx, r, path, SaveOptions{})
			switch {
			case err == nil:
				i.Close()
			case errors.Is(err, os.ErrNotExist) && filepath.Dir(path) == own:
				forgetHeader(r, path)
			default:
				r.Log.Warn("cannot read a saved image whose header change was interrupted", "image", path, "error", err)
			}
		})
	}
	return err
}

// forgetHeader deletes the record of a change that is done, or of a change to an image that is gone.
func forgetHeader(r *machine.Registry, path string) {
	var noted any
	if fault.Is(r.Store.Get(HeaderChanges, path, &noted), fault.NotFound) {
		return
	}
	if err := r.Store.Delete(HeaderChanges, path); err != nil {
		r.Log.Error("cannot delete the record of a saved image's header change", "image", path, "error", err)
	}
}

// LockHeader locks the header of an open image and returns the image's real path. A reader during a change
// would read neither header. The lock belongs to the file, under any name.
func LockHeader(ctx context.Context, r *machine.Registry, f *os.File) (path string, leave func(), err error) {
	path, id, err := filelabel.PathAndID(f)
	if err != nil {
		return "", nil, err
	}
	leave, err = r.HeaderLocks.Lock(ctx, id)
	return path, leave, fault.Wrap(err, fault.Of(err), fault.Host, "the header of %s is being changed", path)
}
