package record

import (
	"regexp"
	"strconv"
)

// brokenBound is how a bound was said to be broken before events had labels:
// "web of tile 2: latency.p99 is 1.2 s".
var brokenBound = regexp.MustCompile(`^(.+) of tile (\d+): (\S+) is (\S+)`)

// complete gives an event that an older lab has written the labels and values that
// its words hold. Words that are others stay words.
func (e *Event) complete() {
	if e.Kind != Bad || e.What != WhatBound || e.Labels != nil {
		return
	}
	words := brokenBound.FindStringSubmatch(e.Text)
	if words == nil {
		return
	}
	if value, err := strconv.ParseFloat(words[4], 64); err == nil {
		e.Labels = Labels{"load": words[1], "tile": words[2], "metric": words[3]}
		e.Values = map[string]float64{ValueBound: value}
	}
}
