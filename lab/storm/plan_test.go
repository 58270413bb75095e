package storm

import (
	"slices"
	"strings"
	"testing"
)

func TestPlan(t *testing.T) {
	for _, c := range []struct {
		scenarios     string
		guests, disks []int
		want          []Step
	}{
		{"start", []int{1, 4}, []int{0, 16}, []Step{{Start, 1, 0}, {Start, 4, 0}, {Start, 1, 16}, {Start, 4, 16}}},
		{"define", []int{4}, []int{0, 16}, []Step{{Define, 4, 16}}},
		{"define", []int{4}, []int{0}, []Step{{Define, 4, 0}}},
		{"wedge,connect,same", []int{4, 10}, []int{0, 16}, []Step{{Wedge, 10, 0}, {Connect, 1, 0}, {Same, 1, 0}}},
		{"thousand", []int{4, 1000}, []int{0}, []Step{{Thousand, 1000, 0}}},
	} {
		got, err := Plan(strings.Split(c.scenarios, ","), c.guests, c.disks)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s of %v with %v: %v, %v", c.scenarios, c.guests, c.disks, got, err)
		}
	}
	for _, c := range []struct {
		scenarios     []string
		guests, disks []int
		want          string
	}{
		{[]string{"nonsense"}, []int{1}, []int{0}, "they are start define"},
		{[]string{"start"}, []int{0}, []int{0}, "from 1 to"},
		{[]string{"start"}, nil, []int{0}, "from 1 to"},
		{[]string{"start"}, []int{1}, []int{61}, "from 0 to"},
		{[]string{"start"}, []int{5001}, []int{0}, "from 1 to"},
	} {
		if _, err := Plan(c.scenarios, c.guests, c.disks); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v of %v with %v: %v", c.scenarios, c.guests, c.disks, err)
		}
	}
}

func TestParseStep(t *testing.T) {
	for text, want := range map[string]Step{
		"start:64x16": {Start, 64, 16}, "wedge:64": {Wedge, 64, 0}, "connect": {Connect, 1, 0},
	} {
		if got, err := ParseStep(text); err != nil || got != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "start:", "start:x16", "start:1xtwo", "start:-1", "nonsense:1", "start:1x99"} {
		if got, err := ParseStep(text); err == nil {
			t.Errorf("%q is taken for %v", text, got)
		}
	}
}

func TestDiskNames(t *testing.T) {
	for i, want := range map[int]string{0: "sda", 15: "sdp", 25: "sdz", 26: "sdaa", 59: "sdbh"} {
		if got := diskName(i); got != want {
			t.Errorf("disk %d is %s, want %s", i, got, want)
		}
	}
}
