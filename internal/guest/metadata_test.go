package guest

import (
	"strconv"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// Texts that no XML document can hold are refused before they spoil the record of a guest, which no later
// daemon could read.
// Promise: X9
func TestMetadata_InvalidXML(t *testing.T) {
	for _, text := range []string{"\x01", "\xff", "\uFFFE"} {
		for _, kind := range []MetadataKind{Description, Title} {
			d := &domain.Definition{Description: "a", Title: "b"}
			if err := setMetadata(d, kind, &text, "", ""); !fault.Is(err, fault.Invalid) || d.Description != "a" || d.Title != "b" {
				t.Errorf("the %s %q: %v, %+v", kind, text, err, d)
			}
		}
	}
}

// Escaped text is longer than the text. A definition that would be too long to read when it is escaped is
// refused.
// Promise: X9
func TestMetadata_DefinitionReadable(t *testing.T) {
	r := &machine.Registry{GuestsByName: map[string]*machine.Guest{}, GuestsByUUID: map[string]*machine.Guest{}}
	g := &machine.Guest{Reg: r, Inactive: &domain.Definition{}}
	quotes := strings.Repeat(`"`, xmltree.MaxSize/5) // each takes six bytes in a document
	if err := provision.Redefine(g, &domain.Definition{Description: quotes}); !fault.Is(err, fault.Invalid) {
		t.Errorf("a definition of more than %d bytes is kept: %v", xmltree.MaxSize, err)
	}
}

// A new guest's name is valid as the name of its log. Lists with the maximal number of such names fit into one
// answer.
// Promise: X9
func TestDefine_NameLength(t *testing.T) {
	r := bareRegistry(t)
	nothing := func(*machine.Guest) error { return nil }
	if _, err := withClaimedGuest(t.Context(), r, strings.Repeat("x", 247), claimedUUID, nothing); err != nil {
		t.Error(err)
	}
	for _, name := range []string{strings.Repeat("x", 248), "..", "a\rb", " "} {
		if _, err := withClaimedGuest(t.Context(), r, name, "c0ffee00-0000-4000-8000-0000000000a7", nothing); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// The list of guests is filled up to its limit.
// Promise: X9
func TestDefine_MaxGuests(t *testing.T) {
	r := &machine.Registry{GuestsByName: map[string]*machine.Guest{}, GuestsByUUID: map[string]*machine.Guest{}}
	for i := range machine.MaxGuests {
		r.GuestsByUUID[strconv.Itoa(i)] = nil
	}
	if _, err := claimGuest(r, "one-more", "u", true); !fault.Is(err, fault.NoCapacity) {
		t.Errorf("one more: %v", err)
	}
}
