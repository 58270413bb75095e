package lab

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// A page keeps its own words around the marks; between them is what the lab
// last wrote. Each kind of figures has marks of its own.
func marks(kind string) (begin, end string) {
	return "<!-- " + kind + " figures: written by lodge lab -->\n", "<!-- end of " + kind + " figures -->\n"
}

// IntoPage puts the report between the marks of a page, in place of what is
// there.
func (r Report) IntoPage(path string) error { return IntoPage(path, "start", r.Markdown()) }

// IntoPage puts text between a page's marks for a kind of figures, in place of
// what is there. A page that does not exist yet becomes one with nothing else.
func IntoPage(path, kind, text string) error {
	begin, end := marks(kind)
	page, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		page, err = []byte("# Figures\n\n"+begin+end), nil
	}
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot read the page")
	}
	before, rest, opened := bytes.Cut(page, []byte(begin))
	_, after, closed := bytes.Cut(rest, []byte(end))
	if !opened || !closed {
		return fault.New(fault.Invalid, fault.Host, "%s has no place for figures: it wants the two lines\n%s%s", path, begin, end)
	}
	written := fmt.Appendf(nil, "%s%s\n%s%s%s", before, begin, text, end, after)
	return fault.Wrap(os.WriteFile(path, written, 0o644), fault.Failed, fault.Host, "cannot write the page")
}
