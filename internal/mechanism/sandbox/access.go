package sandbox

import (
	"os"
	"path/filepath"
	"slices"
)

// Access is what a program may do with a path in its sandbox. The path is as the kernel names it: from the
// root of the sandbox's mount namespace.
type Access struct {
	Path string
	// Tree: the path is a directory, and the access covers all below it.
	Tree           bool
	Write, Execute bool
}

// AccessList lists all paths that a program can use in its sandbox. A second guard (an AppArmor profile)
// is made from it. Files that the program is handed open are not in the list.
func (spec *Spec) AccessList() []Access {
	var all []Access
	within := func(path string) string { return rootfs + filepath.Clean("/"+path) }
	tree := func(path string) bool { info, err := os.Stat(path); return err == nil && info.IsDir() }
	for _, path := range append(slices.Clone(programDirs), installPaths(spec.Program)...) {
		all = append(all, Access{Path: within(path), Tree: tree(path), Execute: true})
	}
	for _, path := range append(slices.Clone(configFiles), placeholders...) {
		all = append(all, Access{Path: within(path), Tree: tree(path)})
	}
	for _, path := range DeviceNodes() {
		all = append(all, Access{Path: within(path), Write: true})
	}
	for _, d := range spec.Devices {
		all = append(all, Access{Path: within(d.Path), Write: true})
	}
	if spec.Terminals {
		all = append(all, Access{Path: within(ptmx), Write: true}, Access{Path: within("/dev/pts"), Tree: true, Write: true})
	}
	for _, o := range spec.WritableDirs {
		all = append(all, Access{Path: within(o.Path), Tree: true, Write: true})
	}
	for _, s := range spec.ReadOnlyFiles {
		all = append(all, s.access(within(s.Path)))
	}
	return all
}

// access tells how a read-only file is used: sockets and pipes are also written to.
func (s ReadOnlyFile) access(at string) Access {
	a := Access{Path: at}
	if info, err := s.File.Stat(); err == nil {
		a.Tree = info.IsDir()
		a.Write = info.Mode()&(os.ModeSocket|os.ModeNamedPipe) != 0
	}
	return a
}

// installPaths returns the paths of a program that is not in the template.
func installPaths(program string) []string {
	real, err := filepath.EvalSymlinks(program)
	if program == "" || err != nil {
		return nil
	}
	var all []string
	for _, path := range slices.Compact([]string{program, real}) {
		if !inTemplate(path) {
			all = append(all, installDir(path))
		}
	}
	return all
}
