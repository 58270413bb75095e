package domain

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// maxName is the length of a name in bytes, as libvirt has it: while it writes a definition
// its file is called NAME.xml.new, and file systems allow 255.
const maxName = 247

// CheckName refuses a name that cannot be printed, or that would change the folder of a path
// that contains it.
func CheckName(name string) error {
	bad := func(why string) error {
		return fault.New(fault.Invalid, fault.XML, "domain name %q %s; choose another", name, why)
	}
	switch {
	case strings.TrimSpace(name) == "":
		return bad("is empty")
	case len(name) > maxName:
		return fault.New(fault.Invalid, fault.XML, "a domain name of %d bytes is too long; at most %d", len(name), maxName)
	case name == "." || name == "..", strings.Contains(name, "/"):
		return bad("contains '/' or is a directory")
	case !utf8.ValidString(name):
		return bad("is not UTF-8")
	case strings.ContainsFunc(name, unicode.IsControl), strings.ContainsAny(name, "\uFFFE\uFFFF"):
		return bad("contains a control character")
	}
	return nil
}

// SetTitle sets the title, which is one line.
func (d *Definition) SetTitle(title string) error {
	if strings.ContainsAny(title, "\n\r") {
		return fault.New(fault.Invalid, fault.XML, "a domain title cannot contain a line break")
	}
	d.Title = title
	return nil
}
