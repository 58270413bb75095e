package guest

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"unicode/utf8"
)

// longName is the length in bytes from which on a guest's name leaves no room for what
// else is in the names of its files, and keptOfName how much of it is in them then.
const (
	longName   = 200
	keptOfName = 190
)

// fileStem begins the names of a guest's files. A long name is cut and has a hash instead
// of the rest; what comes out is longer than any name that is not cut, so that none is taken
// for another's.
func fileStem(name string) string {
	if len(name) <= longName {
		return name
	}
	cut := keptOfName
	for !utf8.RuneStart(name[cut]) {
		cut--
	}
	sum := sha256.Sum256([]byte(name))
	return name[:cut] + "-" + hex.EncodeToString(sum[:8])
}

// stemTaken says whether there is a guest whose files are called so.
func (r *Registry) stemTaken(stem string) bool {
	if len(stem) <= longName {
		_, err := r.ByName(stem)
		return err == nil
	}
	for _, g := range r.All() {
		if name := g.Name(); strings.HasPrefix(name, stem[:keptOfName-utf8.UTFMax]) && fileStem(name) == stem {
			return true
		}
	}
	return false
}
