package record

// Told is what did not go well in a run, in words: what was skipped, and what failed
// or does not hold that has to. Bounds that were broken and loads that were measured
// before they were steady are results, and not told here.
type Told struct{ Skipped, Failed []string }

// The exit statuses of a command that ends a run of which something is told.
const (
	StatusSkipped = 4
	StatusFailed  = 5
)

// Tell gathers what a run's events say. Of a turn that was done again only the last
// time counts.
func Tell(dir string) (Told, error) {
	var events []Event
	if err := lines(dir, eventsFile, -1, &events); err != nil {
		return Told{}, err
	}
	return tell(events), nil
}

// Told is the same of a run that was read.
func (r *Run) Told() Told { return tell(r.Events) }

func tell(events []Event) Told {
	began := map[Turn]int{}
	for i, e := range events {
		if e.Kind == Begin {
			began[e.Turn] = i
		}
	}
	var told Told
	for i, e := range events {
		switch {
		case i < began[e.Turn]:
		case e.Kind == Skipped:
			told.Skipped = append(told.Skipped, e.words())
		case e.Kind == Failed, e.Kind == Bad && e.What != WhatBound && e.What != WhatWarmup:
			told.Failed = append(told.Failed, e.words())
		}
	}
	return told
}

// words say what happened, and of whom.
func (e *Event) words() string {
	words := e.What
	if e.Guest != "" {
		words += " of " + e.Guest
	}
	if words != "" {
		words += ": "
	}
	return words + e.Text
}
