package volume

import (
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// RecordKind is the kind of a pool's record in the store.
var RecordKind = poolKind

// DefinitionView returns the stored definition of a pool's record.
func DefinitionView(uuid string, version int, body []byte) (store.DefinitionView, error) {
	var r poolRecord
	if err := poolKind.Decode(uuid, version, body, &r); err != nil || r.Saved == "" {
		return store.DefinitionView{}, err
	}
	d, err := parsePool(r.Saved, uuid, false)
	if err != nil {
		return store.DefinitionView{}, err
	}
	text, err := xmltree.Format(d.document(space{}))
	return store.DefinitionView{Name: d.name, UUID: uuid, XML: text, Autostart: r.Autostart}, err
}

// Check says whether a pool's document can be parsed, and returns its name.
func Check(doc string) (name string, err error) {
	d, err := parsePool(doc, "", false)
	if err != nil {
		return "", err
	}
	return d.name, nil
}
