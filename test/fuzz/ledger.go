package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// line is what the ledger says of one target.
type line struct {
	seconds, tried, kept int    // seconds of processor time
	fresh                int    // of the last run, for each million of inputs tried
	last                 string // the day of the last run
	found                string // written by the person who fixed it; kept unchanged
}

const (
	heading = "| target | seconds | inputs tried | a second | kept | last run | new | found |"
	rule    = "|---|--:|--:|--:|--:|---|--:|---|"
	columns = 8
)

// record adds one run to the page. It rewrites the table, with a line for each target, and the sums in the table
// before it. The text around both does not change.
func record(page string, targets []target, t target, m measured) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before, lines, after, err := readLedger(string(text))
	if err != nil {
		return fmt.Errorf("cannot read %s: %w", page, err)
	}
	l := lines[t.String()]
	l.seconds += m.seconds
	l.tried += m.tried
	l.kept = m.kept
	l.last = m.began.UTC().Format("2006-01-02")
	l.fresh = m.fresh * 1e6 / max(m.tried, 1)
	lines[t.String()] = l
	for _, t := range targets {
		l := lines[t.String()]
		if l.found, err = withInputs(l.found, filepath.Dir(page), t); err != nil {
			return err
		}
		lines[t.String()] = l
	}
	beside := page + ".new"
	if err := os.WriteFile(beside, []byte(writeSources(before, lines)+writeLedger(targets, lines)+after), 0o644); err != nil {
		return err
	}
	return os.Rename(beside, page)
}

// readLedger splits the page into the text before its table, the table's lines by target, and the text after it.
func readLedger(text string) (before string, lines map[string]line, after string, err error) {
	before, table, found := strings.Cut(text, heading+"\n"+rule+"\n")
	if !found {
		return "", nil, "", fmt.Errorf("it has no table that begins with %q", heading)
	}
	lines = map[string]line{}
	for strings.HasPrefix(table, "|") {
		row, rest, _ := strings.Cut(table, "\n")
		table = rest
		name, l, err := readLine(row)
		if err != nil {
			return "", nil, "", fmt.Errorf("%q: %w", row, err)
		}
		lines[name] = l
	}
	return before, lines, table, nil
}

func readLine(row string) (name string, l line, err error) {
	cells := strings.SplitN(strings.TrimSuffix(strings.TrimPrefix(row, "|"), "|"), "|", columns)
	if len(cells) != columns {
		return "", line{}, fmt.Errorf("%d cells, not %d", len(cells), columns)
	}
	for n := range cells {
		cells[n] = strings.TrimSpace(cells[n])
	}
	for n, into := range map[int]*int{1: &l.seconds, 2: &l.tried, 4: &l.kept, 6: &l.fresh} { // 3 follows from them
		if *into, err = strconv.Atoi(cells[n]); err != nil {
			return "", line{}, err
		}
	}
	l.last, l.found = cells[5], cells[7]
	return cells[0], l, nil
}

// writeLedger gives the table: the targets there are now, and their sum.
func writeLedger(targets []target, lines map[string]line) string {
	var table strings.Builder
	table.WriteString(heading + "\n" + rule + "\n")
	var all line
	row := func(name string, l line) {
		fmt.Fprintf(&table, "| %s | %d | %d | %d | %d | %s | %d | %s |\n", name, l.seconds, l.tried, l.tried/max(l.seconds, 1), l.kept, l.last, l.fresh, l.found)
	}
	for _, t := range targets {
		l := lines[t.String()]
		all.seconds += l.seconds
		all.tried += l.tried
		all.kept += l.kept
		row(t.String(), l)
	}
	row("all", all)
	return table.String()
}

// withInputs adds links to the inputs that once broke the target, which every run
// of its package's tests tries again, unless the words have them already.
func withInputs(found, from string, t target) (string, error) {
	inputs, err := filepath.Glob(filepath.Join(t.Package, "testdata", "fuzz", t.Name, "*"))
	if err != nil {
		return "", err
	}
	for _, path := range inputs {
		name := filepath.Base(path)
		if strings.Contains(found, name) {
			continue
		}
		link, err := filepath.Rel(from, path)
		if err != nil {
			return "", err
		}
		found = strings.TrimSpace(fmt.Sprintf("%s [%s](%s)", found, name, link))
	}
	return found, nil
}
