package api

import (
	"bytes"
	"runtime"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/lodge-kvm/lodge/api/lodgev1"
)

// TestCount_EmptyStrings sends as many empty strings as fit into a message: decoded, they would
// take thirty times the memory.
// Promise: X8
func TestCount_EmptyStrings(t *testing.T) {
	const size = 32 << 20
	word := protowire.AppendString(protowire.AppendTag(nil, 8, protowire.BytesType), "") // a document
	setting := protowire.AppendBytes(protowire.AppendTag(nil, 12, protowire.BytesType), nil)
	settings := bytes.Repeat(setting, size/len(setting))
	for what, c := range map[string]struct {
		codec connect.Codec
		text  []byte
	}{
		"words":                 {binaryCodec{}, bytes.Repeat(word, size/len(word))},
		"members, a depth down": {binaryCodec{}, protowire.AppendBytes(protowire.AppendTag(nil, optionsField(t), protowire.BytesType), settings)},
		"JSON":                  {jsonCodec{"json"}, []byte(`{"documents":["` + strings.Repeat(`","`, size/3) + `"]}`)},
		"nothing but brackets":  {jsonCodec{"json"}, bytes.Repeat([]byte("["), size)},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := c.codec.Unmarshal(c.text, new(lodgev1.ActRequest))
		runtime.ReadMemStats(&after)
		if err == nil || !strings.Contains(err.Error(), "a message has more than") {
			t.Errorf("%s: %v", what, err)
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > 1<<20 {
			t.Errorf("%s: %d bytes were allocated", what, took)
		}
	}
}

// optionsField is the number of the options among the fields of a request to act.
func optionsField(t *testing.T) protowire.Number {
	t.Helper()
	field := new(lodgev1.ActRequest).ProtoReflect().Descriptor().Fields().ByName("options")
	if field == nil {
		t.Fatal("a request has no options")
	}
	return field.Number()
}

// TestCount_AcceptsClientMessages sends long texts with every punctuation mark, in both encodings.
func TestCount_AcceptsClientMessages(t *testing.T) {
	document := strings.Repeat(`<a b="{[,,,\\">`, 1<<16)
	sent := &lodgev1.ActRequest{Verb: "define", Documents: []string{document}, Options: &lodgev1.Options{Settings: map[string]string{"memory": "1"}}}
	for _, codec := range []connect.Codec{binaryCodec{}, jsonCodec{"json"}} {
		text, err := codec.Marshal(sent)
		ok(t, err)
		var got lodgev1.ActRequest
		ok(t, codec.Unmarshal(text, &got))
		if got.GetVerb() != "define" || got.GetDocuments()[0] != document || got.GetOptions().GetSettings()["memory"] != "1" {
			t.Errorf("%s: what was sent is not what was understood", codec.Name())
		}
	}
}

// FuzzCount: a decoded message has no more strings than allowed, and is the same in both encodings.
// Promise: X8
func FuzzCount(f *testing.F) {
	for _, text := range []string{`{"verb":"start","select":["a\"]"]}`, `{"options":{"settings":{"a":"b","c":""},"nvram":true},"parallel":-1}`, `{"verb":"\u00e9\ud83d","odd":[[{}]]}`} {
		f.Add([]byte(text))
	}
	binary, err := binaryCodec{}.Marshal(&lodgev1.ActRequest{Verb: "x", Select: []string{"", "y"}, Options: &lodgev1.Options{Settings: map[string]string{"a": "b"}}})
	ok(f, err)
	f.Add(binary)
	f.Add([]byte{0x0a, 0x01, 'x', 0x12, 0x00})
	codecs := []connect.Codec{binaryCodec{}, jsonCodec{"json"}}
	f.Fuzz(func(t *testing.T, text []byte) {
		for i, codec := range codecs {
			m := new(lodgev1.ActRequest)
			if codec.Unmarshal(text, m) != nil {
				continue
			}
			if n := len(m.GetSelect()) + len(m.GetDocuments()) + len(m.GetOptions().GetSettings()); n > maxItems || n > len(text) {
				t.Fatalf("%d words are taken of %d bytes", n, len(text))
			}
			other, again := codecs[1-i], new(lodgev1.ActRequest)
			sent, err := other.Marshal(m)
			if err != nil {
				continue // its duration has no form in JSON
			}
			if err := other.Unmarshal(sent, again); err != nil {
				t.Fatalf("%s refuses what it says: %v", other.Name(), err)
			}
			if m, again := known(t, m), known(t, again); !proto.Equal(m, again) {
				t.Fatalf("%v is understood as %v", m, again)
			}
		}
	})
}

// known returns a message without the fields that newer clients may have sent.
func known(t *testing.T, m *lodgev1.ActRequest) *lodgev1.ActRequest {
	t.Helper()
	text, err := proto.Marshal(m)
	ok(t, err)
	kept := new(lodgev1.ActRequest)
	ok(t, proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(text, kept))
	return kept
}
