package client

import (
	"context"
	"fmt"
	"io"

	"github.com/lodge-kvm/lodge/api/lodgev1"
)

// Check shows what an administrator should know of the chosen guests, a line each.
// The error is an *Ending, also when there is something.
func (c *Client) Check(ctx context.Context, selectors []string, out io.Writer) error {
	answer, err := c.ListGuests(ctx, &lodgev1.ListGuestsRequest{Select: selectors})
	if err != nil {
		return Failed(err)
	}
	if len(answer.GetGuests()) == 0 && len(selectors) > 0 {
		return unusable("no guest is selected")
	}
	found := 0
	for _, g := range answer.GetGuests() {
		for _, message := range g.GetMessages() {
			found++
			if _, err := fmt.Fprintf(out, "%s: %s\n", g.GetName(), message); err != nil {
				return Failed(err)
			}
		}
	}
	if found > 0 {
		return &Ending{Status: SomeFailed}
	}
	return nil
}
