package secret

import "github.com/lodge-kvm/lodge/internal/mechanism/store"

// RecordKind is the kind of a secret's record.
var RecordKind = recordKind

// DefinitionView returns the definition in a secret's record, without the value.
func DefinitionView(uuid string, version int, body []byte) (store.DefinitionView, error) {
	var r record
	if err := recordKind.Decode(uuid, version, body, &r); err != nil {
		return store.DefinitionView{}, err
	}
	text, err := r.Definition.XML()
	return store.DefinitionView{Name: uuid, UUID: uuid, XML: text}, err
}
