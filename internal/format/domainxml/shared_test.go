package domainxml

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// A published definition is written by any number of goroutines while others
// read it, so writing must not change it. The race detector finds changes.
func TestFormat_InputUnchanged(t *testing.T) {
	inputs, err := filepath.Glob("testdata/define/*.xml")
	if err != nil || len(inputs) == 0 {
		t.Fatalf("no documents: %v", err)
	}
	for _, input := range inputs {
		doc, err := os.ReadFile(input)
		if err != nil {
			t.Fatal(err)
		}
		def, err := Parse(string(doc), Options{Active: true, Host: testHost()})
		if err != nil {
			t.Fatal(err)
		}
		var writers sync.WaitGroup
		for range 2 {
			for _, style := range []Style{{Active: true, Secure: true, ID: 1}, {}} {
				writers.Go(func() {
					if _, err := Format(def, style); err != nil {
						t.Errorf("%s: %v", input, err)
					}
				})
			}
		}
		writers.Wait()
	}
}
