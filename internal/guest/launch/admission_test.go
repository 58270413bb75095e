package launch

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
	"github.com/lodge-kvm/lodge/internal/host/resources"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// What a start asks of the host's memory: a guest that is loaded from an image
// touches its memory even if it stays paused, and locked memory is taken at once.
func TestStartRequest(t *testing.T) {
	def := &domain.Definition{Name: "n", UUID: "u", Memory: 1 << 30}
	locked := def.Clone()
	locked.Backing.Locked = true
	for name, c := range map[string]struct {
		def  *domain.Definition
		from *savestate.SavedImage
		opts StartOptions
		want resources.StartRequest
	}{
		"cold":   {def: def},
		"paused": {def: def, opts: StartOptions{Paused: true}, want: resources.StartRequest{Paused: true}},
		"loaded": {def: def, opts: StartOptions{Paused: true}, from: &savestate.SavedImage{}},
		"locked": {def: locked, want: resources.StartRequest{Whole: true}},
		"early":  {def: def, opts: StartOptions{Priority: -3}, want: resources.StartRequest{Priority: -3}},
	} {
		l := Launch{Instance: &machine.Instance{Definition: c.def}, opts: c.opts, From: c.from}
		c.want.Guest, c.want.Name, c.want.Memory = "u", "n", 1<<30
		if diff := cmp.Diff(c.want, l.startRequest()); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
