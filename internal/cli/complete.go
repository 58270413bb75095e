package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/api/lodgev1"
)

// selectorTerms are the keys of a selector's terms, as in the help.
var selectorTerms = []string{"name=", "uuid=", "state=", "label=", "tile=", "pool=", "autostart=", "persistent=", "saved="}

var selectorStates = []string{"running", "paused", "shutoff", "crashed", "shuttingdown", "blocked", "pmsuspended", "active", "inactive"}

// CompleteSelector gives the selectors that begin with what is typed: names, tiles and labels
// that the daemon knows, and the terms. Pools are those that the caller found. Without a
// daemon it gives the terms alone.
func (c *Client) CompleteSelector(ctx context.Context, typed string, pools func() []string) []string {
	before := typed[:strings.LastIndex(typed, ",")+1]
	if strings.HasPrefix(typed[len(before):], "!") {
		before += "!"
	}
	key, _, isTerm := strings.Cut(typed[len(before):], "=")
	var words []string
	if !isTerm {
		words = append(append(c.GuestNames(ctx), "all"), selectorTerms...)
		return beginning(typed, before, words)
	}
	switch key {
	case "name":
		words = c.GuestNames(ctx)
	case "state":
		words = selectorStates
	case "label":
		words = c.labels(ctx)
	case "tile":
		words = c.TileNames(ctx)
	case "pool":
		words = pools()
	case "autostart", "persistent", "saved":
		words = []string{"yes", "no"}
	}
	return beginning(typed, before+key+"=", words)
}

// beginning puts a text before the words, and gives those that begin with what is typed.
func beginning(typed, before string, words []string) []string {
	var found []string
	for _, word := range words {
		if strings.HasPrefix(before+word, typed) {
			found = append(found, Clean(before+word))
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// knownGuests gives all guests; none where the daemon does not answer.
func (c *Client) knownGuests(ctx context.Context) []*lodgev1.Guest {
	answer, err := c.ListGuests(ctx, &lodgev1.ListGuestsRequest{})
	if err != nil {
		return nil
	}
	return answer.GetGuests()
}

// GuestNames gives the names of all guests; none where the daemon does not answer.
func (c *Client) GuestNames(ctx context.Context) []string {
	var names []string
	for _, g := range c.knownGuests(ctx) {
		names = append(names, g.GetName())
	}
	return names
}

// labels gives the labels of all guests, as NAME:VALUE.
func (c *Client) labels(ctx context.Context) []string {
	var found []string
	for _, g := range c.knownGuests(ctx) {
		for name, value := range g.GetLabels() {
			found = append(found, strings.TrimSuffix(name+":"+value, ":"))
		}
	}
	return found
}

// TileNames gives the tiles, and the sets that they belong to; none where the daemon does not answer.
func (c *Client) TileNames(ctx context.Context) []string {
	answer, err := c.ListTiles(ctx, &lodgev1.ListTilesRequest{})
	if err != nil {
		return nil
	}
	var names []string
	for _, t := range answer.GetTiles() {
		names = append(names, t.GetSet(), fmt.Sprintf("%s/%d", t.GetSet(), t.GetNumber()))
	}
	slices.Sort(names)
	return slices.Compact(names)
}
