package pages

import (
	"fmt"
	"io"
	"strings"

	"github.com/lodge-kvm/lodge/fault"
)

// Report shows the run in a directory on a terminal.
func Report(dir string, text io.Writer) error {
	f, err := load(dir)
	if err != nil {
		return err
	}
	_, err = io.WriteString(text, f.text())
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot show the report")
}

func (f *facts) text() string {
	var out strings.Builder
	for _, sentence := range f.verdict() {
		fmt.Fprintf(&out, "%s\n", plain(sentence))
	}
	out.WriteString("\n")
	for _, one := range f.what() {
		fmt.Fprintf(&out, "%-12s  %s\n", plain(one.Name), one.Value)
	}
	for _, t := range f.tables() {
		for _, row := range t.Rows {
			for i := range row {
				row[i] = plain(row[i])
			}
		}
		t.Title = plain(t.Title)
		out.WriteString("\n" + t.Text())
	}
	return out.String()
}
