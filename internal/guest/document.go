package guest

import (
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
)

// RecordKind is the kind of the records of persistent guests.
var RecordKind = machine.Domains

// DefinitionView returns the document that a guest's record defines.
func DefinitionView(uuid string, version int, body []byte) (store.DefinitionView, error) {
	var r machine.Record
	err := machine.Domains.Decode(uuid, version, body, &r)
	return store.DefinitionView{Name: r.Name, UUID: uuid, XML: r.XML, Autostart: r.Autostart, Template: r.Template, Fenced: len(r.PathLimits) > 0}, err
}

// WithFormats adds the format of each volume that a document's disks name without one. format returns ""
// for a volume that it does not know. A document that cannot be parsed is returned unchanged.
func WithFormats(doc string, format func(pool, volume string) string) string {
	def, err := domainxml.Parse(doc, domainxml.Options{})
	if err != nil {
		return doc
	}
	changed := false
	for _, d := range def.Devices.Disks {
		if d.Format != "" || d.Source == nil || d.Source.Volume == nil {
			continue
		}
		d.Format = format(d.Source.Volume.Pool, d.Source.Volume.Volume)
		changed = changed || d.Format != ""
	}
	if !changed {
		return doc
	}
	text, err := domainxml.Format(def, domainxml.Style{Secure: true})
	if err != nil {
		return doc
	}
	return text
}
