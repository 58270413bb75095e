package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lodge-kvm/lodge/api/lodgev1"
)

// The output formats of List.
const (
	Narrow = "table"
	Wide   = "wide"
	JSON   = "json"
)

// spare lists the columns that a narrow terminal can do without; fit leaves out the first one first.
var spare = []string{"KEPT", "ID", "CPU TIME", "UUID", "ISOLATION", "SAMPLE", "REASON", "RESIDENT", "TILE", "WAITS FOR", "SINCE", "LABELS", "PID", "MESSAGES"}

// List shows the selected guests, or all guests if there is no selector. The form is
// Narrow, Wide or JSON. Tables fit a terminal of width characters; 0 means no terminal, and
// shows everything.
func (c *Client) List(ctx context.Context, selectors []string, form string, width int, out io.Writer) error {
	answer, err := c.ListGuests(ctx, &lodgev1.ListGuestsRequest{Select: selectors})
	if err != nil {
		return Failed(err)
	}
	switch form {
	case JSON:
		for _, g := range answer.GetGuests() {
			if err := printJSON(out, g); err != nil {
				return Failed(err)
			}
		}
	case Narrow, Wide:
		t := guestTable(answer.GetGuests(), form == Wide, time.Now())
		t.fit(width, spare...)
		if err := t.write(out); err != nil {
			return Failed(err)
		}
	default:
		return unusable("guests are shown as %s, %s or %s, not as %q", Narrow, Wide, JSON, form)
	}
	if len(answer.GetGuests()) == 0 && len(selectors) > 0 {
		return noneSelected(selectors)
	}
	return nil
}

func guestTable(guests []*lodgev1.Guest, wide bool, now time.Time) *table {
	t := &table{titles: []string{"NAME", "STATE", "VCPUS ", "MEMORY ", "PID ", "SINCE ", "TILE", "LABELS", "WAITS FOR"}}
	if wide {
		t.titles = append(t.titles, "ID ", "UUID", "REASON", "KEPT", "RESIDENT ", "CPU TIME ", "SAMPLE ", "ISOLATION", "MESSAGES")
	}
	for _, g := range guests {
		row := []string{
			g.GetName(), g.GetState(), fmt.Sprint(g.GetVcpus()), size(g.GetMemory()), numberOrNone(g.GetPid()), ago(g.GetSince(), now),
			orNone(g.GetTile()), orNone(labels(g.GetLabels())), orNone(wait(g.GetWait(), now)),
		}
		if wide {
			row = append(row, numberOrNone(g.GetId()), g.GetUuid(), g.GetReason(), orNone(kept(g)))
			row = append(row, sampled(g.GetSample())...)
			row = append(row, orNone(strings.Join(g.GetIsolation(), ",")), orNone(strings.Join(g.GetMessages(), "; ")))
		}
		t.add(row...)
	}
	return t
}

func numberOrNone(n int32) string {
	if n == 0 {
		return none
	}
	return fmt.Sprint(n)
}

// labels shows all but the tile, which has a column of its own.
func labels(of map[string]string) string {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(of)) {
		switch {
		case name == "tile":
		case of[name] == "":
			words = append(words, name)
		default:
			words = append(words, name+":"+of[name])
		}
	}
	return strings.Join(words, ",")
}

func wait(w *lodgev1.Wait, now time.Time) string {
	if w == nil {
		return ""
	}
	return w.GetWhat() + " (" + ago(w.GetSince(), now) + ")"
}

// kept lists the traits that decide whether a guest survives a stop of itself or of
// the host: persistent, autostart, saved, template.
func kept(g *lodgev1.Guest) string {
	var words []string
	if g.GetPersistent() {
		words = append(words, "persistent")
	}
	if g.GetAutostart() {
		words = append(words, "autostart")
	}
	if g.GetManagedSave() {
		words = append(words, "saved")
	}
	if g.GetTemplate() {
		words = append(words, "template")
	}
	return strings.Join(words, ",")
}

func sampled(s *lodgev1.Sample) []string {
	if s == nil {
		return []string{none, none, none}
	}
	return []string{size(s.GetResident()), span(s.GetCpu().AsDuration()), age(s)}
}

// age shows how old a sample is, with a mark where a newer one should be there.
func age(s *lodgev1.Sample) string {
	text := span(s.GetAge().AsDuration().Round(100 * time.Millisecond))
	if s.GetStale() != "" {
		text += " stale"
	}
	return text
}
