package network

import (
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Each verb refuses the zero value of a scope, and changes nothing.
func TestVerbs_ZeroScope(t *testing.T) {
	s := networks(t)
	n, err := s.Define(t.Context(), scope.Daemon("a test"), natNetwork("there", 73), false)
	ok(t, err)
	ctx, none := t.Context(), scope.Scope{}
	for verb, err := range map[string]error{
		"define":    second(s.Define(ctx, none, natNetwork("new", 74), false)),
		"create":    second(s.Create(ctx, none, natNetwork("new", 74), false)),
		"start":     n.Start(ctx, none),
		"destroy":   n.Destroy(ctx, none),
		"undefine":  n.Undefine(ctx, none),
		"autostart": n.SetAutostart(ctx, none, true),
		"metadata":  n.SetMetadata(ctx, none, TextTitle, "a title", "", "", Affect{Config: true}),
		"update":    n.Update(ctx, none, Update{AddLast, SectionDNSTXT, -1, "<txt name='a' value='b'/>", Affect{Config: true}}),
		"nic":       third(s.AttachNIC(ctx, none, &device.NIC{Type: "user"}, "guest", nil)),
	} {
		if !fault.Is(err, fault.Denied) {
			t.Errorf("%s: %v", verb, err)
		}
	}
	if all := s.List(); len(all) != 1 || all[0].View().Active() {
		t.Errorf("there are %d networks", len(all))
	}
}

func second[T any](_ T, err error) error { return err }

func third[T, U any](_ T, _ U, err error) error { return err }
