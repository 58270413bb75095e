package machine

import (
	"cmp"
	"maps"
	"slices"

	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// KeepFences stores the changed path limits: in the store, or in the instance record of a transient guest.
// After an error the guest has the limits of before again.
func (g *Guest) KeepFences(before map[string][]string) error {
	keep := g.Store
	if g.Inactive == nil {
		keep = g.journal
	}
	if err := keep(); err != nil {
		g.Record.Fences = before
		return err
	}
	g.Publish()
	return nil
}

// Fences are the path limits of a guest: by disk source or path, the folders to which it is restricted. A
// guest that is cloned from it gets them, too. Otherwise a client that may write there could change the
// clone's files although it cannot change the original's.
type Fences map[string][]string

// Fences returns a copy of the guest's path limits.
func (g *Guest) Fences() Fences { return Copied(g.View().Fences) }

// On returns the scope in which one disk of the guest is opened: sc with the disk's path limits.
func (f Fences) On(sc scope.Scope, d *device.Disk) scope.Scope { return Fenced(sc, f, d) }

// Like gives the new disk made the path limits of the disk of that it was cloned from. It also permits folder,
// where the new disk lies.
func (f Fences) Like(of, made *device.Disk, folder string) {
	if folders, held := f[SourceOf(of)]; held {
		f[SourceOf(made)] = append(slices.Clone(folders), folder)
	}
}

// In returns the scope in which the files of a definition are opened: sc with the path limits.
func (f Fences) In(sc scope.Scope) scope.Scope { return sc.WithNotedFolders(f) }

// Copied returns a copy that may be changed: readers may hold the present one.
func Copied(fences map[string][]string) map[string][]string {
	c := map[string][]string{}
	maps.Copy(c, fences)
	return c
}

// Fenced returns sc with the recorded folders of a disk, for its opening. Without a record it returns sc.
func Fenced(sc scope.Scope, fences map[string][]string, d *device.Disk) scope.Scope {
	if folders, held := fences[SourceOf(d)]; held {
		return sc.Within(folders)
	}
	return sc
}

// Reading is how a disk uses its source. With another format, or with write access instead of read access,
// it is another disk: a guest's own data must not become a header that leads elsewhere, and shared data
// must not become the guest's own.
type Reading struct {
	Source, format string
	readOnly       bool
}

// ReadingOf returns how a disk uses its source. A disk without a format is raw.
func ReadingOf(d *device.Disk) Reading {
	return Reading{SourceOf(d), cmp.Or(d.Format, string(image.Raw)), d.ReadOnly}
}

// SourceOf names the source of a disk. Empty: it has none.
func SourceOf(d *device.Disk) string {
	switch {
	case d.Source == nil:
		return ""
	case d.Source.Volume != nil:
		return "pool:" + d.Source.Volume.Pool + "/" + d.Source.Volume.Volume
	}
	return d.Source.Path()
}
