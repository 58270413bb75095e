package schema_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/mechanism/qmp/schema"
)

// FuzzParse queries the schema that any QEMU, also a hostile one, sends. Each query
// ends, also if types form cycles.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`[{"name":"query-status","meta-type":"command","arg-type":"0","ret-type":"1"},{"name":"0","meta-type":"object","members":[{"name":"a","type":"2","default":null}]},
		{"name":"1","meta-type":"array","element-type":"1"},{"name":"2","meta-type":"enum","values":["x"]}]`), "query-status/a/x")
	f.Add([]byte(`[null,{"name":"c","meta-type":"command","arg-type":"u"},{"name":"u","meta-type":"object","tag":"t","variants":[{"case":"k","type":"u"}],"members":[{"name":"t","type":"u"}]}]`), "c/t/k")
	f.Fuzz(func(t *testing.T, answer []byte, path string) {
		s, err := schema.Parse(answer)
		if err != nil {
			return
		}
		if !slices.IsSorted(s.Commands()) || !slices.IsSorted(s.Events()) {
			t.Fatal("names are out of order")
		}
		for _, name := range s.Commands() {
			if !strings.Contains(name, "/") && !s.Has(name) {
				t.Fatalf("the command %q is listed, and not there", name)
			}
		}
		for _, value := range s.Values(path) {
			if !strings.Contains(value, "/") && !s.Has(path+"/"+value) {
				t.Fatalf("%s may be %q, and may not", path, value)
			}
		}
		_ = s.AnswerValues(path)
	})
}
