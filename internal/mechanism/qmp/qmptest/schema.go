package qmptest

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"io"
	"sync"
	"testing"

	"github.com/lodge-kvm/lodge/internal/mechanism/qmp/schema"
)

// recorded is the answer of QEMU 7.2 to query-qmp-schema.
//
//go:embed testdata/qemu-7.2-schema.json.gz
var recorded []byte

var parseRecorded = sync.OnceValues(func() (*schema.Schema, error) {
	unpacked, err := gzip.NewReader(bytes.NewReader(recorded))
	if err != nil {
		return nil, err
	}
	answer, err := io.ReadAll(unpacked)
	if err != nil {
		return nil, err
	}
	return schema.Parse(answer)
})

// Schema is the recorded schema of QEMU 7.2, the oldest version that Lodge drives.
func Schema(t testing.TB) *schema.Schema {
	t.Helper()
	s, err := parseRecorded()
	if err != nil {
		t.Fatal(err)
	}
	return s
}
