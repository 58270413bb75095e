package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/lodge-kvm/lodge/api/lodgev1"
)

// Check shows what an administrator should know of the chosen guests, a line each.
// The error is an *Ending, also when there is something.
func (c *Client) Check(ctx context.Context, selectors []string, out io.Writer) error {
	found, err := c.tell(ctx, selectors, out, (*lodgev1.Guest).GetMessages)
	if err == nil && found > 0 {
		return &Ending{Status: SomeFailed}
	}
	return err
}

// Why shows the settings that the daemon chose for the selected guests without being
// asked. Each is one line, with the reason and how to undo it. The error is an *Ending.
func (c *Client) Why(ctx context.Context, selectors []string, out io.Writer) error {
	_, err := c.tell(ctx, selectors, out, (*lodgev1.Guest).GetDecisions)
	return err
}

// tell writes a line for each text of each chosen guest, and counts them.
func (c *Client) tell(ctx context.Context, selectors []string, out io.Writer, texts func(*lodgev1.Guest) []string) (int, error) {
	answer, err := c.ListGuests(ctx, &lodgev1.ListGuestsRequest{Select: selectors})
	if err != nil {
		return 0, Failed(err)
	}
	if len(answer.GetGuests()) == 0 && len(selectors) > 0 {
		return 0, unusable("no guest is selected")
	}
	found := 0
	for _, g := range answer.GetGuests() {
		for _, text := range texts(g) {
			found++
			if _, err := fmt.Fprintf(out, "%s: %s\n", Clean(g.GetName()), sentence(text)); err != nil {
				return found, Failed(err)
			}
		}
	}
	return found, nil
}
