package pages

import (
	"bytes"
	_ "embed"
	"os"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab"
	"github.com/lodge-kvm/lodge/lab/sheet"
)

//go:embed page.html
var pageText string

var pageTemplate = sheet.Page(pageText)

// page is what the template is filled with.
type page struct {
	Title    string
	Verdict  []string
	What     []fact
	Sections []section
	Tables   []lab.Table
	Legend   []fact
}

func (f *facts) html() ([]byte, error) {
	var out bytes.Buffer
	err := pageTemplate.Execute(&out, page{
		Title:   plain(f.run.Scenario.Name + ", profile " + f.run.Scenario.Profile),
		Verdict: f.verdict(), What: f.what(), Sections: f.sections(), Tables: f.tables(), Legend: legend(f.words()),
	})
	return out.Bytes(), err
}

func (f *facts) save(path string) error {
	text, err := f.html()
	if err == nil {
		err = os.WriteFile(path, text, 0o644)
	}
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot write the report")
}

// keep writes the pictures alone.
func (f *facts) keep(dir string) error {
	var all []sheet.Figure
	for _, s := range f.sections() {
		all = append(all, s.Figures...)
	}
	return sheet.Keep(dir, all)
}
