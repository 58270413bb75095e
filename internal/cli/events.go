package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lodge-kvm/lodge/api/lodgev1"
)

// Events shows what happens, until ctx ends. After is a cursor LIFE/NUMBER from an
// earlier stream, or empty for what happens from now on.
func (c *Client) Events(ctx context.Context, selectors []string, after string, asJSON bool, out io.Writer) error {
	request := &lodgev1.WatchRequest{Select: selectors}
	if after != "" {
		cursor, err := parseCursor(after)
		if err != nil {
			return err
		}
		request.After = cursor
	}
	stream, err := c.Watch(ctx, request)
	switch {
	case ctx.Err() != nil:
		return nil // the user has seen enough
	case err != nil:
		return Failed(err)
	}
	defer func() { _ = stream.Close() }()
	for stream.Receive() {
		if asJSON {
			err = printJSON(out, stream.Msg())
		} else {
			err = printEvent(out, stream.Msg())
		}
		if err != nil {
			return Failed(err)
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return Failed(stream.Err())
}

func parseCursor(text string) (*lodgev1.Cursor, error) {
	life, number, _ := strings.Cut(text, "/")
	seq, err := strconv.ParseUint(number, 10, 64)
	if err != nil || life == "" {
		return nil, unusable("%q is no cursor: it is LIFE/NUMBER, as lodge status shows", text)
	}
	return &lodgev1.Cursor{Life: life, Seq: seq}, nil
}

func printEvent(out io.Writer, m *lodgev1.WatchResponse) error {
	var line string
	switch what := m.GetWhat().(type) {
	case *lodgev1.WatchResponse_Event:
		e := what.Event
		words := []string{e.GetTime().AsTime().Local().Format("15:04:05.000"), e.GetName(), e.GetWhat()}
		if e.GetObject() != "guest" {
			words[1] = e.GetObject() + " " + words[1]
		}
		if e.GetDetail() != "" {
			words = append(words, "("+e.GetDetail()+")")
		}
		for _, name := range slices.Sorted(maps.Keys(e.GetFields())) {
			words = append(words, name+"="+e.GetFields()[name])
		}
		line = strings.Join(words, " ")
	case *lodgev1.WatchResponse_Gap:
		line = time.Now().Format("15:04:05.000") + " -- events were lost here: " + lostCount(what.Gap.GetLost())
	default:
		return nil
	}
	_, err := fmt.Fprintln(out, Clean(line))
	return err
}

func lostCount(n uint64) string {
	if n == 0 {
		return "the daemon was restarted"
	}
	return fmt.Sprintf("%d, because they were read too slowly", n)
}
