package guest

import "github.com/lodge-kvm/lodge/store"

// RecordKind is the kind of record that keeps a persistent guest.
var RecordKind = domains

// Document gives what a guest's record defines.
func Document(uuid string, version int, body []byte) (store.Document, error) {
	var r record
	err := domains.Decode(uuid, version, body, &r)
	return store.Document{Name: r.Name, UUID: uuid, XML: r.XML, Autostart: r.Autostart, Template: r.Template}, err
}
