package secret

import (
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Each verb refuses the zero value of a scope, and changes nothing.
func TestVerbs_ZeroScope(t *testing.T) {
	b, none := &Secrets{}, scope.Scope{} // the zero Secrets has nothing that a verb could touch
	_, defined := b.Define(none, "<secret/>", false)
	_, shown := b.Show(none, "id")
	for verb, err := range map[string]error{
		"define": defined, "show": shown, "undefine": b.Undefine(none, "id"), "value": b.SetValue(none, "id", nil),
	} {
		if !fault.Is(err, fault.Denied) {
			t.Errorf("%s: %v", verb, err)
		}
	}
}
