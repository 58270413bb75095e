package qemu

import (
	"regexp"
	"runtime"
	"testing"
)

// A number takes a few digits to write, and must not cost more to read: it may not
// result in that many arguments, devices or bytes in the daemon.
// Promise: X3
func TestArguments_LargeNumbers(t *testing.T) {
	const (
		many  = "1000000"
		bound = 64 << 20 // bytes; 64 for each of many, beside what a document takes
	)
	number := regexp.MustCompile(`(["'>])\d{1,12}(["'<])`)
	c := testCapabilities(t)
	for name, g := range goldens(t) {
		for _, at := range number.FindAllStringIndex(g.doc, -1) {
			doc := g.doc[:at[0]+1] + many + g.doc[at[1]-1:]
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			if def, err := understand(doc, c); err == nil {
				AssignAliases(def)
				_, _ = Arguments(testPlan(def, c, "/run/g")) // refused or not, it is bounded
			}
			runtime.ReadMemStats(&after)
			if spent := after.TotalAlloc - before.TotalAlloc; spent > bound {
				t.Errorf("%s: %d MiB for %s", name, spent>>20, doc[max(0, at[0]-60):min(len(doc), at[0]+20)])
			}
		}
	}
}
