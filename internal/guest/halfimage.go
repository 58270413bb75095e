package guest

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
	"github.com/lodge-kvm/lodge/internal/mechanism/safepath"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
)

// halfImages is the kind of record that names, by the guest's UUID, the file that a save or dump is
// writing. The file holds the guest's memory and lies where the user wants it. After a crash of the host
// the run directory, which also names it, is lost.
var halfImages = store.Kind{Name: "image", Version: 1}

// halfImage is the content of such a record.
type halfImage struct {
	madeFile // Path is that of the complete image

	Owner uint32
	Boot  string
}

// noteHalf records the file of an image that is about to be written. If the store cannot be written, the
// save continues without the record.
func (g *Guest) noteHalf(path string, f *os.File) {
	var st unix.Stat_t
	err := unix.Fstat(int(f.Fd()), &st)
	if err == nil {
		err = g.reg.store.Put(halfImages, g.uuid, halfImage{madeFile{path, st.Dev, st.Ino}, st.Uid, g.reg.Boot})
	}
	if err != nil {
		g.log.Warn("cannot record an image in progress; a crash of the host would leave an incomplete file", "path", partial(path), "error", err)
	}
}

// forgetHalf deletes the record of a guest's image, if there is one.
func (r *Registry) forgetHalf(uuid string) {
	var noted halfImage
	if fault.Is(r.store.Get(halfImages, uuid, &noted), fault.NotFound) {
		return
	}
	if err := r.store.Delete(halfImages, uuid); err != nil {
		r.log.Error("cannot delete the record of an image in progress", "uuid", uuid, "error", err)
	}
}

// sweepHalf removes the images that an earlier boot of the host left incomplete. For this boot the run
// directories name them.
func (r *Registry) sweepHalf() error {
	all := map[string]halfImage{}
	err := r.store.Each(halfImages, func(uuid string, decode func(any) error) error {
		var h halfImage
		if err := decode(&h); err != nil {
			r.log.Error("cannot read the record of an incomplete image", "uuid", uuid, "error", err)
			return nil
		}
		if r.Boot != "" && h.Boot != r.Boot {
			all[uuid] = h
		}
		return nil
	})
	for uuid, h := range all {
		r.loops.Go(func() { // a file system may hang
			ctx, stop := context.WithTimeout(r.life, modifyLimit)
			defer stop()
			if err := fsguard.Run(ctx, h.Path, h.remove); err != nil {
				r.log.Warn("cannot remove the incomplete image of an earlier boot yet", "path", partial(h.Path), "error", err)
				return
			}
			var now halfImage
			if r.store.Get(halfImages, uuid, &now) == nil && now == h { // otherwise another is being written
				r.forgetHalf(uuid)
			}
		})
	}
	return err
}

// remove removes the file, if it is still the recorded one. It fails if its file system is not mounted yet.
func (h halfImage) remove() error {
	err := safepath.OpenLink(h.Path, func(at string) error {
		var folder, st unix.Stat_t
		if err := unix.Stat(filepath.Dir(at), &folder); err != nil {
			return err
		}
		if folder.Dev != h.Device {
			return errors.New("its file system is not mounted")
		}
		if err := unix.Lstat(partial(at), &st); err != nil {
			return err
		}
		if st.Dev != h.Device || st.Ino != h.Inode || st.Uid != h.Owner || st.Mode&unix.S_IFMT != unix.S_IFREG {
			return nil
		}
		return os.Remove(partial(at))
	})
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
