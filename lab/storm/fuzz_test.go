package storm

import (
	"bytes"
	"encoding/json"
	"testing"
)

// FuzzRead reads the values of a storm: what is taken has the schema that is known and
// an end, and is read again as it was written.
func FuzzRead(f *testing.F) {
	var r Run
	r.Schema = Schema
	var text bytes.Buffer
	if err := r.Write(&text); err != nil {
		f.Fatal(err)
	}
	f.Add(text.Bytes())
	f.Add([]byte(`{"storm":{"schema":"` + Schema + `"}}` + "\n" + `{"end":{}}`))
	f.Add([]byte(`{"sample":null}{"odd":1}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := Read(bytes.NewReader(text))
		if err != nil {
			return
		}
		var written bytes.Buffer
		if err := r.Write(&written); err != nil {
			t.Fatal(err)
		}
		again, err := Read(&written)
		if err != nil {
			t.Fatalf("what was written cannot be read: %v", err)
		}
		once, _ := json.Marshal(r)
		if twice, err := json.Marshal(again); err != nil || !bytes.Equal(once, twice) {
			t.Fatalf("%s\nis read again as\n%s", once, twice)
		}
	})
}
