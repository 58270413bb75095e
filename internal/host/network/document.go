package network

import "github.com/lodge-kvm/lodge/internal/mechanism/store"

// RecordKind is the kind of a network's record.
var RecordKind = kind

// Document returns the definition in a network's record.
func Document(uuid string, version int, body []byte) (store.Document, error) {
	var r record
	if err := kind.Decode(uuid, version, body, &r); err != nil {
		return store.Document{}, err
	}
	d, err := Parse(r.Definition, false)
	return store.Document{Name: d.Name, UUID: uuid, XML: r.Definition, Autostart: r.Autostart}, err
}
