package fleet

import (
	"context"

	"github.com/lodge-kvm/lodge/fault"
)

// TileTemplate is a document from which tiles are made.
type TileTemplate struct{}

// ParseTile reads a template.
func ParseTile(doc []byte) (*TileTemplate, error) {
	return nil, fault.New(fault.Unsupported, fault.Call, "not yet")
}

// CreateTiles makes the tiles first, first+1, ... of a set, count in all. Each is
// made whole or not at all. Results are one for each tile, by its name SET/NUMBER.
func (f *Fleet) CreateTiles(ctx context.Context, t *TileTemplate, set string, first, count int, dry bool, report func(Result)) (Summary, error) {
	return Summary{}, fault.New(fault.Unsupported, fault.Call, "not yet")
}

// RemoveTiles ends and undefines the guests of tiles, and deletes the volumes that
// CreateTiles made for them. Tiles are named by SET, SET/NUMBER or a glob of that.
func (f *Fleet) RemoveTiles(ctx context.Context, tiles string, dry bool, report func(Result)) (Summary, error) {
	return Summary{}, fault.New(fault.Unsupported, fault.Call, "not yet")
}

// TileState is a tile as it is now.
type TileState struct {
	Set             string
	Number          int
	Guests, Running int
	Volumes         []VolumeName
}

// Tiles gives the tiles there are, by set and number.
func (f *Fleet) Tiles() []TileState { return nil }
