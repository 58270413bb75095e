package xmltree

import "strings"

// Says reports whether an element holds anything: an attribute that is no namespace's
// declaration, an element or text. Clients that print every part of their own model
// write elements that say nothing.
func (e *Element) Says() bool {
	if strings.TrimSpace(e.Text()) != "" || len(e.Elements()) > 0 {
		return true
	}
	for _, a := range e.Attrs {
		if !a.isDeclaration() {
			return true
		}
	}
	return false
}
