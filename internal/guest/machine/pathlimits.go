package machine

import (
	"cmp"
	"maps"
	"slices"

	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// StorePathLimits stores the changed path limits: in the store, or in the run record of a transient guest.
// After an error the guest has the limits of before again.
func (g *Guest) StorePathLimits(before map[string][]string) error {
	keep := g.Store
	if g.Inactive == nil {
		keep = g.WriteInstanceNow
	}
	if err := keep(); err != nil {
		g.Record.PathLimits = before
		return err
	}
	g.Publish()
	return nil
}

// PathLimits are the path limits of a guest: by disk source or path, the folders to which it is restricted. A
// guest that is cloned from it gets them, too. Otherwise a client that may write there could change the
// clone's files although it cannot change the original's.
type PathLimits map[string][]string

// PathLimits returns a copy of the guest's path limits.
func (g *Guest) PathLimits() PathLimits { return CopyPathLimits(g.View().PathLimits) }

// DiskScope returns the scope in which one disk of the guest is opened: sc with the disk's path limits.
func (p PathLimits) DiskScope(sc scope.Scope, d *device.Disk) scope.Scope { return DiskScope(sc, p, d) }

// CopyForClone gives the new disk made the path limits of the disk of that it was cloned from. It also
// permits folder, where the new disk lies.
func (p PathLimits) CopyForClone(of, made *device.Disk, folder string) {
	if folders, held := p[SourceName(of)]; held {
		p[SourceName(made)] = append(slices.Clone(folders), folder)
	}
}

// FileScope returns the scope in which the files of a definition are opened: sc with the path limits.
func (p PathLimits) FileScope(sc scope.Scope) scope.Scope { return sc.WithNotedFolders(p) }

// CopyPathLimits returns a copy that may be changed: readers may hold the present one.
func CopyPathLimits(limits map[string][]string) map[string][]string {
	c := map[string][]string{}
	maps.Copy(c, limits)
	return c
}

// DiskScope returns sc with the recorded folders of a disk, for its opening. Without a record it returns sc.
func DiskScope(sc scope.Scope, limits map[string][]string, d *device.Disk) scope.Scope {
	if folders, held := limits[SourceName(d)]; held {
		return sc.Within(folders)
	}
	return sc
}

// SourceUse is how a disk uses its source. With another format, or with write access instead of read access,
// it is another disk: a guest's own data must not become a header that leads elsewhere, and shared data
// must not become the guest's own.
type SourceUse struct {
	Source, format string
	readOnly       bool
}

// SourceUseOf returns how a disk uses its source. A disk without a format is raw.
func SourceUseOf(d *device.Disk) SourceUse {
	return SourceUse{SourceName(d), cmp.Or(d.Format, string(image.Raw)), d.ReadOnly}
}

// SourceName names the source of a disk. Empty: it has none.
func SourceName(d *device.Disk) string {
	switch {
	case d.Source == nil:
		return ""
	case d.Source.Volume != nil:
		return "pool:" + d.Source.Volume.Pool + "/" + d.Source.Volume.Volume
	}
	return d.Source.Path()
}
