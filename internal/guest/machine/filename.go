package machine

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"unicode/utf8"
)

// LongName is the length in bytes up to which a guest's name fits into its file names. keptNameBytes is the
// number of bytes that are kept of a longer name.
const (
	LongName      = 200
	keptNameBytes = 190
)

// FileStem returns the beginning of the names of a guest's files. A long name is cut and followed by a
// hash. The result is longer than any name that is not cut, so that no two guests share one.
func FileStem(name string) string {
	if len(name) <= LongName {
		return name
	}
	cut := keptNameBytes
	for !utf8.RuneStart(name[cut]) {
		cut--
	}
	sum := sha256.Sum256([]byte(name))
	return name[:cut] + "-" + hex.EncodeToString(sum[:8])
}

// StemTaken reports whether there is a guest with that file stem.
func (r *Registry) StemTaken(stem string) bool {
	if len(stem) <= LongName {
		_, err := r.ByName(stem)
		return err == nil
	}
	for _, g := range r.All() {
		if name := g.Name(); strings.HasPrefix(name, stem[:keptNameBytes-utf8.UTFMax]) && FileStem(name) == stem {
			return true
		}
	}
	return false
}
