package guest

import (
	"cmp"
	"maps"
	"slices"

	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// fence records the folders to which the paths of a definition are restricted: those of the client that
// brings the paths, and the recorded ones for paths that stay. Without the record, a client that may write
// an image could later make it lead elsewhere, and one that may write a folder could replace a file by a
// link. It runs in the loop, before the definition is stored. Records of other paths stay until the
// definition is stored, which may fail (see unfence).
func (g *Guest) fence(sc scope.Scope, def *domain.Definition) {
	if sc.Folders() == nil && !sc.Notes() && len(g.record.Fences) == 0 {
		return
	}
	there := map[reading]bool{}
	if g.inactive != nil {
		for _, d := range g.inactive.Devices.Disks {
			there[readingOf(d)] = true
		}
		for _, path := range filesOf(g.inactive) {
			there[reading{source: path}] = true
		}
	}
	fences := copied(g.record.Fences)
	for _, d := range def.Devices.Disks {
		switch source := sourceOf(d); {
		case source == "" || there[readingOf(d)]: // unchanged
		case sc.FoldersOf(source) != nil:
			fences[source] = sc.FoldersOf(source)
		default:
			delete(fences, source)
		}
	}
	for _, path := range filesOf(def) {
		if folders := sc.FoldersOf(path); folders != nil && !there[reading{source: path}] && fences[path] == nil {
			fences[path] = folders
		}
	}
	g.record.Fences = fences
}

// filesOf returns the paths, other than disks, that a definition names and that the daemon opens or creates
// for the guest.
func filesOf(def *domain.Definition) []string {
	paths := slices.Concat(shownFiles(def), readFiles(def), displaySockets(def, ""))
	paths = append(paths, def.OS.Loader.Path, def.OS.NVRAM.Path, def.OS.NVRAM.Template)
	for _, b := range backends(def) {
		paths = append(paths, b.Path, b.LogFile)
	}
	return slices.DeleteFunc(paths, func(path string) bool { return path == "" })
}

// fenceLive records the folders for a device that the client attaches to the running guest only. The
// managed save image will name the device, and another client may start it.
func (g *Guest) fenceLive(sc scope.Scope, dev device.Device) error {
	folders := sc.Folders()
	if folders == nil {
		return nil
	}
	alone := &domain.Definition{}
	if err := alone.Devices.Add(dev); err != nil {
		return err
	}
	paths := filesOf(alone)
	for _, d := range alone.Devices.Disks {
		paths = append(paths, sourceOf(d))
	}
	before := g.record.Fences
	fences := copied(before)
	for _, path := range paths {
		if path != "" && fences[path] == nil {
			fences[path] = folders
		}
	}
	if len(fences) == len(before) {
		return nil
	}
	g.record.Fences = fences
	return g.keepFences(before)
}

// fenceRun records the folders for a definition that the guest runs with and that is not stored. It may be
// restored later from a managed save image.
func (g *Guest) fenceRun(sc scope.Scope, def *domain.Definition) error {
	if sc.Folders() == nil {
		return nil
	}
	before := g.record.Fences
	g.fence(sc, def)
	return g.keepFences(before)
}

// keepFences stores the record: in the store, or in the run record of a transient guest.
func (g *Guest) keepFences(before map[string][]string) error {
	keep := g.keep
	if g.inactive == nil {
		keep = g.journal
	}
	if err := keep(); err != nil {
		g.record.Fences = before
		return err
	}
	g.publish()
	return nil
}

// Fences are the folders to which a guest's paths are restricted, for guests that are cloned from it.
// Otherwise a client that may write there could change the clone's files although it cannot change the
// original's.
type Fences map[string][]string

// Fences returns a copy of the guest's.
func (g *Guest) Fences() Fences { return copied(g.View().fences) }

// On applies the fences to the opening of one disk of the guest.
func (f Fences) On(sc scope.Scope, d *device.Disk) scope.Scope { return fenced(sc, f, d) }

// Like restricts the disk made as the disk of that it was cloned from, and also permits the folder it was
// made in.
func (f Fences) Like(of, made *device.Disk, folder string) {
	if folders, held := f[sourceOf(of)]; held {
		f[sourceOf(made)] = append(slices.Clone(folders), folder)
	}
}

// In applies the fences to a definition that is stored under ctx.
func (f Fences) In(sc scope.Scope) scope.Scope { return sc.Noting(f) }

// unfence removes the records of paths that the guest no longer has: neither in the definition that is
// about to be stored, nor in the live one. It removes none while there is a managed save image, or while a
// job may add paths.
func (g *Guest) unfence(def *domain.Definition) {
	if len(g.record.Fences) == 0 || g.record.ManagedSave || g.job != nil {
		return
	}
	disks, files := slices.Clone(def.Devices.Disks), filesOf(def)
	if g.run != nil {
		disks, files = append(disks, g.run.def.Devices.Disks...), append(files, filesOf(g.run.def)...)
	}
	fences := copied(g.record.Fences)
	maps.DeleteFunc(fences, func(source string, _ []string) bool {
		return !slices.Contains(files, source) && !slices.ContainsFunc(disks, func(d *device.Disk) bool { return sourceOf(d) == source })
	})
	g.record.Fences = fences
}

// copied returns a copy that may be changed: readers may hold the present one.
func copied(fences map[string][]string) map[string][]string {
	c := map[string][]string{}
	maps.Copy(c, fences)
	return c
}

// fenced applies the recorded folders of a disk to its opening.
func fenced(sc scope.Scope, fences map[string][]string, d *device.Disk) scope.Scope {
	if folders, held := fences[sourceOf(d)]; held {
		return sc.Within(folders)
	}
	return sc
}

// reading is how a disk uses its source. With another format, or with write access instead of read access,
// it is another disk: a guest's own data must not become a header that leads elsewhere, and shared data
// must not become the guest's own.
type reading struct {
	source, format string
	readOnly       bool
}

func readingOf(d *device.Disk) reading {
	return reading{sourceOf(d), cmp.Or(d.Format, string(image.Raw)), d.ReadOnly}
}

// sourceOf names the source of a disk. Empty: it has none.
func sourceOf(d *device.Disk) string {
	switch {
	case d.Source == nil:
		return ""
	case d.Source.Volume != nil:
		return "pool:" + d.Source.Volume.Pool + "/" + d.Source.Volume.Volume
	}
	return d.Source.Path()
}
