package pages

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/lab/sheet/sheettest"
)

// Pages of every kind of run are what they are meant to be in a real browser, and
// give their pictures away.
// Promise: L13, L15, L60
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

// So are those of the runs that are kept in docs/lab, whichever they are.
// Promise: L60, L37
func TestABrowserShowsEveryKeptRun(t *testing.T) {
	kept, err := filepath.Glob("../../docs/lab/*/run.json")
	check(t, err)
	if len(kept) == 0 {
		t.Fatal("no run is kept: has docs/lab moved?")
	}
	browser := sheettest.Start(t)
	for _, path := range kept {
		f, err := load(filepath.Dir(path))
		check(t, err)
		pictures := 0
		for _, s := range f.sections() {
			pictures += len(s.Figures)
		}
		if pictures == 0 {
			t.Errorf("%s has no picture", path)
		}
		page := filepath.Join(t.TempDir(), "page.html")
		check(t, f.save(page))
		text, err := os.ReadFile(page)
		check(t, err)
		for _, no := range []string{"%!", "ZgotmplZ", "NaN"} {
			if strings.Contains(string(text), no) {
				t.Errorf("the page of %s has %s", path, no)
			}
		}
		browser.Check(t, page, "kept-"+filepath.Base(filepath.Dir(path)), pictures)
	}
}
