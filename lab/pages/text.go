package pages

import (
	"fmt"
	"io"
	"strings"

	"github.com/lodge-kvm/lodge/fault"
)

// Report shows the run in a directory on a terminal. It writes a page with pictures to
// the file named html, and puts tables between the marks of the page of Markdown named
// page; an empty name is left out.
func Report(dir string, text io.Writer, html, page string) error {
	f, err := load(dir)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(text, f.text()); err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot show the report")
	}
	if html != "" {
		if err := f.save(html); err != nil {
			return err
		}
	}
	if page == "" {
		return nil
	}
	return f.intoPage(page)
}

func (f *facts) text() string {
	var out strings.Builder
	for _, sentence := range f.verdict() {
		fmt.Fprintf(&out, "%s\n", sentence)
	}
	out.WriteString("\n")
	for _, one := range f.what() {
		fmt.Fprintf(&out, "%-12s  %s\n", one.Name, one.Value)
	}
	for _, t := range f.tables() {
		out.WriteString("\n" + t.Text())
	}
	return out.String()
}
