package pages

import (
	"bytes"
	_ "embed"
	"html/template"
	"os"

	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/lab"
	"github.com/lodge-kvm/lodge/lab/sheet"
)

//go:embed page.html
var pageText string

var pageTemplate = template.Must(template.New("page").Parse(pageText))

// page is what the template is filled with.
type page struct {
	Title    string
	Style    template.CSS
	Verdict  []string
	What     []fact
	Pictures []picture
	Tables   []lab.Table
}

func (f *facts) html() ([]byte, error) {
	var out bytes.Buffer
	err := pageTemplate.Execute(&out, page{
		Title: plain(f.run.Scenario.Name + ", profile " + f.run.Scenario.Profile),
		Style: template.CSS(sheet.Style()), Verdict: f.verdict(), What: f.what(), Pictures: f.pictures(), Tables: f.tables(),
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
