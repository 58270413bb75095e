package guest

import (
	"testing"

	"github.com/lodge-kvm/lodge/domain"
	"github.com/lodge-kvm/lodge/fault"
)

// TestWordsThatNoDocumentHolds are refused before they spoil the record of a guest,
// which no later daemon could read.
func TestWordsThatNoDocumentHolds(t *testing.T) {
	for _, text := range []string{"\x01", "\xff", "\uFFFE"} {
		for _, kind := range []MetadataKind{Description, Title} {
			d := &domain.Definition{Description: "a", Title: "b"}
			if err := setMetadata(d, kind, &text, "", ""); !fault.Is(err, fault.Invalid) || d.Description != "a" || d.Title != "b" {
				t.Errorf("the %s %q: %v, %+v", kind, text, err, d)
			}
		}
	}
}
