package sandbox

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// inTemplate reports whether a path is in the template.
func inTemplate(path string) bool {
	return slices.ContainsFunc(programDirs, func(dir string) bool { return strings.HasPrefix(path, dir+"/") })
}

// installDir returns the directory of a program's whole installation: PREFIX for PREFIX/bin/program. A
// program outside such a directory is returned alone.
func installDir(path string) string {
	if bin := filepath.Dir(path); slices.Contains([]string{"bin", "sbin", "libexec"}, filepath.Base(bin)) && filepath.Dir(bin) != "/" {
		return filepath.Dir(bin)
	}
	return path
}

// prepareProgram appends mounts for a program that is not in the template: its file, or its whole
// installation directory with libraries and data.
func prepareProgram(mounts []mount, path string) ([]mount, error) {
	real, err := filepath.EvalSymlinks(path)
	if path == "" || err != nil { // the start reports that the program does not exist
		return mounts, nil //nolint:nilerr // see above
	}
	for _, path := range slices.Compact([]string{path, real}) {
		if inTemplate(path) {
			continue
		}
		show := installDir(path)
		if slices.ContainsFunc(mounts, func(m mount) bool { return m.target == show }) {
			continue
		}
		f, err := os.OpenFile(show, unix.O_PATH, 0)
		if err != nil {
			return mounts, err
		}
		p, err := cloneMount(f, show)
		_ = f.Close()
		if err == nil {
			mounts = append(mounts, p)
			err = setReadOnly(p.fd, "", unix.AT_EMPTY_PATH, 0)
		}
		if err != nil {
			return mounts, err
		}
	}
	return mounts, nil
}
