package cli

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/lodge-kvm/lodge/api/lodgev1"
)

// Check shows what an administrator should know of the chosen guests, a line each.
// The error is an *Ending, also when there is something.
func (c *Client) Check(ctx context.Context, selectors []string, out io.Writer) error {
	guests, err := c.chosen(ctx, selectors)
	if err != nil {
		return Failed(err)
	}
	found, err := tell(guests, out, (*lodgev1.Guest).GetMessages)
	if err == nil && found > 0 {
		return &Ending{Status: SomeFailed}
	}
	return Failed(err)
}

// Why shows what the daemon chose for the selected guests without being asked: settings, each in one line with the
// reason and how to undo it, and the memory of those that run. The error is an *Ending.
func (c *Client) Why(ctx context.Context, selectors []string, out io.Writer) error {
	guests, err := c.chosen(ctx, selectors)
	if err != nil {
		return Failed(err)
	}
	if !slices.ContainsFunc(guests, runs) {
		_, err = tell(guests, out, (*lodgev1.Guest).GetDecisions)
		return Failed(err)
	}
	m, err := c.Memory(ctx, &lodgev1.MemoryRequest{Select: selectors})
	if err != nil {
		return Failed(err)
	}
	lines := map[string]*lodgev1.MemoryDecision{}
	for _, g := range m.GetGuests() {
		lines[g.GetUuid()] = g
	}
	_, err = tell(guests, out, func(g *lodgev1.Guest) []string {
		texts := g.GetDecisions()
		if m.GetAt() == nil || !runs(g) {
			return texts
		}
		for _, text := range whyMemory(g, lines[g.GetUuid()]) {
			texts = append(texts, "memory: "+text)
		}
		return texts
	})
	if err == nil && m.GetAt() == nil {
		_, err = fmt.Fprintln(out, "memory:", memorySummary(m))
	}
	return Failed(err)
}

// runs reports whether a guest has a QEMU.
func runs(g *lodgev1.Guest) bool { return g.GetPid() != 0 }

// whyMemory explains a guest's memory. There is no decision about a guest that has just started, and about one that
// neither runs nor is paused.
func whyMemory(g *lodgev1.Guest, d *lodgev1.MemoryDecision) []string {
	if d == nil {
		return []string{"nothing is decided about it while it is " + g.GetState() + ", or has just started"}
	}
	return explainMemory(d)
}

// chosen asks for the selected guests, and refuses selectors that choose none.
func (c *Client) chosen(ctx context.Context, selectors []string) ([]*lodgev1.Guest, error) {
	answer, err := c.ListGuests(ctx, &lodgev1.ListGuestsRequest{Select: selectors})
	if err == nil && len(answer.GetGuests()) == 0 && len(selectors) > 0 {
		err = noneSelected(selectors)
	}
	return answer.GetGuests(), err
}

func noneSelected(selectors []string) error {
	if len(selectors) == 1 {
		return unusable("no guest is selected by %q", selectors[0])
	}
	return unusable("no guest is selected by %q or the others", selectors[0])
}

// tell writes a line for each text of each guest, and counts them.
func tell(guests []*lodgev1.Guest, out io.Writer, texts func(*lodgev1.Guest) []string) (int, error) {
	found := 0
	for _, g := range guests {
		for _, text := range texts(g) {
			found++
			if _, err := fmt.Fprintf(out, "%s: %s\n", Clean(g.GetName()), sentence(text)); err != nil {
				return found, err
			}
		}
	}
	return found, nil
}
