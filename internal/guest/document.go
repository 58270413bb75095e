package guest

import (
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
)

// RecordKind is the kind of record that keeps a persistent guest.
var RecordKind = domains

// Document gives what a guest's record defines.
func Document(uuid string, version int, body []byte) (store.Document, error) {
	var r record
	err := domains.Decode(uuid, version, body, &r)
	return store.Document{Name: r.Name, UUID: uuid, XML: r.XML, Autostart: r.Autostart, Template: r.Template, Fenced: len(r.Fences) > 0}, err
}

// WithFormats writes into a document in which formats the volumes are that its disks name
// without one; format gives "" for what it does not know. What cannot be understood stays as it is.
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
