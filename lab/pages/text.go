package pages

import (
	"fmt"
	"io"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Output names where a report goes besides the terminal. What is empty is left out.
type Output struct {
	HTML     string // file of a page with pictures
	SVG      string // directory for the pictures, each as a file
	Markdown string // page that gets the tables between its marks
}

// Report shows the run in a directory on a terminal, and the rest where o says.
func Report(dir string, text io.Writer, o Output) error {
	f, err := load(dir)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(text, f.text()); err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot show the report")
	}
	if o.HTML != "" {
		if err := f.save(o.HTML); err != nil {
			return err
		}
	}
	if o.SVG != "" {
		if err := f.keep(o.SVG); err != nil {
			return err
		}
	}
	if o.Markdown == "" {
		return nil
	}
	return f.intoPage(o.Markdown)
}

func (f *facts) text() string { return explained(f.words()) }

// explained is a text with a legend of its words.
func explained(text string) string {
	var out strings.Builder
	out.WriteString(text + "\nWords\n\n")
	words := legend(text)
	longest := 0
	for _, one := range words {
		longest = max(longest, len(one.Name))
	}
	for _, one := range words {
		fmt.Fprintf(&out, "%-*s  %s\n", longest, one.Name, wrapped(one.Value, longest+2))
	}
	return out.String()
}

// words is the report without its legend.
func (f *facts) words() string {
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
		if t.Title == efficiencyTitle {
			out.WriteString("\n" + f.efficiencyText())
		}
	}
	return out.String()
}
