package provision

import (
	"maps"
	"slices"

	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// SetPathPolicy records the path limits of a definition: the folders to which its paths are restricted. A new
// path gets the folders of the client that brings it; a path that stays keeps its recorded ones. Without the
// record, a client that may write an image could later make it lead elsewhere, and one that may write a
// folder could replace a file by a link. It runs in the loop, before the definition is stored. Records of
// other paths stay until the definition is stored, which may fail (see DropPathPolicy).
func SetPathPolicy(g *machine.Guest, sc scope.Scope, def *domain.Definition) {
	if sc.Folders() == nil && !sc.HasNotedFolders() && len(g.Record.Fences) == 0 {
		return
	}
	there := map[machine.Reading]bool{}
	if g.Inactive != nil {
		for _, d := range g.Inactive.Devices.Disks {
			there[machine.ReadingOf(d)] = true
		}
		for _, path := range filesOf(g.Inactive) {
			there[machine.Reading{Source: path}] = true
		}
	}
	fences := machine.Copied(g.Record.Fences)
	for _, d := range def.Devices.Disks {
		switch source := machine.SourceOf(d); {
		case source == "" || there[machine.ReadingOf(d)]: // unchanged
		case sc.FoldersFor(source) != nil:
			fences[source] = sc.FoldersFor(source)
		default:
			delete(fences, source)
		}
	}
	for _, path := range filesOf(def) {
		if folders := sc.FoldersFor(path); folders != nil && !there[machine.Reading{Source: path}] && fences[path] == nil {
			fences[path] = folders
		}
	}
	g.Record.Fences = fences
}

// filesOf returns the paths, other than disks, that a definition names and that the daemon opens or creates
// for the guest.
func filesOf(def *domain.Definition) []string {
	paths := slices.Concat(shownFiles(def), ReadFiles(def), displaySockets(def, ""))
	paths = append(paths, def.OS.Loader.Path, def.OS.NVRAM.Path, def.OS.NVRAM.Template)
	for _, b := range Backends(def) {
		paths = append(paths, b.Path, b.LogFile)
	}
	return slices.DeleteFunc(paths, func(path string) bool { return path == "" })
}

// SetLivePathPolicy records the folders for a device that the client attaches to the running guest only. The
// managed save image will name the device, and another client may start it.
func SetLivePathPolicy(g *machine.Guest, sc scope.Scope, dev device.Device) error {
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
		paths = append(paths, machine.SourceOf(d))
	}
	before := g.Record.Fences
	fences := machine.Copied(before)
	for _, path := range paths {
		if path != "" && fences[path] == nil {
			fences[path] = folders
		}
	}
	if len(fences) == len(before) {
		return nil
	}
	g.Record.Fences = fences
	return g.KeepFences(before)
}

// SetInstancePathPolicy records the folders for a definition that the guest runs with and that is not stored. It may be
// restored later from a managed save image.
func SetInstancePathPolicy(g *machine.Guest, sc scope.Scope, def *domain.Definition) error {
	if sc.Folders() == nil {
		return nil
	}
	before := g.Record.Fences
	SetPathPolicy(g, sc, def)
	return g.KeepFences(before)
}

// DropPathPolicy removes the records of paths that the guest no longer has: neither in the definition that is
// about to be stored, nor in the live one. It removes none while there is a managed save image, or while a
// job may add paths.
func DropPathPolicy(g *machine.Guest, def *domain.Definition) {
	if len(g.Record.Fences) == 0 || g.Record.ManagedSave || g.CurrentJob != nil {
		return
	}
	disks, files := slices.Clone(def.Devices.Disks), filesOf(def)
	if g.Instance != nil {
		disks, files = append(disks, g.Instance.Definition.Devices.Disks...), append(files, filesOf(g.Instance.Definition)...)
	}
	fences := machine.Copied(g.Record.Fences)
	maps.DeleteFunc(fences, func(source string, _ []string) bool {
		return !slices.Contains(files, source) && !slices.ContainsFunc(disks, func(d *device.Disk) bool { return machine.SourceOf(d) == source })
	})
	g.Record.Fences = fences
}
