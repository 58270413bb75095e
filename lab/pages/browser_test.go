package pages

import (
	"path/filepath"
	"testing"

	"github.com/lodge-kvm/lodge/lab/sheet/sheettest"
)

// Pages of every kind of run are what they are meant to be in a real browser, and
// give their pictures away.
func TestABrowserShowsEveryKindOfRun(t *testing.T) {
	browser := sheettest.Start(t)
	for _, k := range kindsOfRuns {
		if !k.opened {
			continue
		}
		page := filepath.Join(t.TempDir(), "page.html")
		check(t, invented(t, k).save(page))
		browser.Check(t, page, k.scenario+"-"+k.profile, k.pictures)
		if k.scenario == "oltp-hotadd" {
			browser.CheckKeeping(t, page)
			browser.CheckGreed(t, page)
		}
	}
}
