package main

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// turn is a target that is run for some time.
type turn struct {
	target
	length time.Duration
	had    time.Duration // time so far, from the ledger
	from   int           // the row of the page that names the source of the target's inputs
	weight int           // its share of the time, relative to others
}

// due is the target's fuzzing time, with the planned length, divided by its weight.
func (t turn) due() time.Duration { return (t.had + t.length) / time.Duration(t.weight) }

const (
	// portion is the least time that is worth building a target.
	portion = 10 * time.Second
	// Targets with untrusted inputs run longer than the others, by this factor.
	exposedWeight = 2
)

// exposed are the rows of the page with untrusted inputs.
var exposed = []string{"clients", "QEMU, guests", "images"}

// campaign divides the total time into portions. Each portion goes to the target with the least time for its
// weight. It returns the turns: targets in the upper rows of the page first, and within a row those with the least
// time.
func campaign(total time.Duration, turns []turn, page string) ([]turn, error) {
	before, lines, _, err := readLedger(page)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", ledgerPage, err)
	}
	from := sources(before)
	for i, t := range turns {
		row, told := from[t.String()]
		if !told {
			return nil, fmt.Errorf("cannot weight %s: %s does not name the source of its inputs", t.target, ledgerPage)
		}
		turns[i].length, turns[i].had = 0, time.Duration(lines[t.String()].seconds)*time.Second
		turns[i].from, turns[i].weight = row.number, 1
		if slices.Contains(exposed, row.from) {
			turns[i].weight = exposedWeight
		}
	}
	slices.SortStableFunc(turns, func(a, b turn) int { return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.had, b.had)) })
	for given := time.Duration(0); given < total; given += portion {
		least := 0
		for i := range turns {
			if turns[i].due() < turns[least].due() {
				least = i
			}
		}
		turns[least].length += portion
	}
	return slices.DeleteFunc(turns, func(t turn) bool { return t.length == 0 }), nil
}

// source is a row of the page's first table.
type source struct {
	from   string
	number int
}

// The cells of such a row, counted from what stands before its first bar.
const (
	fromCell    = 1
	minutesCell = 3
	targetsCell = 4
	sourceCells = 6
)

var named = regexp.MustCompile("`([^`]+\\.Fuzz\\w+)`")

// sources reads the page's first table: the source of each target's inputs. A row without a first cell belongs to
// the row above.
func sources(text string) map[string]source {
	found, row := map[string]source{}, source{}
	for line := range strings.Lines(text) {
		cells := strings.Split(line, "|")
		if len(cells) != sourceCells {
			continue
		}
		if from := strings.TrimSpace(cells[fromCell]); from != "" {
			row = source{from, row.number + 1}
		}
		for _, name := range named.FindAllStringSubmatch(cells[targetsCell], -1) {
			found[name[1]] = row
		}
	}
	return found
}

// writeSources gives the text with the minutes that the targets of each row were run.
func writeSources(text string, lines map[string]line) string {
	var written strings.Builder
	for line := range strings.Lines(text) {
		cells := strings.Split(line, "|")
		targets := named.FindAllStringSubmatch(line, -1)
		if len(cells) == sourceCells && len(targets) > 0 {
			seconds := 0
			for _, name := range targets {
				seconds += lines[name[1]].seconds
			}
			cells[minutesCell] = fmt.Sprintf(" %d ", seconds/60)
		}
		written.WriteString(strings.Join(cells, "|"))
	}
	return written.String()
}
