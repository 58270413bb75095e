package store

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"strconv"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// A record in the file is a header line and its JSON:
//
//	lodge/2 CHECKSUM LENGTH SERIAL VERSION "KIND" "KEY"\n
//	{...}
//
// The checksum (CRC-32C, eight hex digits) covers everything after it. LENGTH is the
// length of the JSON in bytes, and SERIAL counts the store's transactions. The line
// tells a record from other bytes anywhere in a damaged file, and the later of two
// copies from the earlier. Before format 2 a record was bare JSON,
// {"version":N,"record":...}; such a record is read, and rewritten when the file is
// opened.
const recordMark = "lodge/2 "

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// storedRecord is a record as it was read. Its checksum, if it has one, is verified.
type storedRecord struct {
	kind, key string
	version   int
	serial    uint64
	body      []byte
	bare      bool   // of format 1, without a checksum
	damaged   []byte // the bytes in the file if they cannot be read; the other fields are empty then
}

func encodeRecord(kind, key string, version int, serial uint64, body []byte) []byte {
	rest := append([]byte(header(kind, key, version, serial, len(body))+"\n"), body...)
	out := make([]byte, 0, len(recordMark)+8+len(rest))
	out = fmt.Appendf(out, "%s%08x", recordMark, crc32.Checksum(rest, castagnoli))
	return append(out, rest...)
}

// header is what the line says behind its checksum.
func header(kind, key string, version int, serial uint64, length int) string {
	return fmt.Sprintf(" %d %d %d %s %s", length, serial, version, strconv.Quote(kind), strconv.Quote(key))
}

// parseHeader parses the part behind the checksum, and accepts only the exact form that header writes. Otherwise text
// that a client put into its own record, without a lone quotation mark, could pass as another record in a search.
func (r *storedRecord) parseHeader(line string) (length int, ok bool) {
	_, err := fmt.Sscanf(line, " %d %d %d %q %q", &length, &r.serial, &r.version, &r.kind, &r.key)
	return length, err == nil && length >= 0 && line == header(r.kind, r.key, r.version, r.serial, length)
}

// decodeRecord reads a record that fills all of data.
func decodeRecord(data []byte) (storedRecord, error) {
	var r storedRecord
	if bytes.HasPrefix(data, []byte("{")) {
		return decodeBare(data)
	}
	if !bytes.HasPrefix(data, []byte(recordMark)) || len(data) < len(recordMark)+8 {
		return r, errDamaged("it does not begin like a record")
	}
	sum, err := strconv.ParseUint(string(data[len(recordMark):len(recordMark)+8]), 16, 32)
	rest := data[len(recordMark)+8:]
	end := bytes.IndexByte(rest, '\n')
	if err != nil || end < 0 {
		return r, errDamaged("its first line is broken")
	}
	length, ok := r.parseHeader(string(rest[:end]))
	if !ok {
		return r, errDamaged("its first line is broken")
	}
	if length != len(rest)-end-1 {
		return r, errDamaged("its length differs from its first line")
	}
	if crc32.Checksum(rest, castagnoli) != uint32(sum) {
		return r, errDamaged("its checksum does not match")
	}
	r.body = rest[end+1:]
	return r, nil
}

func decodeBare(data []byte) (storedRecord, error) {
	var e struct {
		Version *int            `json:"version"`
		Record  json.RawMessage `json:"record"`
	}
	if err := json.Unmarshal(data, &e); err != nil || e.Version == nil || e.Record == nil {
		return storedRecord{}, errDamaged("it is not complete JSON")
	}
	return storedRecord{version: *e.Version, body: e.Record, bare: true}, nil
}

// decodeAs reads a record, and refuses one that belongs to another kind or key.
func decodeAs(kind, key string, data []byte) (storedRecord, error) {
	r, err := decodeRecord(data)
	if err == nil && !r.bare && (r.kind != kind || r.key != key) {
		err = errDamaged(fmt.Sprintf("it belongs to %s %q", r.kind, r.key))
	}
	r.kind, r.key = kind, key
	return r, err
}

func errDamaged(how string) error {
	return fault.New(fault.Failed, fault.Store, "the record is damaged: %s", how)
}

// decode decodes a stored record into the value that into points to.
func (k Kind) decode(key string, data []byte, into any) error {
	r, err := decodeAs(k.Name, key, data)
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Store, "cannot read %s %q", k.Name, key)
	}
	return k.Decode(key, r.version, r.body, into)
}

// Decode decodes the JSON of a record, as Visit returns it, into the value that into
// points to. It upgrades the record through each later layout.
func (k Kind) Decode(key string, version int, body json.RawMessage, into any) (err error) {
	if err := k.checkVersion(key, version); err != nil {
		return err
	}
	for v := version; v < k.Version && k.Older != nil; v++ {
		if body, err = k.Older(v, body); err != nil {
			return fault.Wrap(err, fault.Failed, fault.Store, "cannot bring %s %q from layout %d to %d", k.Name, key, v, v+1)
		}
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fault.Wrap(err, fault.Failed, fault.Store, "cannot read %s %q: the record is damaged", k.Name, key)
	}
	return nil
}

// checkVersion refuses a record that a newer daemon has written.
func (k Kind) checkVersion(key string, version int) error {
	if version <= k.Version {
		return nil
	}
	return fault.New(fault.Unsupported, fault.Store,
		"cannot use %s %q: it has layout %d and this lodged knows up to %d; run a newer lodged", k.Name, key, version, k.Version)
}
