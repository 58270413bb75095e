package memoryreport

import (
	"fmt"
	"io"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab"
	"github.com/lodge-kvm/lodge/lab/sheet"
)

// Output names where a report goes, in addition to the terminal. Empty names are left out.
type Output struct {
	Markdown string // page that gets the tables between its marks
	SVG      string // directory for the pictures, each as a file
}

// Show reports on the rows of a file.
func Show(path string, text io.Writer, o Output) error {
	s, err := load(path)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(text, s.text()); err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot show the report")
	}
	if o.SVG != "" {
		if err := sheet.Keep(o.SVG, s.figures()); err != nil {
			return err
		}
	}
	if o.Markdown == "" {
		return nil
	}
	return lab.IntoPage(o.Markdown, "memory", s.markdown())
}

func (s *study) text() string {
	var out strings.Builder
	for _, finding := range s.findings() {
		out.WriteString(finding + "\n")
	}
	for _, t := range s.tables() {
		out.WriteString("\n" + t.Text())
	}
	out.WriteString("\n" + s.note() + "\n")
	return out.String()
}

func (s *study) markdown() string {
	var out strings.Builder
	for _, finding := range s.findings() {
		out.WriteString("- " + lab.Inline(finding) + "\n")
	}
	for _, t := range s.tables() {
		out.WriteString("\n" + t.Markdown())
	}
	out.WriteString("\n- " + lab.Inline(s.note()) + "\n")
	return out.String()
}

// note says what made the rows.
func (s *study) note() string {
	return fmt.Sprintf("Simulated %s in %d s by `%s` on %d processors, at commit %s.", s.Date, s.Took, s.Command, s.Processors, s.Commit)
}
