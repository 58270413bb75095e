package savestate

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/mechanism/safepath"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
)

// incompleteImages is the kind of record that names, by the guest's UUID, the file that a save or dump is
// writing. The file holds the guest's memory and lies where the user wants it. After a crash of the host
// the run directory, which also names it, is lost.
var incompleteImages = store.Kind{Name: "image", Version: 1}

// incompleteImage is the content of such a record.
type incompleteImage struct {
	MadeFile // Path is that of the complete image

	Owner uint32
	Boot  string
}

// recordIncomplete records the file of an image that is about to be written. If the store cannot be written, the
// save continues without the record.
func recordIncomplete(g *machine.Guest, path string, f *os.File) {
	var st unix.Stat_t
	err := unix.Fstat(int(f.Fd()), &st)
	if err == nil {
		err = g.Reg.Store.Put(incompleteImages, g.UUID, incompleteImage{MadeFile{path, st.Dev, st.Ino}, st.Uid, g.Reg.Boot})
	}
	if err != nil {
		g.Log.Warn("cannot record an image in progress; a crash of the host would leave an incomplete file", "path", PartialPath(path), "error", err)
	}
}

// forgetIncomplete deletes the record of a guest's image, if there is one.
func forgetIncomplete(r *machine.Registry, uuid string) {
	var noted incompleteImage
	if fault.Is(r.Store.Get(incompleteImages, uuid, &noted), fault.NotFound) {
		return
	}
	if err := r.Store.Delete(incompleteImages, uuid); err != nil {
		r.Log.Error("cannot delete the record of an image in progress", "uuid", uuid, "error", err)
	}
}

// SweepIncomplete removes the images that an earlier boot of the host left incomplete. For this boot the run
// directories name them.
func SweepIncomplete(r *machine.Registry) error {
	all := map[string]incompleteImage{}
	err := r.Store.Each(incompleteImages, func(uuid string, decode func(any) error) error {
		var h incompleteImage
		if err := decode(&h); err != nil {
			r.Log.Error("cannot read the record of an incomplete image", "uuid", uuid, "error", err)
			return nil
		}
		if r.Boot != "" && h.Boot != r.Boot {
			all[uuid] = h
		}
		return nil
	})
	for uuid, h := range all {
		r.Loops.Go(func() { // a file system may hang
			ctx, stop := context.WithTimeout(r.Life, machine.ModifyLimit)
			defer stop()
			if err := fsguard.Run(ctx, h.Path, h.remove); err != nil {
				r.Log.Warn("cannot remove the incomplete image of an earlier boot yet", "path", PartialPath(h.Path), "error", err)
				return
			}
			var now incompleteImage
			if r.Store.Get(incompleteImages, uuid, &now) == nil && now == h { // otherwise another is being written
				forgetIncomplete(r, uuid)
			}
		})
	}
	return err
}

// remove removes the file, if it is still the recorded one. It fails if its file system is not mounted yet.
func (h incompleteImage) remove() error {
	err := safepath.OpenLink(h.Path, func(at string) error {
		var folder, st unix.Stat_t
		if err := unix.Stat(filepath.Dir(at), &folder); err != nil {
			return err
		}
		if folder.Dev != h.Device {
			return errors.New("its file system is not mounted")
		}
		if err := unix.Lstat(PartialPath(at), &st); err != nil {
			return err
		}
		if st.Dev != h.Device || st.Ino != h.Inode || st.Uid != h.Owner || st.Mode&unix.S_IFMT != unix.S_IFREG {
			return nil
		}
		return os.Remove(PartialPath(at))
	})
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// Some resources of an ended guest cannot be released at once: a run directory on a read-only file system,
// or anything while the daemon has no free descriptors. Their release is repeated until it succeeds. Most
// of them belong to the guest's UUID: once the guest is started again, that start has removed them, or uses
// them.

// UpdateLeftRecord corrects the record in a run directory that is left of an ended run, or of a quarantined guest.
// The next daemon settles the guest by that record, and would bring back records that were deleted since.
// It runs in the loop.
func UpdateLeftRecord(g *machine.Guest, persistent bool) error {
	if g.Instance != nil || g.CurrentJob != nil {
		return nil // the record belongs to a run that continues or begins
	}
	dir := g.Reg.GuestDir(g.UUID)
	rec, err := machine.ReadRecord(dir)
	switch {
	case rec == nil && g.Quarantine != "":
		return nil // the next daemon cannot read it either
	case rec != nil && g.Quarantine == "":
		rec.FromManaged = false
		rec.KeepTPM, rec.MadeNVRAM = true, false // these files have been removed, or stay
	}
	if rec != nil {
		rec.State.Persistent = persistent
		err = errors.Join(removeSaveRecords(dir), machine.WriteRecord(dir, rec))
	}
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot record the state of domain %q", g.Record.Name)
}

// removeSaveRecords removes the records of complete saves: their images have been removed since.
func removeSaveRecords(dir string) error {
	files := operation.FileJournal{Dir: dir}
	all, err := files.Read()
	for _, r := range all {
		if r.Kind == SaveKind.Name && r.Decided {
			err = errors.Join(err, files.Remove(r))
		}
	}
	return err
}
