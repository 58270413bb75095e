package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// TestCampaign_BalancesHours: the time goes to those that had the least, strangers'
// readers get twice as much as others and come first.
func TestCampaign_BalancesHours(t *testing.T) {
	const page = "| from | what | minutes | targets |\n|---|---|--:|---|\n| clients | a | 0 | `a.FuzzNew` |\n| | b | 0 | `a.FuzzOld` |\n| the lab | c | 0 | `l.FuzzNew` `l.FuzzOld` |\n\n" + heading + "\n" + rule +
		"\n| a.FuzzOld | 100 | 0 | 0 | 0 |  | 0 |  |\n| l.FuzzOld | 500 | 0 | 0 | 0 |  | 0 |  |\n"
	chosen := func() []turn {
		return []turn{{target: target{"l", "FuzzNew"}}, {target: target{"l", "FuzzOld"}}, {target: target{"a", "FuzzOld"}}, {target: target{"a", "FuzzNew"}}}
	}
	for total, want := range map[time.Duration]string{
		10 * time.Second:   "a.FuzzNew 10",
		75 * time.Second:   "a.FuzzNew 50, l.FuzzNew 30",
		400 * time.Second:  "a.FuzzNew 200, a.FuzzOld 100, l.FuzzNew 100",
		2500 * time.Second: "a.FuzzNew 1030, a.FuzzOld 930, l.FuzzNew 520, l.FuzzOld 20",
	} {
		turns, err := campaign(total, chosen(), page)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, one := range turns {
			got = append(got, fmt.Sprint(one.target, " ", one.length.Seconds()))
		}
		if got := strings.Join(got, ", "); got != want {
			t.Errorf("%v are shared out as\n%s\nwant\n%s", total, got, want)
		}
	}
	if _, err := campaign(time.Minute, []turn{{target: target{"x", "FuzzNew"}}}, page); err == nil || !strings.Contains(err.Error(), "x.FuzzNew") {
		t.Errorf("a target that the page does not place: %v", err)
	}
}

// TestPage_NamesSourceOfEachTarget, of those that there are and of no others.
func TestPage_NamesSourceOfEachTarget(t *testing.T) {
	page, err := os.ReadFile("../../" + ledgerPage)
	if err != nil {
		t.Fatal(err)
	}
	before, lines, _, err := readLedger(string(page))
	if err != nil {
		t.Fatal(err)
	}
	targets, err := findTargets("../..")
	if err != nil {
		t.Fatal(err)
	}
	from, rows := sources(before), map[string]bool{}
	for _, row := range from {
		rows[row.from] = true
	}
	for _, one := range targets {
		if _, told := from[one.String()]; !told {
			t.Errorf("%s does not name the source of the inputs of %s", ledgerPage, one)
		}
		delete(from, one.String())
	}
	for name := range from {
		t.Errorf("%s tells of %s, which is not there", ledgerPage, name)
	}
	for _, row := range exposed {
		if !rows[row] {
			t.Errorf("%s has no row of %q with %d targets in its table", ledgerPage, row, len(lines))
		}
	}
}
