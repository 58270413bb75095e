package sandbox

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// shownAnyway reports whether a path is in the mould.
func shownAnyway(path string) bool {
	return slices.ContainsFunc(programs, func(dir string) bool { return strings.HasPrefix(path, dir+"/") })
}

// installed is where all of a program lies: in the bin of some place of its own, or it
// is alone.
func installed(path string) string {
	if bin := filepath.Dir(path); slices.Contains([]string{"bin", "sbin", "libexec"}, filepath.Base(bin)) && filepath.Dir(bin) != "/" {
		return filepath.Dir(bin)
	}
	return path
}

// takeProgram adds what a program consists of that is not in the mould: the file,
// and where it lies in the bin of some place of its own, all of that place, with
// its libraries and data.
func takeProgram(pieces []piece, path string) ([]piece, error) {
	real, err := filepath.EvalSymlinks(path)
	if path == "" || err != nil { // what starts it says that it is not there
		return pieces, nil //nolint:nilerr // see above
	}
	for _, path := range slices.Compact([]string{path, real}) {
		if shownAnyway(path) {
			continue
		}
		show := installed(path)
		if slices.ContainsFunc(pieces, func(p piece) bool { return p.at == show }) {
			continue
		}
		f, err := os.OpenFile(show, unix.O_PATH, 0)
		if err != nil {
			return pieces, err
		}
		p, err := detach(f, show)
		_ = f.Close()
		if err == nil {
			pieces = append(pieces, p)
			err = readOnly(p.tree, "", unix.AT_EMPTY_PATH, 0)
		}
		if err != nil {
			return pieces, err
		}
	}
	return pieces, nil
}
