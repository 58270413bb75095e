package pages

import (
	"fmt"
	"strings"

	"github.com/lodge-kvm/lodge/lab"
)

// intoPage puts the run between a page's marks for its scenario.
func (f *facts) intoPage(path string) error {
	return lab.IntoPage(path, lab.Inline(plain(f.run.Scenario.Name)), f.markdown())
}

// markdown is what a page among others has room for: the verdict, loads as wholes,
// how tiles share and add up, bounds, both sides' counts and what is missing. Single
// operations, guests and pictures have a page of their own.
func (f *facts) markdown() string {
	var out strings.Builder
	for _, sentence := range f.verdict() {
		fmt.Fprintf(&out, "- %s\n", lab.Inline(sentence))
	}
	for _, t := range filled(append(append(f.winnerTables(), f.loadTables(true)...), f.addedUp(), f.efficiencyTable(), f.bounds(), f.books(), f.missing())) {
		out.WriteString("\n" + t.Markdown())
	}
	out.WriteString("\n")
	for _, one := range f.what() {
		switch name, _, _ := strings.Cut(one.Name, " "); name {
		case "scenario", "started", "plan", "host", "image", "load":
			fmt.Fprintf(&out, "- %s: %s.\n", one.Name, lab.Inline(one.Value))
		}
	}
	for _, t := range f.run.Targets {
		fmt.Fprintf(&out, "- %s: %s.\n", lab.Inline(plain(t.Name)), lab.Inline(plain(described(t))))
	}
	return out.String()
}
