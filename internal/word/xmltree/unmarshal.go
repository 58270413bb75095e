package xmltree

import (
	"encoding/xml"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Unmarshal fills a value as encoding/xml does. That reads only UTF-8, and the document may have been in
// another encoding.
func (e *Element) Unmarshal(into any) error {
	text, err := Format(e)
	if err == nil {
		err = xml.Unmarshal([]byte(text), into)
	}
	return fault.Wrap(err, fault.Invalid, fault.XML, "cannot read the <%s>", e.Name)
}
