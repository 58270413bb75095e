package secret

import "github.com/lodge-kvm/lodge/internal/mechanism/store"

// RecordKind is the kind of a secret's record.
var RecordKind = kind

// Document returns the definition in a secret's record, without the value.
func Document(uuid string, version int, body []byte) (store.Document, error) {
	var r record
	if err := kind.Decode(uuid, version, body, &r); err != nil {
		return store.Document{}, err
	}
	text, err := r.Definition.XML()
	return store.Document{Name: uuid, UUID: uuid, XML: text}, err
}
