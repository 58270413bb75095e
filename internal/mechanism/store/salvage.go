package store

import (
	"bytes"
	"io"
)

// searchStep is how many bytes of a file are searched at once.
const searchStep = 1 << 20

// searchRecords searches a file for records by their first lines, wherever they lie: in pages
// that the tree no longer reaches, and in earlier states. For each wanted record it
// returns the latest copy. Parts that cannot be read are skipped.
func searchRecords(from io.ReaderAt, size int64, wanted func(storedRecord) bool) map[recordID]storedRecord {
	found := map[recordID]storedRecord{}
	take := func(at int64) {
		r, ok := recordAt(from, size, at)
		name := recordID{r.kind, r.key}
		if ok && wanted(r) && (found[name].body == nil || found[name].serial < r.serial) {
			found[name] = r
		}
	}
	chunk := make([]byte, searchStep+len(recordMark))
	for at := int64(0); at < size; at += searchStep {
		n := readSkippingErrors(from, chunk[:min(int64(len(chunk)), size-at)], at)
		for here := 0; ; {
			i := bytes.Index(n[here:], []byte(recordMark))
			if i < 0 || here+i >= searchStep {
				break
			}
			take(at + int64(here+i))
			here += i + len(recordMark)
		}
	}
	return found
}

// readSkippingErrors fills a buffer from a file. Bytes that cannot be read are zero.
func readSkippingErrors(from io.ReaderAt, into []byte, at int64) []byte {
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

// maxHeader bounds a header line in bytes: a key is at most a path.
const maxHeader = 8 << 10

// recordAt reads the record that begins at an offset, if there is a whole one.
func recordAt(from io.ReaderAt, size, at int64) (storedRecord, bool) {
	line := make([]byte, min(maxHeader, size-at))
	if _, err := from.ReadAt(line, at); err != nil {
		return storedRecord{}, false
	}
	end := bytes.IndexByte(line, '\n')
	if end < len(recordMark)+8 {
		return storedRecord{}, false
	}
	length, ok := new(storedRecord).parseHeader(string(line[len(recordMark)+8 : end]))
	if !ok || int64(length) > size-at-int64(end)-1 {
		return storedRecord{}, false
	}
	whole := make([]byte, end+1+length)
	if _, err := from.ReadAt(whole, at); err != nil {
		return storedRecord{}, false
	}
	r, err := decodeRecord(whole)
	return r, err == nil
}
