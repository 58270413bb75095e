package store

import (
	"bytes"
	"io"
)

// carveStep is how many bytes of a file are searched at once.
const carveStep = 1 << 20

// carve searches a file for records by their first lines, wherever they lie: in pages
// that the tree no longer reaches, and in earlier states. For each wanted record it
// returns the latest copy. Parts that cannot be read are skipped.
func carve(from io.ReaderAt, size int64, wanted func(sealed) bool) map[id]sealed {
	found := map[id]sealed{}
	take := func(at int64) {
		r, ok := sealedAt(from, size, at)
		name := id{r.kind, r.key}
		if ok && wanted(r) && (found[name].body == nil || found[name].serial < r.serial) {
			found[name] = r
		}
	}
	chunk := make([]byte, carveStep+len(sealMark))
	for at := int64(0); at < size; at += carveStep {
		n := readAround(from, chunk[:min(int64(len(chunk)), size-at)], at)
		for here := 0; ; {
			i := bytes.Index(n[here:], []byte(sealMark))
			if i < 0 || here+i >= carveStep {
				break
			}
			take(at + int64(here+i))
			here += i + len(sealMark)
		}
	}
	return found
}

// readAround fills a buffer from a file. Bytes that cannot be read are zero.
// 54
func readAround(from io.ReaderAt, into []byte, at int64) []byte {
	if _, err := from.ReadAt(into, at); err == nil {
		return into
	}
	const page = 4096
	for i := 0; i < len(into); i += page {
		part := into[i:min(i+page, len(into))]
		if _, err := from.ReadAt(part, at+int64(i)); err != nil {
			clear(part)
		}
	}
	return into
}

// longestLine bounds a header line in bytes: a key is at most a path.
const longestLine = 8 << 10

// sealedAt reads the record that begins at an offset, if there is a whole one.
func sealedAt(from io.ReaderAt, size, at int64) (sealed, bool) {
	line := make([]byte, min(longestLine, size-at))
	if _, err := from.ReadAt(line, at); err != nil {
		return sealed{}, false
	}
	end := bytes.IndexByte(line, '\n')
	if end < len(sealMark)+8 {
		return sealed{}, false
	}
	length, ok := new(sealed).take(string(line[len(sealMark)+8 : end]))
	if !ok || int64(length) > size-at-int64(end)-1 {
		return sealed{}, false
	}
	whole := make([]byte, end+1+length)
	if _, err := from.ReadAt(whole, at); err != nil {
		return sealed{}, false
	}
	r, err := unseal(whole)
	return r, err == nil
}
