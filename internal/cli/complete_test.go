package cli

import (
	"context"
	"slices"
	"testing"

	"github.com/lodge-kvm/lodge/api/lodgev1"
)

func (d *daemon) ListTiles(context.Context, *lodgev1.ListTilesRequest) (*lodgev1.ListTilesResponse, error) {
	return &lodgev1.ListTilesResponse{Tiles: []*lodgev1.Tile{{Set: "shop", Number: 1}, {Set: "shop", Number: 2}}}, nil
}

func TestCompleteSelector_OffersWhatDaemonKnows(t *testing.T) {
	c := (&daemon{guests: []*lodgev1.Guest{
		{Name: "web-1", Labels: map[string]string{"app": "web"}}, {Name: "web-2", Labels: map[string]string{"app": "web", "old": ""}}, {Name: "db"},
	}}).dial(t)
	pools := func() []string { return []string{"default", "fast"} }
	for typed, want := range map[string][]string{
		"w":               {"web-1", "web-2"},
		"a":               {"all", "autostart="},
		"state=p":         {"state=paused", "state=pmsuspended"},
		"tile=":           {"tile=shop", "tile=shop/1", "tile=shop/2"},
		"label=":          {"label=app:web", "label=old"},
		"pool=f":          {"pool=fast"},
		"web-*,!saved=":   {"web-*,!saved=no", "web-*,!saved=yes"},
		"state=paused,db": {"state=paused,db"},
		"nosuch=":         nil,
	} {
		if got := c.CompleteSelector(t.Context(), typed, pools); !slices.Equal(got, want) {
			t.Errorf("%q is completed with %q, not %q", typed, got, want)
		}
	}
}

func TestCompleteSelector_NoDaemon(t *testing.T) {
	c := Dial(t.TempDir() + "/nowhere")
	defer c.Close()
	got := c.CompleteSelector(t.Context(), "sta", func() []string { return nil })
	if !slices.Equal(got, []string{"state="}) {
		t.Errorf("got %q", got)
	}
}
