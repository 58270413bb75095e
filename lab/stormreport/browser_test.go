package stormreport

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/lodge-kvm/lodge/lab/sheet/sheettest"
)

// Pages of storms, an invented one with all that there can be and one that was
// measured, are what they are meant to be in a real browser.
// Promise: L13
func TestABrowserShowsThePage(t *testing.T) {
	browser := sheettest.Start(t)
	for name, c := range map[string]struct {
		file     string
		pictures int
	}{
		"storm-invented": {kept(t, synthetic(3), "synthetic.ndjson"), 15},
		"storm-recorded": {filepath.Join("testdata", "small.ndjson.gz"), 5},
	} {
		_, html, _ := shown(t, c.file)
		page := filepath.Join(t.TempDir(), "page.html")
		if err := os.WriteFile(page, []byte(html), 0o600); err != nil {
			t.Fatal(err)
		}
		browser.Check(t, page, name, c.pictures)
	}
}
