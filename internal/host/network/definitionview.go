package network

import "github.com/lodge-kvm/lodge/internal/mechanism/store"

// RecordKind is the kind of a network's record.
var RecordKind = recordKind

// DefinitionView returns the definition in a network's record.
func DefinitionView(uuid string, version int, body []byte) (store.DefinitionView, error) {
	var r record
	if err := recordKind.Decode(uuid, version, body, &r); err != nil {
		return store.DefinitionView{}, err
	}
	d, err := Parse(r.Definition, false)
	return store.DefinitionView{Name: d.Name, UUID: uuid, XML: r.Definition, Autostart: r.Autostart}, err
}
