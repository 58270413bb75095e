package store

import (
	"bytes"
	"encoding/json"
	"testing"
)

// FuzzRecord opens one record of a file that may be damaged. An accepted record is one that was
// encoded for the same kind and key, and in a layout that is known.
func FuzzRecord(f *testing.F) {
	f.Add("domain", "11111111-2222-3333-4444-555555555555", encodeRecord("domain", "11111111-2222-3333-4444-555555555555", 1, 7, []byte(`{"Name":"a"}`)))
	f.Add("a b", "\"\n", encodeRecord("a b", "\"\n", 2, 1<<63, []byte("null")))
	f.Add("seed", "x", []byte(`{"version":1,"record":{"a":1}}`))
	f.Add("seed", "x", []byte(`{"version":99,"record":1}`))
	f.Fuzz(func(t *testing.T, kind, key string, data []byte) {
		sealedAgain := encodeRecord(kind, key, 1, 2, data)
		if r, err := decodeAs(kind, key, sealedAgain); err != nil || !bytes.Equal(r.body, data) || r.kind != kind || r.key != key || r.version != 1 || r.serial != 2 {
			t.Fatalf("what was sealed is opened as %+v, %v", r, err)
		}
		for at := range sealedAgain {
			spoilt := bytes.Clone(sealedAgain)
			spoilt[at] ^= 0x40
			if r, err := decodeAs(kind, key, spoilt); err == nil && !bytes.Equal(r.body, data) {
				t.Fatalf("with byte %d changed it is opened as %q", at, r.body)
			}
			if at > 64 {
				break
			}
		}
		r, err := decodeAs(kind, key, data)
		if err != nil {
			return
		}
		var value json.RawMessage
		if err := (Kind{Name: kind, Version: 1}).decode(key, data, &value); err == nil && r.version > 1 {
			t.Fatalf("layout %d is understood as 1: %s", r.version, value)
		}
	})
}
