package guest

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// fence notes which folders the disks and files of a definition are held to: those of the
// client that brings them, and what was noted before for those that stay. A client
// that may write an image could else make it lead elsewhere later, and one that may write
// a folder put a link in a file's place. It runs in
// the loop, before the definition is stored; what is noted of others stays until
// it is, because it may never be (see unfence).
func (g *Guest) fence(ctx context.Context, sc scope.Scope, def *domain.Definition) {
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
		case source == "" || there[readingOf(d)]: // as it was
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

// filesOf are the files beside disks that a definition names and that the daemon opens, or
// makes, for the guest.
func filesOf(def *domain.Definition) []string {
	paths := slices.Concat(shownFiles(def), readFiles(def), displaySockets(def, ""))
	paths = append(paths, def.OS.Loader.Path, def.OS.NVRAM.Path, def.OS.NVRAM.Template)
	for _, b := range backends(def) {
		paths = append(paths, b.Path, b.LogFile)
	}
	return slices.DeleteFunc(paths, func(path string) bool { return path == "" })
}

// fenceLive notes the folders for what a device names that its client brings to the running
// guest alone: the image of a managed save tells of it, and may be started by others.
func (g *Guest) fenceLive(ctx context.Context, sc scope.Scope, dev device.Device) error {
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

// fenceRun notes the folders for what a definition names by which the guest is to run, or go on, and
// which is not stored: so comes it back with a managed save.
func (g *Guest) fenceRun(ctx context.Context, sc scope.Scope, def *domain.Definition) error {
	if sc.Folders() == nil {
		return nil
	}
	before := g.record.Fences
	g.fence(ctx, sc, def)
	return g.keepFences(before)
}

// keepFences keeps what was noted: in the store, or in the run record of a transient guest.
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

// Fences are the folders that what a guest names is held to, for guests that are made like it:
// whoever may write there could else do to the one what he cannot to the other.
type Fences map[string][]string

// Fences gives those of the guest; they are the caller's.
func (g *Guest) Fences() Fences { return copied(g.View().fences) }

// On bounds the opening of a disk of the guest.
func (f Fences) On(sc scope.Scope, d *device.Disk) scope.Scope { return fenced(sc, f, d) }

// Like holds a disk as the one that it was made like, and to the folder that it was made in.
func (f Fences) Like(of, made *device.Disk, folder string) {
	if folders, held := f[sourceOf(of)]; held {
		f[sourceOf(made)] = append(slices.Clone(folders), folder)
	}
}

// In has a definition that is stored under ctx held so.
func (f Fences) In(sc scope.Scope) scope.Scope { return sc.Noting(f) }

// unfence forgets what was noted of disks that the guest has no more: in the definition
// that is about to be stored, as it runs, or in an image that it goes on from. What it is about
// to have by work under way stays noted.
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

// copied is a copy to be changed: readers may hold the present one.
func copied(fences map[string][]string) map[string][]string {
	c := map[string][]string{}
	maps.Copy(c, fences)
	return c
}

// fenced bounds the opening of a disk by what was noted for it.
func fenced(sc scope.Scope, fences map[string][]string, d *device.Disk) scope.Scope {
	if folders, held := fences[sourceOf(d)]; held {
		return sc.Within(folders)
	}
	return sc
}

// reading is how a disk uses what is behind it. Another format, or writing where there
// was reading, is another disk: a guest's own data must not become a header that leads
// elsewhere, nor what it shares with others its own.
type reading struct {
	source, format string
	readOnly       bool
}

func readingOf(d *device.Disk) reading {
	return reading{sourceOf(d), cmp.Or(d.Format, string(image.Raw)), d.ReadOnly}
}

// sourceOf names what is behind a disk; empty: nothing.
func sourceOf(d *device.Disk) string {
	switch {
	case d.Source == nil:
		return ""
	case d.Source.Volume != nil:
		return "pool:" + d.Source.Volume.Pool + "/" + d.Source.Volume.Volume
	}
	return d.Source.Path()
}
